/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the programs tell: counters, sampled events, and for nearlb trace what became of one packet. */
#pragma once

#include "config.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "types.h"

static __always_inline void count_verdict(enum hook hook, enum verdict verdict, __u32 length)
{
	__u32 index = hook * VERDICT_MAX + verdict;
	struct verdict_counter *counter = bpf_map_lookup_elem(&verdicts, &index);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += length;
}

static __always_inline void count_to_backend(__u32 backend, __u32 length)
{
	struct backend_counter *counter = bpf_map_lookup_elem(&backend_counters, &backend);

	if (!counter)
		return;
	counter->packets_to++;
	counter->bytes_to += length;
}

static __always_inline void count_from_backend(__u32 backend, __u32 length)
{
	struct backend_counter *counter = bpf_map_lookup_elem(&backend_counters, &backend);

	if (!counter)
		return;
	counter->packets_from++;
	counter->bytes_from += length;
}

static __always_inline void count_connection(__u32 service, __u32 backend)
{
	struct service_counter *of_service = bpf_map_lookup_elem(&service_counters, &service);
	struct backend_counter *of_backend = bpf_map_lookup_elem(&backend_counters, &backend);

	if (of_service)
		of_service->connections++;
	if (of_backend)
		of_backend->connections++;
}

/* A packet that a service did not get. */
static __always_inline void count_refused(__u32 service, enum verdict verdict)
{
	struct service_counter *counter = bpf_map_lookup_elem(&service_counters, &service);

	if (!counter)
		return;
	if (verdict_is_drop(verdict))
		counter->dropped++;
	else if (verdict_is_reject(verdict))
		counter->rejected++;
}

/* Drops and rejects reach the agent as events: a few a second of each processor. */

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

static __always_inline void event_fill(struct event *event, __u32 ifindex, const struct packet *packet,
				       enum verdict verdict)
{
	event->time = bpf_ktime_get_boot_ns();
	event->kind = verdict_is_drop(verdict) ? EVENT_DROP : EVENT_REJECT;
	event->verdict = verdict;
	event->hook = packet->hook;
	event->ifindex = ifindex;
	event->source = packet->source;
	event->destination = packet->destination;
	event->source_port = packet->source_port;
	event->destination_port = packet->destination_port;
	event->protocol = packet->protocol;
	__builtin_memset(event->pad, 0, sizeof(event->pad));
}

/* Room for an event, NULL: none is written. */
static __always_inline struct event *event_begin(enum verdict verdict)
{
	if (!(verdict_is_drop(verdict) || verdict_is_reject(verdict)) || !event_allowed())
		return NULL;
	return bpf_ringbuf_reserve(&events, sizeof(struct event), 0);
}

static __always_inline void event_refused(struct __sk_buff *skb, const struct packet *packet, enum verdict verdict)
{
	struct event *event = event_begin(verdict);

	if (!event)
		return;
	event_fill(event, skb->ifindex, packet, verdict);
	bpf_ringbuf_submit(event, 0);
}

/* What the programs do with a packet is written down where the knob trace_on is set. */

static __always_inline struct trace_result *trace_get(void)
{
	__u32 zero = 0;

	return trace_on ? bpf_map_lookup_elem(&trace, &zero) : NULL;
}

static __always_inline void trace_frontend(const struct record *record, enum side_index side)
{
	struct trace_result *result = trace_get();

	if (!result)
		return;
	result->frontend_found = 1;
	result->service = record->service;
	result->frontend = record->key;
	result->side = side;
}

/* Where a flow's packet goes. */
static __always_inline void trace_flow(const struct flow *flow)
{
	struct trace_result *result = trace_get();
	const struct settings *settings = settings_get();

	if (!result || !settings || flow->flags & FLOW_DIRECT)
		return;
	result->frontend_found = 1;
	result->service = flow->service;
	result->frontend.address = flow->frontend;
	result->frontend.port = flow->frontend_port;
	result->frontend.protocol = flow->protocol;
	result->backend_found = 1;
	result->backend = flow->backend;
	result->snat = flow->flags & (FLOW_HAIRPIN | FLOW_SNAT) ? 1 : 0;
	result->source = *flow_source(settings, flow, address_family(&flow->client));
}

static __always_inline void trace_verdict(enum verdict verdict)
{
	struct trace_result *result = trace_get();

	if (result)
		result->verdict = verdict;
}
