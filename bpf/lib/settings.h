/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the agent tells every program (service CIDRs, the hairpin addresses, the ports of SNAT), and what an address is to it: the hashes, and
 * the filter of known addresses that one of them indexes. Most packets that are not for a service stop there. pkg/maps has endpoint_hash
 * again in Go. */
#pragma once

#include "maps.h"
#include "packet.h"

/* Odd constants with well spread bits (from wyhash and murmur3). */
#define HASH_A 0x9e3779b97f4a7c15ULL
#define HASH_B 0xbf58476d1ce4e5b9ULL
#define HASH_C 0xff51afd7ed558ccdULL

/* An address as two numbers, each eight bytes of it read as a little-endian word. */

/* Where known_addresses has an address with a port: the upper 15 of 27 bits name the word, twice six the bits in it. Whoever does not
 * know the seed cannot choose addresses that pass for known ones.
 * x = ((low ^ seed) * A) ^ high ^ port, where low is bytes 0-7, high bytes 8-15 and port its two bytes as they are on the wire, read as
 * a little-endian word; x ^= x >> 32; x *= B; the top 27 bits. */
static __always_inline __u32 endpoint_hash(const struct address *address, __be16 port, __u64 seed)
{
	__u64 x = ((address->longs[0] ^ seed) * HASH_A) ^ address->longs[1] ^ port;

	x ^= x >> 32;
	x *= HASH_B;
	return x >> (64 - 27);
}
_Static_assert(FILTER_WORDS == 1u << 15, "endpoint_hash gives 15 bits of the word");

/* The first entry that a flow may have is in the set that the low bits name, in the way that the top three do; flow_tag and flow_block
 * say what the others are for. */
static __always_inline __u64 flow_hash(const struct address *client, __be16 port, __u8 protocol, __u64 seed)
{
	__u64 x = (client->longs[1] ^ seed) * HASH_A;

	x ^= x >> 32;
	x ^= client->longs[0] ^ ((__u64)(((__u32)protocol << 16) | port) * HASH_B);
	x *= HASH_C;
	return x ^ (x >> 32);
}

/* Where a flow's first entry is when the blocks of its client's address and port are full: many frontends may be spoken to from one
 * port. Only the client's direction knows both ends, so the server's has the second entry. */
static __always_inline __u64 flow_pair_hash(const struct address *client, __be16 port, const struct address *frontend,
					    __be16 frontend_port, __u8 protocol, __u64 seed)
{
	return flow_hash(client, port, protocol, flow_hash(frontend, frontend_port, protocol, seed));
}

/* Which two bits of source_bits in settings an address has: the two top bytes. pkg/maps has it again in Go. */
static __always_inline __u32 source_hash(const struct address *address)
{
	return ((address->longs[0] * HASH_A) ^ address->longs[1]) * HASH_B >> 48;
}

/* Picks a slot of a Maglev table. No seed: every node and every restart picks the same. */
static __always_inline __u32 maglev_hash(const struct address *client, __be16 port, const struct frontend_key *frontend)
{
	__u64 x = (client->longs[0] ^ HASH_C) * HASH_A;

	x = ((x ^ (x >> 32)) ^ client->longs[1]) * HASH_B;
	x ^= frontend->address.longs[0] ^ (((__u64)frontend->protocol << 32) | ((__u64)frontend->port << 16) | port);
	x = (x ^ (x >> 29)) * HASH_C;
	x = ((x ^ (x >> 32)) ^ frontend->address.longs[1]) * HASH_A;
	return (x ^ (x >> 32)) >> 8;
}

/* With session affinity the client's address alone counts, but for a client whose time is over. */
static __always_inline __u32 maglev_hash_client(const struct address *client)
{
	__u64 x = (client->longs[0] ^ HASH_C) * HASH_A;

	x = ((x ^ (x >> 32)) ^ client->longs[1]) * HASH_B;
	x = (x ^ (x >> 29)) * HASH_C;
	return (x ^ (x >> 32)) >> 8;
}

/* The next number of a sequence that a hash starts. */
static __always_inline __u32 hash_next(__u32 hash)
{
	__u64 x = (__u64)(hash + 1) * HASH_B;

	return x >> 32;
}

/* The filter of known addresses. */

enum known {
	KNOWN_FRONTEND = 1, /* perhaps a frontend's; surely none without this */
	KNOWN_BACKEND = 2,  /* the same for a backend's */
};

static __always_inline const struct known_bits *filter_word(__u32 hash)
{
	__u32 word = hash >> 12;

	return bpf_map_lookup_elem(&known_addresses, &word);
}

/* Both bits are set. One alone is a stranger's: with 10,000 addresses 2 in 100 have the first, 4 in 10,000 both. */
static __always_inline bool filter_has(__u64 bits, __u32 hash)
{
	return (bits >> (hash & 63)) & (bits >> ((hash >> 6) & 63)) & 1;
}

