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

static __always_inline const struct record *record_get(__u32 number)
{
	return bpf_map_lookup_elem(&records, &number);
}

/* Number of the record in force, 0 none: that one is nobody's. The kernel may hand a hash element to another key while
 * it is read here: then the record repeats another key. A function of its own so that the verifier goes through it once. */
__noinline int frontend_number(const struct frontend_key *key)
{
	struct frontend_key own;

	if (!key)
		return 0;
	own = *key; /* the stack, as kernels before 6.2 take no argument's memory for a map's key */
	for (int i = 0; i < FRONTEND_TRIES; i++) {
		const __u32 *number = bpf_map_lookup_elem(&frontends, &own);
		const struct record *record;
		__u32 found;

		if (!number)
			return 0;
		found = *(volatile const __u32 *)number;
		record = record_get(found);
		if (record && frontend_key_equal(&record->key, key))
			return found;
	}
	return 0;
}

static __always_inline const struct record *frontend_find(const struct frontend_key *key)
{
	__u32 number = frontend_number(key);

	return number ? record_get(number) : NULL;
}

static __always_inline void frontend_key_of(struct frontend_key *key, const struct packet *packet)
{
	key->address = packet->destination;
	key->port = packet->destination_port;
	key->protocol = packet->protocol;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* The record of a packet's destination. Its number is found in a function of its own for the sake of the stack. */
__noinline int frontend_number_of(const struct packet *packet)
{
	struct frontend_key key;

	if (!packet)
		return 0;
	frontend_key_of(&key, packet);
	return frontend_number(&key);
}

static __always_inline const struct record *frontend_of(const struct packet *packet)
{
	__u32 number = frontend_number_of(packet);

	return number ? record_get(number) : NULL;
}

/* The entry that says an address belongs to a service, whatever the port. */
static __always_inline const struct record *frontend_find_address(const struct address *address)
{
	struct frontend_key key = { .address = *address };

	return frontend_find(&key);
}
