/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Writing the flow table. Two processors may insert clashing flows at once: each first shows its own entry (FLOW_CLAIMED),
 * then looks for the other's; a full barrier lies between, so at least one sees the other. A writer that was killed in between (the
 * agent, carrying flows over) leaves an entry that is nobody's: after a while it may be taken, so whoever publishes asks whether the
 * entry still is its own. */
#pragma once

#include "flow.h"
#include "rewrite.h"

enum insert {
	INSERT_DONE = 0,
	INSERT_AGAIN,     /* another processor made the flow, or is about to: look once more */
	INSERT_PORT,      /* the source port is already used towards this server */
	INSERT_FULL,      /* no entry of the set may be evicted */
	INSERT_EXHAUSTED, /* SNAT: every port of the range is used towards this server */
};

/* What may be evicted, best first; within a class the one that was idle longest. */
enum eviction {
	EVICT_NEVER = 0,
	EVICT_IDLE,
	EVICT_HELD,   /* ended, but keeps a port that its server remembers */
	EVICT_QUIET,  /* UDP */
	EVICT_DIRECT, /* not translated: forgetting it harms nobody now */
	EVICT_UNANSWERED,
	EVICT_CLOSED,
	EVICT_EXPIRED,
	EVICT_FREE,
};

/* A flow that is to be inserted. */
struct insertion {
	struct flow flow;
	struct rewrite to; /* where its packets go: of the writer, destination and its port alone are asked for here */
	__be16 wire_port;  /* source port that the server sees under this entry, 0 none */
	bool over;         /* takes that port from an entry whose connection has ended */
	__u32 set;         /* index of the set */
	__u32 start;       /* of the search in it */
	__u32 replace;     /* way to take over; FLOW_WAYS: choose one */
	union {
		__u32 replace_word; /* its word when it was judged */
		__u32 worth;        /* before that: of the port (snat_port_worth) */
	};
	union {
		__u32 made;      /* the claimed way */
		__u32 candidate; /* before that: number of the port */
	};
	__u32 made_word; /* its word while FLOW_CLAIMED */
};

static __always_inline __u32 flow_next_word(__u32 word, enum flow_phase phase)
{
	return ((word & ~FLOW_PHASE_MASK) + FLOW_CLAIM) | phase;
}

static __always_inline bool flow_swap_word(struct flow *flow, __u32 from, __u32 to)
{
	return __sync_val_compare_and_swap(&flow->word, from, to) == from;
}

#define CLAIM_SECONDS 3 /* a writer that shows its entry has long finished */

/* The writer of this claimed entry is no more. Its time is that of the flow's last packet, so an entry that is carried over may be taken
 * sooner: that writer looks again. */
static __always_inline bool flow_abandoned(const struct flow *flow, __u32 word, __u32 now)
{
	return (word & FLOW_PHASE_MASK) == FLOW_CLAIMED && flow_age(flow, now) > CLAIM_SECONDS * jiffies_per_second;
}

/* Ends FLOW_WRITING: nobody else touches such an entry. A full barrier on both sides. */
static __always_inline void flow_show(struct flow *flow, __u32 claimed)
{
	asm volatile("" ::: "memory");
	__sync_lock_test_and_set(&flow->word, claimed);
}

/* Ends FLOW_CLAIMED. A full barrier on both sides. False: the entry is another writer's by now. */
static __always_inline bool flow_set_phase(struct flow *flow, __u32 claimed, enum flow_phase phase)
{
	asm volatile("" ::: "memory");
	return flow_swap_word(flow, claimed, (claimed & ~FLOW_PHASE_MASK) | phase);
}

static __always_inline bool seen_answered(__u8 protocol, __u32 seen)
{
	return seen & (protocol == IPPROTO_UDP ? SEEN_REPLY : SEEN_ESTABLISHED);
}

