/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the programs tell: counters, the bytes of flows, sampled events, and for nearlb trace what became of one packet. */
#pragma once

#include "config.h"
#include "flow.h"
#include "flow_insert.h"
#include "maps.h"
#include "packet.h"
#include "settings.h"
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

/* The bytes of each flow, where somebody asks for them (nearlb flows --bytes). Packets take the slow path meanwhile, which counts here: the fast
 * path asks nothing more, and packets that nobody asks for cost nothing. */

static __always_inline bool flows_are_counted(const struct settings *settings)
{
	return settings_routed(settings) & ROUTED_FLOWS_COUNTED;
}

/* True: somebody has asked of late. Else it is ended here, as the agent that began it may be gone. */
static __always_inline bool flow_counting_goes_on(void)
{
	__u32 zero = 0;
	const struct flow_spill *table = bpf_map_lookup_elem(&flow_spills, &zero);
	struct settings *settings = bpf_map_lookup_elem(&config, &zero);

	if (!table || !settings)
		return false;
	if ((__s32)(flow_now() - *(volatile const __u32 *)&table->counted_until) < 0)
		return true;
	__sync_fetch_and_and(settings_modes(settings), ~(ROUTED_FLOWS_COUNTED << MODES_ROUTED_SHIFT));
	return false;
}

/* Adds a packet to the entry's row. Where the table is full, an entry has none. A function of its own so that the verifier goes through it
 * once. */
__noinline int flow_add_bytes(__u32 at, __u32 word, __u32 sent, __u32 received)
{
	struct flow_bytes first = { .word = word, .sent = sent, .received = received };
	struct flow_bytes *row;

	if (!flow_counting_goes_on())
		return 0;
	row = bpf_map_lookup_elem(&flow_bytes, &at);
	if (!row) {
		if (!bpf_map_update_elem(&flow_bytes, &at, &first, BPF_NOEXIST))
			return 0;
		row = bpf_map_lookup_elem(&flow_bytes, &at); /* another processor was first */
	}
	if (!row)
		return 0;
	if (row->word != word) {
		bpf_map_update_elem(&flow_bytes, &at, &first, BPF_ANY);
		return 0;
	}
	__sync_fetch_and_add(&row->sent, sent);
	__sync_fetch_and_add(&row->received, received);
	return 0;
}

/* A packet of a client, by a flow's entry and its word. */
static __always_inline void flow_count_sent(const struct settings *settings, __u32 at, __u32 word, __u32 length)
{
	if (flows_are_counted(settings))
		flow_add_bytes(at, word, length, 0);
}

/* A packet of a server. */
static __always_inline void flow_count_received(const struct settings *settings, __u32 at, __u32 word, __u32 length)
{
	if (flows_are_counted(settings))
		flow_add_bytes(at, word, 0, length);
}

/* The first packet of a flow that was inserted. */
static __always_inline void flow_count_first(const struct settings *settings, const struct insertion *in, __u32 length)
{
	flow_count_sent(settings, in->made, (in->made_word & ~FLOW_PHASE_MASK) | FLOW_LIVE, length);
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
