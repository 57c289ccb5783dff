/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The filter of known addresses: most packets that are not for a service stop here. */
#pragma once

#include "hash.h"
#include "maps.h"

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
