/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Writes down what the programs do with a packet, where the knob trace_on is set. */
#pragma once

#include "config.h"
#include "maps.h"
#include "source.h"

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
