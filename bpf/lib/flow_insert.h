/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Writing the flow table. Two processors may insert clashing flows at once: each first shows its own entry (FLOW_CLAIMED),
 * then looks for the other's; a full barrier lies between, so at least one sees the other. A writer that was killed in between (the
 * agent, carrying flows over) leaves an entry that is nobody's: after a while it may be taken, so whoever publishes asks whether the
 * entry still is its own. */
#pragma once

#include "flow_room.h"

static __always_inline void flow_fill(struct flow *to, const struct flow *from, __u32 now)
{
	to->touched = now;
	to->seen = from->seen;
	to->backend = from->backend;
	to->client = from->client;
	to->frontend = from->frontend;
	to->port = from->port;
	to->other_port = from->other_port;
	to->frontend_port = from->frontend_port;
	to->generation = from->generation;
	to->protocol = from->protocol;
	to->flags = from->flags;
	to->source = from->source;
	to->side = from->side;
	to->service = from->service;
}

/* Of one client to one frontend. */
static __always_inline bool flow_same_ends(const struct flow *flow, const struct flow *other)
{
	return flow->frontend_port == other->frontend_port && address_equal(&flow->frontend, &other->frontend) &&
	       address_equal(&flow->client, &other->client);
}

static __always_inline bool flow_same_key(const struct flow *flow, const struct flow *other)
{
	return !((flow->flags | other->flags) & FLOW_ALIAS) && flow->port == other->port && flow_same_ends(flow, other);
}

/* A server takes both for packets of one host. */
static __always_inline bool flow_same_source(const struct flow *flow, const struct flow *other)
{
	if ((flow->flags ^ other->flags) & FLOW_SNAT)
		return false;
	return flow->flags & FLOW_SNAT ? flow->source == other->source : address_equal(&flow->client, &other->client);
}

static __always_inline bool flow_same_wire(const struct flow *flow, const struct insertion *in)
{
	return in->wire_port && flow_wire_port(flow) == in->wire_port && flow_same_source(flow, &in->flow) &&
	       flow_leads_to(flow, &in->to.destination, in->to.destination_port);
}

/* Nobody may use it: timed out, or its backend's id was handed on. */
static __always_inline bool flow_is_dead(const struct flow *flow, __u32 now)
{
	return flow_expired(flow, now) || (!(flow->flags & FLOW_DIRECT) && !flow_backend(flow));
}

/* The second entry of a flow that lost its first: the writer has shown a new first one, there is no other. */
static __always_inline bool flow_is_orphan(const struct flow *flow, const struct flow *other)
{
	return flow->flags & FLOW_ALIAS && flow->flags == other->flags && flow->port == other->port &&
	       flow->other_port == other->other_port && flow_same_ends(flow, other);
}

/* The entry has a port of SNAT, and its connection has ended. */
static __always_inline bool flow_leaves_port(const struct flow *flow)
{
	return (flow->flags & FLOW_WIRE) == FLOW_WIRE && seen_closed(flow->seen);
}

/* What an entry says to an insertion: INSERT_DONE nothing. A function of its own so that the verifier goes through it once. */
__noinline int flow_clash(const struct insertion *in, __u32 at)
{
	struct flow *flow = flow_entry(at);
	__u32 now = flow_now();
	__u32 word, phase;
	bool same_key;

	if (!flow || !in || at == in->made)
		return INSERT_DONE;
	word = flow_word(flow);
	phase = word & FLOW_PHASE_MASK;
	flow_barrier();
	if (phase < FLOW_CLAIMED || flow->protocol != in->flow.protocol)
		return INSERT_DONE;
	same_key = flow_same_key(flow, &in->flow);
	if (!same_key && !flow_same_wire(flow, in))
		return INSERT_DONE;
	if (phase == FLOW_CLAIMED && !flow_abandoned(flow, word, now))
		return INSERT_AGAIN;
	if (phase == FLOW_CLAIMED || flow_is_dead(flow, now) || flow_is_orphan(flow, &in->flow) ||
	    (in->over && flow_leaves_port(flow)))
		return flow_free(flow, at, word) ? INSERT_DONE : INSERT_AGAIN;
	flow_barrier();
	if (flow_word(flow) != word)
		return INSERT_AGAIN; /* it was another flow's in part */
	return same_key ? INSERT_AGAIN : INSERT_PORT;
}