/* enum eviction in the upper half, age below. */
static __always_inline __u64 flow_eviction(const struct flow *flow, __u32 word, __u32 now)
{
	__u32 phase = word & FLOW_PHASE_MASK;
	__u64 age = flow_age(flow, now);
	__u32 seen = flow->seen;

	if (phase == FLOW_FREE)
		return (__u64)EVICT_FREE << 32;
	if (phase != FLOW_LIVE && !flow_abandoned(flow, word, now))
		return EVICT_NEVER;
	if (phase != FLOW_LIVE || flow_expired(flow, now))
		return (__u64)EVICT_EXPIRED << 32 | age;
	if (flow_holds_port(flow, seen))
		return (__u64)EVICT_HELD << 32 | age;
	if (seen_closed(seen))
		return (__u64)EVICT_CLOSED << 32 | age;
	if (!seen_answered(flow->protocol, seen))
		return (__u64)EVICT_UNANSWERED << 32 | age;
	if (flow->flags == FLOW_DIRECT && flow->other_port == flow->port)
		return (__u64)EVICT_DIRECT << 32 | age;
	if (flow->protocol == IPPROTO_UDP)
		return age > udp_active_seconds * jiffies_per_second ? (__u64)EVICT_QUIET << 32 | age : EVICT_NEVER;
	return age > flow_active_seconds * jiffies_per_second ? (__u64)EVICT_IDLE << 32 | age : EVICT_NEVER;
}

/* The way to take, FLOW_WAYS none; word: what it was judged by. */
static __always_inline __u32 flow_victim(const struct flow_place *place, __u32 now, __u32 *word)
{
	__u32 best = FLOW_WAYS;
	__u64 best_eviction = 0;

	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		__u32 way = flow_way(place, i);
		struct flow *flow = flow_at(place, way);
		__u32 seen_word = flow_word(flow);
		__u64 eviction;

		flow_barrier();
		eviction = flow_eviction(flow, seen_word, now);
		if (eviction > best_eviction) {
			best_eviction = eviction;
			best = way;
			*word = seen_word;
		}
		if (eviction == (__u64)EVICT_FREE << 32)
			break;
	}
	return best;
}

static __always_inline enum insert flow_claim(const struct flow_place *place, struct insertion *in, __u32 now)
{
	__u32 word = in->replace_word;

	in->made = in->replace;
	if (in->made >= FLOW_WAYS)
		in->made = flow_victim(place, now, &word);
	if (in->made >= FLOW_WAYS)
		return INSERT_FULL;
	if (!flow_swap_word(flow_at(place, in->made), word, flow_next_word(word, FLOW_WRITING)))
		return INSERT_AGAIN;
	in->made_word = flow_next_word(word, FLOW_CLAIMED);
	return INSERT_DONE;
}

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

static __always_inline enum insert flow_clash(struct flow *flow, const struct insertion *in, __u32 now)
{
	__u32 word = flow_word(flow);
	__u32 phase = word & FLOW_PHASE_MASK;
	bool same_key;

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
		return flow_swap_word(flow, word, flow_next_word(word, FLOW_FREE)) ? INSERT_DONE : INSERT_AGAIN;
	flow_barrier();
	if (flow_word(flow) != word)
		return INSERT_AGAIN; /* it was another flow's in part */
	return same_key ? INSERT_AGAIN : INSERT_PORT;
}

static __always_inline enum insert flow_find_clash(const struct flow_place *place, const struct insertion *in,
						   __u32 now)
{
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		__u32 way = flow_way(place, i);
		enum insert clash;

		if (way == in->made)
			continue;
		clash = flow_clash(flow_at(place, way), in, now);
		if (clash != INSERT_DONE)
			return clash;
	}
	return INSERT_DONE;
}

static __always_inline bool flow_insertion_place(struct flow_place *place, const struct insertion *in)
{
	place->index = in->set;
	place->start = in->start;
	place->set = bpf_map_lookup_elem(&flows, &place->index);
	return place->set;
}

/* INSERT_DONE: in->made has the flow, shown to other writers; flow_publish shows it to readers.
 * A function of its own so that the verifier goes through it once. */
__noinline int flow_insert(struct insertion *in)
{
	__u32 now = flow_now();
	struct flow_place place;
	enum insert result;

	if (!in || !flow_insertion_place(&place, in))
		return INSERT_FULL;
	result = flow_claim(&place, in, now);
	if (result != INSERT_DONE)
		return result;
	flow_fill(flow_at(&place, in->made), &in->flow, now);
	flow_show(flow_at(&place, in->made), in->made_word);
	result = flow_find_clash(&place, in, now);
	if (result != INSERT_DONE)
		flow_set_phase(flow_at(&place, in->made), in->made_word, FLOW_FREE);
	return result;
}

/* FLOW_LIVE shows an inserted flow to readers, FLOW_FREE takes it back. False: it was taken for abandoned. */
static __always_inline bool flow_publish(const struct insertion *in, enum flow_phase phase)
{
	struct flow_place place;

	return flow_insertion_place(&place, in) && flow_set_phase(flow_at(&place, in->made), in->made_word, phase);
}