/* An address that belongs to a service, whatever the port. */
static __always_inline __u32 known_frontend(const struct address *address, __u64 seed)
{
	__u32 hash = endpoint_hash(address, 0, seed);
	const struct known_bits *bits = filter_word(hash);

	return bits && filter_has(bits->frontends, hash) ? KNOWN_FRONTEND : 0;
}

static __always_inline __u32 known_backend(const struct address *address, __be16 port, __u64 seed)
{
	__u32 hash = endpoint_hash(address, port, seed);
	const struct known_bits *bits = filter_word(hash);

	return bits && filter_has(bits->backends, hash) ? KNOWN_BACKEND : 0;
}

/* A backend that frontends other than ClusterIPs lead to, as clients off the node have them; surely none with 0. It has two bits more
 * among those of the backends, by the hash of the inverted seed. */
static __always_inline __u32 known_exposed(const struct address *address, __be16 port, __u64 seed)
{
	return known_backend(address, port, ~seed);
}

/* Addresses of the node itself serve with ports of services alone: such frontends are known by address and port. */
static __always_inline __u32 known_endpoint(const struct address *address, __be16 port, __u64 seed)
{
	__u32 hash = endpoint_hash(address, port, seed);
	const struct known_bits *bits = filter_word(hash);
	__u32 known = 0;

	if (!bits)
		return 0;
	if (filter_has(bits->frontends, hash))
		known |= KNOWN_FRONTEND;
	if (filter_has(bits->backends, hash))
		known |= KNOWN_BACKEND;
	return known;
}

/* Of a destination. */
static __always_inline __u32 known_destination(const struct address *address, __be16 port, __u64 seed)
{
	__u32 known = known_frontend(address, seed);

	return known ? known : known_endpoint(address, port, seed);
}

/* The settings. */

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

/* The four bytes from disabled to routed are one word, which has several writers. */
#define MODES_ROUTED_SHIFT 24
_Static_assert(__builtin_offsetof(struct settings, disabled) % 4 == 0 &&
		       __builtin_offsetof(struct settings, routed) == __builtin_offsetof(struct settings, disabled) + 3,
	       "one word");

static __always_inline __u32 *settings_modes(struct settings *settings)
{
	return (__u32 *)&settings->disabled;
}

/* No packet takes the fast path. One load, as of disabled alone. */
static __always_inline bool settings_slow(const struct settings *settings)
{
	return *(volatile const __u32 *)&settings->disabled & (0xff | ROUTED_FLOWS_COUNTED << MODES_ROUTED_SHIFT);
}

static __always_inline __u8 settings_routed(const struct settings *settings)
{
	return *(volatile const __u8 *)&settings->routed;
}

/* Connections of the host's own sockets may be with another backend than the socket's. */
static __always_inline bool host_there(const struct settings *settings)
{
	return settings_routed(settings) & ROUTED_HOST;
}

/* Straight to a backend: its client may also come to it by a frontend, from the same port. A client off the node does so where the
 * backend has other frontends than ClusterIPs, or where the network routes ClusterIPs to this node. */
static __always_inline bool direct_may_clash(const struct settings *settings, const struct packet *packet)
{
	return packet->hook != HOOK_FROM_NET || settings_routed(settings) & ROUTED_HERE ||
	       known_exposed(&packet->destination, packet->destination_port, settings->seed);
}

/* True if an answer without a flow may belong to a SYN that has since gone to another server. Only servers whose direct connections get
 * entries serve clients off the node by a frontend: what others answer is never late. */
static __always_inline bool reply_may_be_late(const struct settings *settings, const struct packet *packet)
{
	return packet->hook == HOOK_TO_NET && answers_syn(packet) &&
	       (settings_routed(settings) & ROUTED_HERE ||
		known_exposed(&packet->source, packet->source_port, settings->seed));
}

/* A SYN that leaves from an address and port that is a frontend's as well, perhaps: a masquerade's, or of a socket of the host. Where
 * connection tracking cannot tell what answers it, a flow does (host_opens). */
static __always_inline bool opens_unasked(const struct settings *settings, const struct packet *packet)
{
	return !conntrack_lookup && packet->hook == HOOK_TO_NET && packet->protocol == IPPROTO_TCP &&
	       is_plain_syn(packet) &&
	       known_endpoint(&packet->source, packet->source_port, settings->seed) & KNOWN_FRONTEND;
}

/* Which packets from the network may be replies to SNAT: they go from a backend to an address and a port that SNAT may use. Whether they
 * are, flows say. */

#define SNAT_PORT_FIRST 1024 /* of those that SNAT ever uses */

static __always_inline bool in_snat_range(const struct settings *settings, __be16 port)
{
	return (__u16)(bpf_ntohs(port) - settings->snat_first) < settings->snat_count;
}

/* Perhaps one of sources, which are all addresses of this node as far as there is room. */
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