/* Entries that may clash are found by this hash, so they have its tag. A function of its own for the sake of the stack. */
__noinline int flow_find_clash(const struct insertion *in, __u64 hash, __u32 blocks)
{
	struct flow_cursor cursor = {};

	if (!in)
		return INSERT_DONE;
	flow_search_begin(&cursor, hash, blocks);
	for (int i = 0; i < FLOW_CANDIDATES; i++) {
		int at = flow_next(&cursor);
		int clash = at < 0 ? INSERT_DONE : flow_clash(in, at);

		if (at < 0 || clash != INSERT_DONE)
			return clash;
	}
	return INSERT_DONE;
}

/* FLOW_LIVE shows an inserted flow to readers, FLOW_FREE takes it back. A full barrier on both sides. False: it was taken for abandoned. */
static __always_inline bool flow_publish(const struct insertion *in, enum flow_phase phase)
{
	struct flow *flow = flow_entry(in->made);

	if (!flow)
		return false;
	asm volatile("" ::: "memory");
	if (phase == FLOW_FREE)
		return flow_free(flow, in->made, in->made_word);
	return flow_swap_word(flow, in->made_word, (in->made_word & ~FLOW_PHASE_MASK) | phase);
}

/* The same by the other one of the two hashes that another entry with these ends may be found by. */
static __always_inline int flow_find_clash_apart(const struct insertion *in)
{
	__u64 seed = filter_seed();

	if (in->blocks == FLOW_BLOCKS_PAIR)
		return flow_find_clash(in, flow_own_hash(&in->flow, seed), FLOW_BLOCKS_OWN);
	return flow_find_clash(in, flow_own_pair_hash(&in->flow, seed), FLOW_BLOCKS_PAIR);
}

/* Writes the flow into the entry that was taken, shows it to other writers, and looks for theirs. A function of its own so that the
 * verifier goes through it once. */
__noinline int flow_write(const struct insertion *in)
{
	enum insert result;
	struct flow *flow;

	if (!in)
		return INSERT_FULL;
	flow = flow_entry(in->made);
	if (!flow)
		return INSERT_FULL;
	flow_fill(flow, &in->flow, flow_now());
	flow_write_tag(in->made, flow_tag(in->hash));
	flow_show(flow, in->made_word);
	result = flow_find_clash(in, in->hash, in->blocks);
	if (result == INSERT_DONE && !(in->flow.flags & FLOW_ALIAS) && flow_any_spilled())
		result = flow_find_clash_apart(in);
	if (result != INSERT_DONE)
		flow_publish(in, FLOW_FREE);
	return result;
}

/* Has everybody look for first entries by flow_pair_hash as well. Before such an entry is shown: whoever does not see this then has shown
 * its own, where the writer of this looks. */
static __always_inline void flow_spill(void)
{
	__u32 zero = 0;
	struct flow_spill *spill = bpf_map_lookup_elem(&flow_spills, &zero);

	if (spill && !*(volatile __u32 *)&spill->spilled)
		*(volatile __u32 *)&spill->spilled = 1;
}

/* INSERT_DONE: in->made has the flow, shown to other writers; flow_publish shows it to readers. */
static __always_inline enum insert flow_insert(struct insertion *in)
{
	enum insert result;

	if (in->replace == FLOW_NONE)
		result = flow_make_room(in);
	else
		result = flow_take(in, in->replace, in->replace_word) ? INSERT_DONE : INSERT_AGAIN;
	return result == INSERT_DONE ? flow_write(in) : result;
}
