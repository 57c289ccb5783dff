/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The filter of known addresses: most packets that are not for a service stop here. */
#pragma once

#include "hash.h"
#include "maps.h"

enum known {
	KNOWN_FRONTEND = 1, /* perhaps a frontend's address; surely none without this */
	KNOWN_BACKEND = 2,  /* the same for a backend's address and port */
};

static __always_inline __u32 known_frontend(const struct address *address)
{
	__u32 hash = address_hash(address);
	__u32 word = hash >> 6;
	const struct address_bits *bits = bpf_map_lookup_elem(&address_filter, &word);

	return bits && (bits->frontends >> (hash & 63)) & 1 ? KNOWN_FRONTEND : 0;
}

static __always_inline __u32 known_backend(const struct address *address, __be16 port)
{
	__u32 hash = endpoint_hash(address, port);
	__u32 word = hash >> 6;
	const struct address_bits *bits = bpf_map_lookup_elem(&address_filter, &word);

	return bits && (bits->backends >> (hash & 63)) & 1 ? KNOWN_BACKEND : 0;
}
