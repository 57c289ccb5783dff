/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The two entries of a flow whose source is translated: each is found by one direction. */
#pragma once

#include "flow.h"
#include "settings.h"

static __always_inline bool flow_is_twin(const struct flow *flow, const struct flow *of)
{
	return (flow_word(flow) & FLOW_PHASE_MASK) == FLOW_LIVE &&
	       flow_is_clients(flow, &of->client, of->other_port, of->protocol) && flow->other_port == of->port &&
	       (flow->flags ^ of->flags) == FLOW_ALIAS && flow->backend == of->backend &&
	       flow->generation == of->generation && flow->source == of->source &&
	       flow->frontend_port == of->frontend_port && address_equal(&flow->frontend, &of->frontend);
}

/* The address that the second of the two entries is kept under. */
static __always_inline const struct address *flow_alias_address(const struct settings *settings,
								const struct flow *flow)
{
	return flow->flags & FLOW_SNAT ? snat_address(settings, flow) : &flow->client;
}

/* NULL: evicted, or of is the only entry of its flow. */
static __always_inline struct flow *flow_twin(const struct settings *settings, const struct flow *of)
{
	const struct address *address = of->flags & FLOW_ALIAS ? &of->client : flow_alias_address(settings, of);
	struct flow_place place;

	if (!flow_has_twin(of) || !flow_find_place(&place, address, of->other_port, of->protocol, settings->seed))
		return NULL;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		struct flow *flow = flow_at(&place, flow_way(&place, i));

		if (flow_is_twin(flow, of))
			return flow;
	}
	return NULL;
}

/* Both entries live as long as packets come. */
static __always_inline void flow_note_twin(const struct settings *settings, const struct flow *of, __u32 add)
{
	struct flow *flow = flow_twin(settings, of);

	if (flow)
		flow_note(flow, flow_now(), add);
}
