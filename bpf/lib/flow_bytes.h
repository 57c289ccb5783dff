/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The bytes of each flow, where somebody asks for them (nearlb flows --bytes). Packets take the slow path meanwhile, which counts here: the fast
 * path asks nothing more, and packets that nobody asks for cost nothing. */
#pragma once

#include "flow_insert.h"
#include "maps.h"
#include "settings.h"

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
