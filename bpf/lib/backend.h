/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backends, and the choice of one for a new flow: the tiers in order, each by its Maglev table. */
#pragma once

#include "hash.h"
#include "maps.h"

#define BACKEND_PROBES 8 /* slots of a tier that are looked at when the first has no usable backend */

/* A backend as a flow will remember it. */
struct choice {
	struct address address;
	__u32 backend;
	__u16 generation;
	__be16 port;
};

static __always_inline const struct backend *backend_get(__u32 id)
{
	return bpf_map_lookup_elem(&backends, &id);
}

/* For new flows, and for every packet of UDP. */
static __always_inline bool backend_serving(const struct backend *backend)
{
	__u8 state = *(volatile const __u8 *)&backend->state;

	return state == BACKEND_ACTIVE || state == BACKEND_DRAINING;
}

/* Its packets need no way over the network. */
static __always_inline bool backend_is_local(__u32 id)
{
	const struct backend *backend = backend_get(id);

	return backend && backend->tier == TIER_NODE;
}

static __always_inline bool backend_choose(struct choice *choice, __u32 id, const struct backend *backend)
{
	choice->backend = id;
	choice->generation = backend->generation;
	choice->address = backend->address;
	choice->port = backend->port;
	return true;
}

/* Backend id in a slot; 0, nobody's, past the end of the table. */
static __always_inline __u32 slot_backend(__u32 slot)
{
	__u32 number = slot / SLOTS_PER_LINE;
	const struct slot_line *line = bpf_map_lookup_elem(&slots, &number);

	return line ? line->ids[slot % SLOTS_PER_LINE] : 0;
}

static __always_inline bool backend_pick_tier(struct choice *choice, const struct tier *tier, __u32 service, __u32 hash)
{
	__u32 count = tier->count;

	if (!count)
		return false;
	for (int i = 0; i < BACKEND_PROBES; i++) {
		__u32 id = slot_backend(tier->first + hash % count);
		const struct backend *backend = backend_get(id);

		if (backend && backend->service == service && backend_serving(backend))
			return backend_choose(choice, id, backend);
		hash = hash_next(hash);
	}
	return false;
}

/* Not 0: choice has the backend. A function of its own so that the verifier goes through it once. */
__noinline int backend_pick(struct choice *choice, const struct side *side, __u32 service, __u32 hash)
{
	if (!choice || !side)
		return false;
	for (int i = 0; i < TIERS_MAX; i++) {
		if (backend_pick_tier(choice, &side->tiers[i], service, hash))
			return true;
	}
	return false;
}
