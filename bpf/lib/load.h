/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Load of the backends of Services that balance by connections (BALANCE_LEAST_CONNECTIONS): how many connections of this node each has open,
 * and which of two backends takes another one. A connection counts from when its first entry is written until it closes, expires, or its
 * entry is freed or goes to another one: whoever takes SEEN_COUNTED off an entry counts it out. What expires is found by the agent, which
 * compares the counts with the flow table as well (pkg/maps load.go). */
#pragma once

#include "config.h"
#include "health.h"
#include "maps.h"

static __always_inline void load_add(__u32 id, int connections)
{
	struct backend_health *health = trace_on ? NULL : health_get(id);

	if (health)
		__sync_fetch_and_add(&health->open, connections);
}

/* Counts an entry out that counts; not one whose backend's id was handed on, which begins at zero. A function of its own so that the
 * verifier goes through it once. */
__noinline int load_leave(struct flow *flow)
{
	const struct backend *backend;
	__u16 generation;
	__u32 id;

	if (!flow)
		return 0;
	id = flow->backend;
	generation = flow->generation;
	if (!(__sync_fetch_and_and(&flow->seen, ~SEEN_COUNTED) & SEEN_COUNTED))
		return 0;
	backend = bpf_map_lookup_elem(&backends, &id);
	if (backend && backend->generation == generation)
		load_add(id, -1);
	return 0;
}

#define LOAD_SLOW_LEAST 1000 /* microseconds: who answers SYNs within that is not slow */
#define LOAD_SLOWER \
	2 /* times: of two with the same load, the one that answers so much more slowly does not take the connection */
#define LOAD_FAR_SLOWER 8 /* times: the connections of one that answers so much more slowly count twice */

/* Its connections, with one more. Counts are written side by side with entries: for a moment they may be below zero. */
static __always_inline __u64 load_open(const struct backend_health *health)
{
	__s32 open = *(volatile const __s32 *)&health->open;

	return (open > 0 ? open : 0) + 1;
}

/* For a product of weights. */
static __always_inline __u64 load_weight(const struct backend_health *health)
{
	__u32 weight = *(volatile const __u32 *)&health->weight;

	return weight ? weight : 1;
}

/* other: 0 is not known, and says nothing. */
static __always_inline bool load_is_slower(__u64 time, __u64 other, __u32 times)
{
	return other && time >= LOAD_SLOW_LEAST && time > other * times;
}

/* With one more connection this backend would have more for its weight than the other one; where they would have as many, it answers SYNs
 * more slowly. */
static __always_inline bool load_is_more(const struct backend_health *this, const struct backend_health *other)
{
	__u32 now = bpf_jiffies64();
	__u64 time = syn_time_of(this, now), other_time = syn_time_of(other, now);
	__u64 load = load_open(this) * load_weight(other), other_load = load_open(other) * load_weight(this);

	if (load_is_slower(time, other_time, LOAD_FAR_SLOWER))
		load *= 2;
	if (load_is_slower(other_time, time, LOAD_FAR_SLOWER))
		other_load *= 2;
	return load > other_load || (load == other_load && load_is_slower(time, other_time, LOAD_SLOWER));
}
