/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How long a server takes to answer a SYN, by backend. A flow's entry has no room for a time: that of its SYN is in a small table beside,
 * in which another flow's may take its place. A sample that is lost so is missing, and nothing else. */
#pragma once

#include "maps.h"

/* What both entries of a flow tell of it. Never 0. */
static __always_inline __u32 syn_flow(const struct flow *flow)
{
	__be16 port = flow->flags & FLOW_ALIAS ? flow->other_port : flow->port;
	__u64 x = flow->client.longs[1] ^ flow->client.longs[0] * 0x9e3779b97f4a7c15ULL;

	x ^= ((__u64)port << 16 | flow->frontend_port) * 0xbf58476d1ce4e5b9ULL ^ (__u64)flow->backend << 32;
	x *= 0xff51afd7ed558ccdULL;
	return x >> 32 | 1;
}

static __always_inline struct syn_sent *syn_slot(__u32 flow)
{
	__u32 index = flow >> 1 & (SYN_SLOTS - 1);

	return bpf_map_lookup_elem(&syn_sent, &index);
}

/* Low 32 bits. */
static __always_inline __u32 syn_now(void)
{
	return bpf_ktime_get_ns() / 1000;
}

/* A SYN has made this flow. Both words at once: whoever reads them gets one flow's. */
static __always_inline void syn_note(const struct flow *flow)
{
	__u32 key = syn_flow(flow);
	struct syn_sent *slot = syn_slot(key);

	if (slot)
		*(volatile __u64 *)&slot->flow = key | (__u64)syn_now() << 32;
}

/* The number of a time's bucket: four for each doubling, from 16 microseconds on. */
static __always_inline __u32 syn_bucket(__u32 microseconds)
{
	__u32 exponent = 0;
	__u32 rest = microseconds / SYN_LEAST;

	if (!rest)
		return 0;
#pragma unroll
	for (__u32 step = 16; step; step /= 2) {
		if (rest >> step) {
			rest >>= step;
			exponent += step;
		}
	}
	return 1 + exponent * 4 + ((__u64)microseconds * 4 / SYN_LEAST >> exponent & 3);
}

/* The server's first answer to a flow is a SYN-ACK. A function of its own so that the verifier goes through it once. */
__noinline int syn_answered(const struct flow *flow)
{
	struct syn_times *times;
	struct syn_sent *slot;
	__u32 key, id, bucket;
	__u64 sent;

	if (!flow || flow->flags & FLOW_DIRECT)
		return 0;
	key = syn_flow(flow);
	slot = syn_slot(key);
	if (!slot)
		return 0;
	sent = *(volatile __u64 *)&slot->flow;
	if ((__u32)sent != key)
		return 0;
	*(volatile __u64 *)&slot->flow = 0; /* the flow's second entry has its first answer, too */
	id = flow->backend;
	times = bpf_map_lookup_elem(&syn_times, &id);
	bucket = syn_bucket(syn_now() - (__u32)(sent >> 32));
	if (bucket >= SYN_BUCKETS)
		bucket = SYN_BUCKETS - 1;
	if (times)
		__sync_fetch_and_add(&times->buckets[bucket & (SYN_BUCKETS - 1)], 1);
	return 0;
}
