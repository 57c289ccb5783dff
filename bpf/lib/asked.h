/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows of datagrams to which an answer is expected (FLOW_ASKS): how many were sent since the backend answered last. Where a Service asks for
 * that (udp_retry of its records), one that was not answered so often, and a second later, leaves its backend. An entry of the flow table has no
 * room for a count: it is in a table beside, in which another flow's may take its place, which only makes this flow wait for longer. */
#pragma once

#include "flow.h"
#include "health.h"

static __always_inline struct asked_flow *asked_slot(__u32 flow)
{
	__u32 index = flow >> 1 & (ASKED_SLOTS - 1);

	return bpf_map_lookup_elem(&asked_flows, &index);
}

/* The first datagram after an answer, or of the flow. */
static __always_inline void asked_begin(struct asked_flow *slot, __u32 flow)
{
	slot->time = flow_now();
	slot->count = 1;
	flow_barrier();
	*(volatile __u32 *)&slot->flow = flow;
}

/* A datagram has made this flow. */
static __always_inline void asked_note(const struct flow *flow)
{
	__u32 key = syn_flow(flow);
	struct asked_flow *slot = asked_slot(key);

	if (slot && !trace_on)
		asked_begin(slot, key);
}

/* The backend has answered. */
static __always_inline void asked_answered(const struct flow *flow)
{
	__u32 key = syn_flow(flow);
	struct asked_flow *slot = asked_slot(key);

	if (slot && !trace_on && *(volatile __u32 *)&slot->flow == key)
		*(volatile __u32 *)&slot->flow = 0;
}

/* Counts a datagram. True: those before it were enough, and could be answered in the time since the last of so many; they are forgotten. The first
 * of them may be of long ago, and the others of a burst that is about to be answered. most: how many that is, 0 never. */
static __always_inline bool asked_enough(const struct flow *flow, __u32 most)
{
	__u32 key = syn_flow(flow);
	struct asked_flow *slot = asked_slot(key);
	__u32 before;

	if (!slot || trace_on)
		return false;
	if (*(volatile __u32 *)&slot->flow != key) {
		asked_begin(slot, key);
		return false;
	}
	before = __sync_fetch_and_add(&slot->count, 1);
	if (before < most)
		slot->time = flow_now();
	if (!most || before < most ||
	    health_age(slot->time, flow_now()) < jiffies_per_second * asked_milliseconds / 1000)
		return false;
	*(volatile __u32 *)&slot->flow = 0;
	return true;
}
