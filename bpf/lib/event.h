/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tells the agent of drops and rejects: a few a second of each processor. */
#pragma once

#include "config.h"
#include "maps.h"
#include "packet.h"
#include "verdict.h"

static __always_inline bool event_allowed(void)
{
	__u32 zero = 0;
	struct event_budget *budget = bpf_map_lookup_elem(&event_budgets, &zero);
	__u32 now = bpf_jiffies64();

	if (!budget)
		return false;
	if (now - budget->since >= jiffies_per_second) {
		budget->since = now;
		budget->written = 0;
	}
	return budget->written++ < events_per_second;
}

static __always_inline void event_fill(struct event *event, struct __sk_buff *skb, const struct packet *packet,
				       enum verdict verdict)
{
	event->time = bpf_ktime_get_boot_ns();
	event->kind = verdict_is_drop(verdict) ? EVENT_DROP : EVENT_REJECT;
	event->verdict = verdict;
	event->hook = packet->hook;
	event->ifindex = skb->ifindex;
	event->source = packet->source;
	event->destination = packet->destination;
	event->source_port = packet->source_port;
	event->destination_port = packet->destination_port;
	event->protocol = packet->protocol;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
}

static __always_inline void event_refused(struct __sk_buff *skb, const struct packet *packet, enum verdict verdict)
{
	struct event *event;

	if (!(verdict_is_drop(verdict) || verdict_is_reject(verdict)) || !event_allowed())
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return;
	event_fill(event, skb, packet, verdict);
	bpf_ringbuf_submit(event, 0);
}
