/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Load of the backends of Services that balance by connections (BALANCE_LEAST_CONNECTIONS): how many connections of this node each has open,
 * how many other nodes have, as far as agents tell each other (pkg/agent load.go), and which of two backends takes another one. A connection
 * counts from when its first entry is written until it closes, expires, or its entry is freed or goes to another one: whoever takes
 * SEEN_COUNTED off an entry counts it out. What expires is found by the agent, which compares the counts with the flow table as well
 * (pkg/maps load.go). */
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

#define LOAD_OWN 8 /* one connection of so many goes by this node's own alone: whatever is told, no backend gets none */

/* What other nodes have may decide about a connection with this hash. */
static __always_inline bool load_asks_others(__u32 hash)
{
	return hash_next(hash) % LOAD_OWN;
}

static __always_inline bool load_is_told(const struct backend_health *health, __u32 now)
{
	__u32 at = *(volatile const __u32 *)&health->others_at;

	return at && health_age(at, now) <= OTHERS_SECONDS * jiffies_per_second;
}

/* As many as other nodes may have opened since they told. */
static __always_inline __u64 load_unsure(__u32 others)
{
	return (1ULL << (others >> OTHERS_SHIFT & 31)) >> 1;
}

/* Adds what other nodes have to the loads of two backends, if both are known, and differ by more than may have changed since. Less would
 * have all nodes choose the same backend until they are told again. */
static __always_inline void load_add_others(const struct backend_health *this, const struct backend_health *other,
					    __u32 now, __u64 *load, __u64 *other_load)
{
	__u64 weight = load_weight(this), other_weight = load_weight(other), all, other_all, unsure;
	__u32 others, other_others;

	if (!load_is_told(this, now) || !load_is_told(other, now))
		return;
	others = *(volatile const __u32 *)&this->others;
	other_others = *(volatile const __u32 *)&other->others;
	all = *load + (others & OTHERS_COUNT) * other_weight;
	other_all = *other_load + (other_others & OTHERS_COUNT) * weight;
	unsure = load_unsure(others) * other_weight + load_unsure(other_others) * weight;
	if (all > other_all + unsure || other_all > all + unsure) {
		*load = all;
		*other_load = other_all;
	}
}

/* With one more connection this backend would have more for its weight than the other one; where they would have as many, it answers SYNs
 * more slowly. asks: what other nodes have counts as well. */
static __always_inline bool load_is_more(const struct backend_health *this, const struct backend_health *other,
					 bool asks)
{
	__u32 now = bpf_jiffies64();
	__u64 time = syn_time_of(this, now), other_time = syn_time_of(other, now);
	__u64 load = load_open(this) * load_weight(other), other_load = load_open(other) * load_weight(this);

	if (asks)
		load_add_others(this, other, now, &load, &other_load);
	if (load_is_slower(time, other_time, LOAD_FAR_SLOWER))
		load *= 2;
	if (load_is_slower(other_time, time, LOAD_FAR_SLOWER))
		other_load *= 2;
	return load > other_load || (load == other_load && load_is_slower(time, other_time, LOAD_SLOWER));
}
