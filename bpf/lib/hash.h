/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The three hashes, and the filter of known addresses that one of them indexes: most packets that are not for a service stop there.
 * pkg/maps has endpoint_hash again in Go. */
#pragma once

#include "maps.h"

/* Odd constants with well spread bits (from wyhash and murmur3). */
#define HASH_A 0x9e3779b97f4a7c15ULL
#define HASH_B 0xbf58476d1ce4e5b9ULL
#define HASH_C 0xff51afd7ed558ccdULL

/* An address as two numbers, each eight bytes of it read as a little-endian word. */

/* Which bit of address_filter an address with a port has: 0 to ADDRESS_FILTER_BITS - 1.
 * x = (low * A) ^ high ^ port, where low is bytes 0-7, high bytes 8-15 and port its two bytes as they are on the wire, read as a
 * little-endian word; x ^= x >> 32; x *= B; the top 19 bits. */
static __always_inline __u32 endpoint_hash(const struct address *address, __be16 port)
{
	__u64 x = (address->longs[0] * HASH_A) ^ address->longs[1] ^ port;

	x ^= x >> 32;
	x *= HASH_B;
	return x >> (64 - 19);
}
_Static_assert(ADDRESS_FILTER_BITS == 1u << 19, "endpoint_hash gives 19 bits");

/* The bit of an address whatever the port. */
static __always_inline __u32 address_hash(const struct address *address)
{
	return endpoint_hash(address, 0);
}

/* The set of a flow is the low bits, the way where the search starts the top three. */
static __always_inline __u64 flow_hash(const struct address *client, __be16 port, __u8 protocol, __u64 seed)
{
	__u64 x = (client->longs[1] ^ seed) * HASH_A;

	x ^= x >> 32;
	x ^= client->longs[0] ^ ((__u64)(((__u32)protocol << 16) | port) * HASH_B);
	x *= HASH_C;
	return x ^ (x >> 32);
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

/* With session affinity the client's address alone counts. */
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

static __always_inline const struct address_bits *filter_word(__u32 hash)
{
	__u32 word = hash >> 6;

	return bpf_map_lookup_elem(&address_filter, &word);
}

/* An address that belongs to a service, whatever the port. */
static __always_inline __u32 known_frontend(const struct address *address)
{
	__u32 hash = address_hash(address);
	const struct address_bits *bits = filter_word(hash);

	return bits && (bits->frontends >> (hash & 63)) & 1 ? KNOWN_FRONTEND : 0;
}

static __always_inline __u32 known_backend(const struct address *address, __be16 port)
{
	__u32 hash = endpoint_hash(address, port);
	const struct address_bits *bits = filter_word(hash);

	return bits && (bits->backends >> (hash & 63)) & 1 ? KNOWN_BACKEND : 0;
}

/* Addresses of a node serve with their NodePorts alone: such frontends are known by address and port. */
static __always_inline __u32 known_endpoint(const struct address *address, __be16 port)
{
	__u32 hash = endpoint_hash(address, port);
	const struct address_bits *bits = filter_word(hash);
	__u32 known = 0;

	if (!bits)
		return 0;
	if ((bits->frontends >> (hash & 63)) & 1)
		known |= KNOWN_FRONTEND;
	if ((bits->backends >> (hash & 63)) & 1)
		known |= KNOWN_BACKEND;
	return known;
}

/* Of a destination. */
static __always_inline __u32 known_destination(const struct address *address, __be16 port)
{
	__u32 known = known_frontend(address);

	return known ? known : known_endpoint(address, port);
}
