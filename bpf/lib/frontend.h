/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From a destination to the record of its frontend. */
#pragma once

#include "maps.h"
#include "packet.h"

#define FRONTEND_TRIES 4

static __always_inline bool frontend_key_equal(const struct frontend_key *a, const struct frontend_key *b)
{
	return address_equal(&a->address, &b->address) && a->port == b->port && a->protocol == b->protocol;
}

/* The kernel may hand a hash element to another key while it is read here: then the record repeats another key. */
static __always_inline const struct record *frontend_find(const struct frontend_key *key)
{
	for (int i = 0; i < FRONTEND_TRIES; i++) {
		const __u32 *number = bpf_map_lookup_elem(&frontends, key);
		const struct record *record;
		__u32 index;

		if (!number)
			return NULL;
		index = *(volatile const __u32 *)number;
		record = bpf_map_lookup_elem(&records, &index);
		if (record && frontend_key_equal(&record->key, key))
			return record;
	}
	return NULL;
}

static __always_inline void frontend_key_of(struct frontend_key *key, const struct packet *packet)
{
	key->address = packet->destination;
	key->port = packet->destination_port;
	key->protocol = packet->protocol;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* The entry that says an address belongs to a service, whatever the port. */
static __always_inline const struct record *frontend_find_address(const struct address *address)
{
	struct frontend_key key = { .address = *address };

	return frontend_find(&key);
}
