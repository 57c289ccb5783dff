/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Writes other addresses and ports into a packet, and updates its checksums by the difference (RFC 1624). */
#pragma once

#include <bpf/bpf_core_read.h>

#include "config.h"
#include "packet.h"

/* skb->ip_summed: include/linux/skbuff.h. */
enum summed {
	SUMMED_NONE = 0,        /* the checksum in the packet is complete */
	SUMMED_UNNECESSARY = 1, /* the same, and found right */
	SUMMED_COMPLETE = 2,    /* skb->csum is the sum from the network header on: it has to follow every change */
	SUMMED_PARTIAL = 3,     /* the field has the sum of the pseudo header; device or stack do the rest */
	SUMMED_UNKNOWN = 4,     /* kernel before 6.2: the checksum helpers know */
};

struct sk_buff {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *context) __ksym __weak;

static __always_inline enum summed packet_summed(struct __sk_buff *skb)
{
	if (checksum_helpers || !bpf_cast_to_kern_ctx)
		return SUMMED_UNKNOWN;
	const struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

/* Sums are kept in 64 bits and folded at the end; two's complement words need no carry before. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (__u16)sum;
	sum = (sum >> 16) + (__u16)sum;
	sum = (sum >> 16) + (__u16)sum;
	return sum;
}

/* What replacing one word by another adds to a sum. */
static __always_inline __u64 csum_change(__u32 from, __u32 to)
{
	return (__u64)(__u32)~from + to;
}

static __always_inline __u64 csum_change_port(__be16 from, __be16 to)
{
	return (__u64)(__u16)~from + to;
}

static __always_inline __u64 csum_change_address(__u8 family, const struct address *from, const struct address *to)
{
	__u64 sum = csum_change(from->longs[1] >> 32, to->longs[1] >> 32);

	if (family == 4)
		return sum;
	sum += csum_change(from->longs[1], to->longs[1]);
	sum += csum_change(from->longs[0], to->longs[0]);
	sum += csum_change(from->longs[0] >> 32, to->longs[0] >> 32);
	return sum;
}

/* A complete checksum field after a change. */
static __always_inline __u16 csum_after(__u16 field, __u64 change)
{
	return ~csum_fold((__u16)~field + change);
}

/* skb->csum follows the packet's bytes. */
static __always_inline void csum_complete(struct __sk_buff *skb, __u64 change)
{
	bpf_csum_update(skb, csum_fold(change));
}

/* What a rewrite changes. A constant at every call, so that the rest costs nothing. */
enum change {
	CHANGE_SOURCE = 1,
	CHANGE_DESTINATION = 2,
	CHANGE_SOURCE_PORT = 4,
	CHANGE_DESTINATION_PORT = 8,
	CHANGE_PORTS = CHANGE_SOURCE_PORT | CHANGE_DESTINATION_PORT,
	CHANGE_ALL = 15,
};

/* The new values; those that the change does not name are not read. */
struct rewrite {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
};

static __always_inline __u64 rewrite_addresses_sum(const struct packet *packet, const struct rewrite *to, __u32 what)
{
	__u64 sum = 0;

	if (what & CHANGE_SOURCE)
		sum += csum_change_address(packet->family, &packet->source, &to->source);
	if (what & CHANGE_DESTINATION)
		sum += csum_change_address(packet->family, &packet->destination, &to->destination);
	return sum;
}

static __always_inline __u64 rewrite_ports_sum(const struct packet *packet, const struct rewrite *to, __u32 what)
{
	__u64 sum = 0;

	if (what & CHANGE_SOURCE_PORT)
		sum += csum_change_port(packet->source_port, to->source_port);
	if (what & CHANGE_DESTINATION_PORT)
		sum += csum_change_port(packet->destination_port, to->destination_port);
	return sum;
}

static __always_inline void rewrite_l3(const struct headers *headers, const struct rewrite *to, __u32 what,
				       __u64 change)
{
	struct ipv6hdr *ip6 = headers->ip6;
	struct iphdr *ip4 = headers->ip4;

	if (ip4) {
		if (what & CHANGE_SOURCE)
			ip4->saddr = address_to4(&to->source);
		if (what & CHANGE_DESTINATION)
			ip4->daddr = address_to4(&to->destination);
		ip4->check = csum_after(ip4->check, change);
	} else if (ip6) {
		if (what & CHANGE_SOURCE)
			address_to6(&to->source, &ip6->saddr);
		if (what & CHANGE_DESTINATION)
			address_to6(&to->destination, &ip6->daddr);
	}
}

static __always_inline void rewrite_ports(__be16 *ports, const struct rewrite *to, __u32 what)
{
	if (what & CHANGE_SOURCE_PORT)
		ports[0] = to->source_port;
	if (what & CHANGE_DESTINATION_PORT)
		ports[1] = to->destination_port;
}

/* Offset of the checksum in the transport header; 0 where the addresses are in none (SCTP). */
static __always_inline __u32 l4_check_offset(__u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return offsetof(struct tcphdr, check);
	return protocol == IPPROTO_UDP ? offsetof(struct udphdr, check) : 0;
}

/* Before Linux 6.2: the helpers look at ip_summed. The first one takes the addresses for IPv4's, whose header has a
 * checksum of its own, and takes them from skb->csum: for IPv6 they have to come back (BPF_F_IPV6 is too new to ask for). */
static __always_inline void rewrite_l4_by_helper(struct __sk_buff *skb, const struct packet *packet, __u64 addresses,
						 __u64 ports)
{
	__u32 at = packet->l4 + l4_check_offset(packet->protocol);
	__u64 flags = packet->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	bpf_l4_csum_replace(skb, at, 0, csum_fold(addresses), flags | BPF_F_PSEUDO_HDR);
	if (ports)
		bpf_l4_csum_replace(skb, at, 0, csum_fold(ports), flags);
	if (packet->family == 6)
		csum_complete(skb, addresses);
}

/* True when the field followed the change, so that the packet's bytes sum up as before. */
static __always_inline bool rewrite_check(__u16 *check, __u8 protocol, enum summed summed, __u64 addresses, __u64 ports)
{
	__u16 value = *check;

	if (protocol == IPPROTO_UDP && !value)
		return false; /* the sender made none */
	if (summed == SUMMED_PARTIAL) {
		*check = csum_fold(value + addresses);
		return false;
	}
	value = csum_after(value, addresses + ports);
	*check = protocol == IPPROTO_UDP && !value ? 0xffff : value;
	return true;
}

/* skb->csum of an IPv4 packet does not see the addresses: the header's own checksum takes them back. */
static __always_inline void rewrite_complete(struct __sk_buff *skb, __u8 family, bool followed, __u64 addresses,
					     __u64 ports)
{
	__u64 change = ports + (family == 6 ? addresses : 0);

	if (followed)
		change += (__u16)~csum_fold(addresses + ports);
	csum_complete(skb, change);
}

/* Size of the transport header's part that a rewrite touches. */
static __always_inline __u32 l4_touched(const struct packet *packet)
{
	if (packet->fragment == FRAGMENT_LATER)
		return 0;
	return packet->protocol == IPPROTO_TCP ? 18 : 8;
}

static __always_inline void rewrite_l4(struct __sk_buff *skb, const struct packet *packet,
				       const struct headers *headers, const struct rewrite *to, __u32 what,
				       __u64 addresses)
{
	__u64 ports = rewrite_ports_sum(packet, to, what);
	enum summed summed = packet_summed(skb);
	bool followed = false;

	rewrite_ports(headers->ports, to, what);
	if (summed == SUMMED_UNKNOWN) {
		if (headers->check && (packet->protocol != IPPROTO_UDP || *headers->check))
			rewrite_l4_by_helper(skb, packet, addresses, ports);
		else
			rewrite_complete(skb, packet->family, false, addresses, ports);
		return;
	}
	if (headers->check)
		followed = rewrite_check(headers->check, packet->protocol, summed, addresses, ports);
	if (summed == SUMMED_COMPLETE)
		rewrite_complete(skb, packet->family, followed, addresses, ports);
}

/* SCTP keeps its checksum over an address, not over a port: the caller has refused that. */
static __always_inline void rewrite_headers(struct __sk_buff *skb, const struct packet *packet,
					    const struct headers *headers, const struct rewrite *to, __u32 what)
{
	__u64 addresses = rewrite_addresses_sum(packet, to, what);

	rewrite_l3(headers, to, what, addresses);
	if (headers->ports)
		rewrite_l4(skb, packet, headers, to, what, addresses);
	else if (packet->family == 6)
		csum_complete(skb, addresses);
}

static __always_inline bool headers_find_ip(struct __sk_buff *skb, __u8 family, struct headers *headers)
{
	headers->ip4 = NULL;
	headers->ip6 = NULL;
	if (family == 4) {
		headers->ip4 = packet_at(skb, link_header, sizeof(*headers->ip4));
		return headers->ip4;
	}
	headers->ip6 = packet_at(skb, link_header, sizeof(*headers->ip6));
	return headers->ip6;
}

static __always_inline bool headers_find(struct __sk_buff *skb, const struct packet *packet, struct headers *headers)
{
	__u32 at = l4_check_offset(packet->protocol);

	headers->ports = NULL;
	headers->check = NULL;
	if (!headers_find_ip(skb, packet->family, headers))
		return false;
	if (packet->fragment == FRAGMENT_LATER)
		return true;
	headers->ports = packet_at(skb, packet->l4, 2 * sizeof(*headers->ports));
	if (at)
		headers->check = packet_at(skb, packet->l4 + at, sizeof(*headers->check));
	return headers->ports && (headers->check || !at);
}

/* Of the slow path; every field of to is taken. VERDICT_CONTINUE: done. A function of its own so that the verifier goes
 * through it once. */
__noinline int rewrite_any(struct __sk_buff *skb, const struct packet *packet, const struct rewrite *to)
{
	struct headers headers;

	if (!packet || !to || !headers_find(skb, packet, &headers))
		return VERDICT_DROP_REWRITE;
	rewrite_headers(skb, packet, &headers, to, CHANGE_ALL);
	return VERDICT_CONTINUE;
}

/* Whoever sent it gets it as sent to its own MAC address, where the device knows any. */
static __always_inline bool swap_macs(struct __sk_buff *skb)
{
	struct ethhdr *eth = packet_at(skb, 0, sizeof(*eth));
	__u16 *words = (__u16 *)eth;
	__u16 saved;

	if (!link_header)
		return true;
	if (!eth)
		return false;
	for (int i = 0; i < 3; i++) {
		saved = words[i];
		words[i] = words[i + 3];
		words[i + 3] = saved;
	}
	return true;
}
