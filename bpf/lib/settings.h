/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the agent tells every program: service CIDRs, the hairpin addresses, the ports of SNAT. */
#pragma once

#include "hash.h"
#include "maps.h"
#include "packet.h"

static __always_inline const struct settings *settings_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&config, &zero);
}

/* Of the filter of known addresses. */
static __always_inline __u64 filter_seed(void)
{
	const struct settings *settings = settings_get();

	return settings ? settings->seed : 0;
}

/* A function of its own so that the verifier goes through it once. */
__noinline int node_drains(void)
{
	const struct settings *settings = settings_get();

	return settings && settings->draining;
}

static __always_inline bool in_cidr(const struct cidr *cidr, const struct address *address)
{
	return ((address->longs[1] ^ cidr->address.longs[1]) & cidr->mask.longs[1]) == 0 &&
	       ((address->longs[0] ^ cidr->address.longs[0]) & cidr->mask.longs[0]) == 0;
}

static __always_inline bool in_service_cidr(const struct settings *settings, const struct address *address)
{
	for (__u32 i = 0; i < SERVICE_CIDRS_MAX; i++) {
		if (i >= settings->cidr_count)
			return false;
		if (in_cidr(&settings->cidrs[i], address))
			return true;
	}
	return false;
}

/* The same for the slow path. A function of its own so that the verifier goes through it once. */
__noinline int service_cidr_has(const struct address *address)
{
	const struct settings *settings = settings_get();

	return settings && address && in_service_cidr(settings, address);
}

/* The address that stands for the client in a hairpin flow. */
static __always_inline const struct address *hairpin_address(const struct settings *settings, __u8 family)
{
	return family == 4 ? &settings->loopback4 : &settings->loopback6;
}

static __always_inline bool is_hairpin_address(const struct settings *settings, __u8 family,
					       const struct address *address)
{
	return address_equal(hairpin_address(settings, family), address);
}

/* Straight to a backend: its client may also come to it by a frontend, from the same port. A client off the node does so where the
 * backend has other frontends than ClusterIPs, or where the network routes ClusterIPs to this node. */
static __always_inline bool direct_may_clash(const struct settings *settings, const struct packet *packet)
{
	return packet->hook != HOOK_FROM_NET || *(volatile const __u8 *)&settings->routed ||
	       known_exposed(&packet->destination, packet->destination_port, settings->seed);
}

/* True if an answer without a flow may belong to a SYN that has since gone to another server. Only servers whose direct connections get
 * entries serve clients off the node by a frontend: what others answer is never late. */
static __always_inline bool reply_may_be_late(const struct settings *settings, const struct packet *packet)
{
	return packet->hook == HOOK_TO_NET && answers_syn(packet) &&
	       (*(volatile const __u8 *)&settings->routed ||
		known_exposed(&packet->source, packet->source_port, settings->seed));
}

/* Which packets from the network may be replies to SNAT: they go from a backend to an address and a port that SNAT may use. Whether they
 * are, flows say. */

#define SNAT_PORT_FIRST 1024 /* of those that SNAT ever uses */

static __always_inline bool in_snat_range(const struct settings *settings, __be16 port)
{
	return (__u16)(bpf_ntohs(port) - settings->snat_first) < settings->snat_count;
}

/* Perhaps one of sources. */
static __always_inline bool is_snat_source(const struct settings *settings, const struct address *address)
{
	__u32 hash = source_hash(address);
	__u32 one = hash >> 8 & (SOURCE_BITS - 1), other = hash & (SOURCE_BITS - 1);

	return (settings->source_bits[one / 64] >> one % 64) & (settings->source_bits[other / 64] >> other % 64) & 1;
}

static __always_inline bool may_be_snat_reply(const struct settings *settings, const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN &&
	       bpf_ntohs(packet->destination_port) >= SNAT_PORT_FIRST &&
	       is_snat_source(settings, &packet->destination) &&
	       known_backend(&packet->source, packet->source_port, settings->seed);
}
