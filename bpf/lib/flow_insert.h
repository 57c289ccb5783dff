/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Writing the flow table: which entry a new flow gets, and how writers that clash find each other. */
#pragma once

#include "flow.h"
#include "rewrite.h"

/* The table's room: which entry a new flow gets, free or another's. One of its homes if that is free and its block not nearly full; else one of
 * the block with more free entries; else the best that may be evicted; else, where both blocks are full of flows that nobody may evict, one of the
 * client that has most there. */

enum insert {
	INSERT_DONE = 0,
	INSERT_AGAIN,     /* another processor made the flow, or is about to: look once more */
	INSERT_PORT,      /* the source port is already used towards this server */
	INSERT_FULL,      /* no entry of its two blocks may be evicted */
	INSERT_SWEPT,     /* inside of an insertion: entries were freed, look for one again */
	INSERT_LEFT,      /* inside of an insertion: there are free entries, which are left to others */
	INSERT_EXHAUSTED, /* SNAT: every port of the range is used towards this server */
};

/* What may be evicted, best first; within a class the one that was idle longest. */
enum eviction {
	EVICT_NEVER = 0,
	EVICT_IDLE,
	EVICT_HELD,     /* ended, but keeps a port that its server remembers */
	EVICT_QUIET,    /* UDP */
	EVICT_DIRECT,   /* not translated: forgetting it harms nobody now */
	EVICT_ANSWERED, /* UDP whose client was not heard after the answer: it may never have been there */
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
	__u8 blocks;       /* of hash: FLOW_BLOCKS_OWN or FLOW_BLOCKS_PAIR */
	__u8 last;         /* not 0: there is no other place, others make room */
	__u8 others;       /* SNAT: how many other sources may be tried */
	__u8 looked;   /* not 0: flow_evict found nothing but for last, which is in made; FLOW_NONE: not even that */
	__u64 hash;    /* by which the entry is found */
	__u32 replace; /* number of the entry to take over; FLOW_NONE: choose one */
	union {
		__u32 replace_word; /* its word when it was judged */
		__u32 worth;        /* before that: of the port (snat_port_worth) */
	};
	union {
		__u32 made;      /* number of the claimed entry */
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

/* Writes the tag of an entry that is FLOW_WRITING by this writer. */
static __always_inline void flow_write_tag(__u32 at, __u8 tag)
{
	__u32 block = at / (FLOW_SETS * FLOW_WAYS);
	struct flow_block *tags = bpf_map_lookup_elem(&flow_tags, &block);

	if (tags)
		*flow_tag_of(tags, at) = tag;
}

/* Frees an entry that has this word, live or claimed. The tag goes while nobody else may write it. False: it is another flow's by now. */
static __always_inline bool flow_free(struct flow *flow, __u32 at, __u32 word)
{
	__u32 writing = flow_next_word(word, FLOW_WRITING);

	if (!flow_swap_word(flow, word, writing))
		return false;
	if (flow->seen & SEEN_COUNTED)
		load_leave(flow);
	flow_write_tag(at, 0);
	flow_show(flow, (writing & ~FLOW_PHASE_MASK) | FLOW_FREE);
	return true;
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
	if (seen_closed(seen) || flow_may_be_closed(flow, seen))
		return (__u64)EVICT_CLOSED << 32 | age;
	if (!seen_answered(flow->protocol, seen))
		return (__u64)EVICT_UNANSWERED << 32 | age;
	if (flow_is_answered(flow, seen))
		return (__u64)EVICT_ANSWERED << 32 | age;
	if (flow->flags == FLOW_DIRECT && flow->twin_port == flow->key_port)
		return (__u64)EVICT_DIRECT << 32 | age;
	if (flow->protocol == IPPROTO_UDP)
		return age > udp_active_seconds * jiffies_per_second ? (__u64)EVICT_QUIET << 32 | age : EVICT_NEVER;
	return age > flow_active_seconds * jiffies_per_second ? (__u64)EVICT_IDLE << 32 | age : EVICT_NEVER;
}

/* False: the entry has another word by now, or is being written. */
static __always_inline bool flow_take(struct insertion *in, __u32 at, __u32 word)
{
	struct flow *flow = flow_entry(at);

	if (!flow || (word & FLOW_PHASE_MASK) == FLOW_WRITING ||
	    !flow_swap_word(flow, word, flow_next_word(word, FLOW_WRITING)))
		return false;
	if (flow->seen & SEEN_COUNTED)
		load_leave(flow);
	in->made = at;
	in->made_word = flow_next_word(word, FLOW_CLAIMED);
	return true;
}

static __always_inline enum insert flow_take_judged(struct insertion *in, __u32 at, __u32 word)
{
	return flow_take(in, at, word) ? INSERT_DONE : INSERT_AGAIN;
}

/* How many entries of a block have this tag; 0: are free. What has ended counts as taken. A function of its own so that the verifier goes
 * through it once. */
__noinline int flow_count(__u64 hash, __u32 i, __u64 tag)
{
	__u32 block = flow_block(hash, i);
	const struct flow_block *tags = bpf_map_lookup_elem(&flow_tags, &block);
	__u64 sum = 0;

	if (!tags)
		return 0;
	for (__u32 set = 0; set < FLOW_SETS; set++)
		sum += flow_tags_equal(tags->sets[flow_set_in_block(0, set)], tag) >> 7;
	return sum * 0x0101010101010101ULL >> 56;
}

/* block: which of the hash's. */
static __always_inline bool flow_take_free(struct insertion *in, __u32 block)
{
	struct flow_cursor cursor = {};

	cursor.hash = in->hash;
	cursor.step = block * FLOW_SETS;
	cursor.end = cursor.step + FLOW_SETS;
	for (int i = 0; i < FLOW_WAYS; i++) {
		int at = flow_next(&cursor);
		struct flow *flow = at < 0 ? NULL : flow_entry(at);
		__u32 word;

		if (!flow)
			return false;
		word = flow_word(flow);
		if ((word & FLOW_PHASE_MASK) == FLOW_FREE && flow_take(in, at, word))
			return true;
	}
	return false;
}

/* The best of the entries to evict. */
struct flow_victim {
	__u64 eviction; /* flow_eviction, 0: there is none */
	__u32 at;
	__u32 word; /* when it was judged */
};

/* Judges an entry, and frees it if it has expired and sweep is not 0. A function of its own so that the verifier goes through it once. */
__noinline int flow_judge(struct flow_victim *victim, __u32 at, __u32 sweep)
{
	struct flow *flow = flow_entry(at);
	__u64 eviction;
	__u32 word;

	if (!flow || !victim)
		return 0;
	word = flow_word(flow);
	flow_barrier();
	eviction = flow_eviction(flow, word, flow_now());
	if (sweep && eviction >> 32 == EVICT_EXPIRED && flow_free(flow, at, word)) {
		word = flow_word(flow);
		eviction = (__u64)EVICT_FREE << 32;
	}
	if (eviction > victim->eviction) {
		victim->eviction = eviction;
		victim->at = at;
		victim->word = word;
	}
	return 0;
}

/* The tags say which of the homes are free: a read of another one's entry would be a miss of the cache. */
static __always_inline bool flow_take_home(struct insertion *in)
{
	__u32 block = flow_block(in->hash, 0);
	struct flow_block *tags = bpf_map_lookup_elem(&flow_tags, &block);

	if (!tags)
		return false;
	for (__u32 i = 0; i < FLOW_HOMES; i++) {
		__u32 at = flow_home(in->hash) ^ i;
		struct flow *flow;
		__u32 word;

		if (*flow_tag_of(tags, at))
			continue;
		flow = flow_entry(at);
		word = flow ? flow_word(flow) : FLOW_WRITING;
		if ((word & FLOW_PHASE_MASK) == FLOW_FREE && flow_take(in, at, word))
			return true;
	}
	return false;
}

/* Takes a home whose flow has expired. So the table does not fill with what has ended, nor do blocks overflow by that. */
static __always_inline bool flow_take_expired_home(struct insertion *in)
{
	struct flow_victim victim = {};

	for (__u32 i = 0; i < FLOW_HOMES; i++)
		flow_judge(&victim, flow_home(in->hash) ^ i, false);
	return victim.eviction >> 32 == EVICT_EXPIRED && flow_take(in, victim.at, victim.word);
}

#define FLOW_ROOMY  24 /* free entries of a block that make it good enough without a look at the others */
#define FLOW_MANY   8  /* entries of one address and port in its blocks that are many */
#define FLOW_SCARCE 4  /* free entries of a block below which those that have ended are looked for */

/* With fewer free entries in a block no home is taken there, and who has FLOW_MANY leaves them to others. */
#define FLOW_RESERVE 12

/* Whether this address and port must leave the last free entries to others, as one port may speak to very many frontends. A second entry is
 * exempt: it has no other place. */
static __always_inline bool flow_leaves(const struct insertion *in, __u32 free)
{
	__u64 tag = flow_tag(in->hash);

	return free < FLOW_RESERVE && !in->last && in->blocks == FLOW_BLOCKS_OWN && !(in->flow.flags & FLOW_ALIAS) &&
	       flow_count(in->hash, 0, tag) + flow_count(in->hash, 1, tag) >= FLOW_MANY;
}

/* Takes a free entry: a home, if searches look there (by pair they do not), and it is free, its block not nearly full, or has expired; else one of
 * the block that has most. INSERT_FULL: none has so many free ones as least, or others take what is. A function of its own for the sake of the stack. */
__noinline int flow_choose(struct insertion *in, __u32 least)
{
	__u32 free, other;
	__u32 block = 0;

	if (!in)
		return INSERT_FULL;
	free = flow_count(in->hash, 0, 0);
	if (in->blocks == FLOW_BLOCKS_OWN &&
	    ((free >= FLOW_RESERVE && flow_take_home(in)) || flow_take_expired_home(in)))
		return INSERT_DONE;
	for (__u32 i = 1; i < FLOW_BLOCKS_PAIR && i < in->blocks && free < FLOW_ROOMY; i++) {
		other = flow_count(in->hash, i, 0);
		if (other > free) {
			free = other;
			block = i;
		}
	}
	if (free < least)
		return INSERT_FULL;
	if (flow_leaves(in, free))
		return INSERT_LEFT;
	return flow_take_free(in, block) ? INSERT_DONE : INSERT_FULL;
}

/* Looks at the first set of one of a hash's blocks, and where sweep is not 0 at the others of it, for an entry that is better than
 * victim. What has expired is freed by a sweep: it makes room for the next flows as well. */
static __always_inline void flow_find_victim(struct flow_victim *victim, __u64 hash, __u32 i_block, __u32 sweep)
{
	__u32 block = flow_block(hash, i_block) * FLOW_SETS;
	__u32 count = sweep ? FLOW_SETS * FLOW_WAYS : FLOW_WAYS;

	for (__u32 i = 0; i < count; i++)
		flow_judge(victim, (block + flow_set_in_block(hash, i / FLOW_WAYS)) * FLOW_WAYS + i % FLOW_WAYS, sweep);
}

/* A block is a sample of the table. Where nothing in it may be evicted, the client with most entries in it loses its longest idle flow, if
 * it has at least this many, and two more than the new client. */
#define FLOW_BLOCK_SHARE 8

/* The same limit where the new client is off the node and the other is on it; higher, as a client off the node may have any number of
 * addresses. */
#define FLOW_NODE_SHARE 16

/* Clients that are counted together: so few that the counters are on the stack. */
#define FLOW_CLIENT_GROUPS 16

/* Whose the flows of a block are. */
struct flow_crowd {
	__u8 counts[FLOW_CLIENT_GROUPS];
	struct address client;     /* of most of the flows of the largest group */
	struct flow_victim victim; /* its flow that was idle longest; eviction is that time, and one */
	__u8 largest;              /* group */
	__u8 votes;
	__u8 count; /* of that client's flows */
	__u8 own;   /* of flows of the client that comes */
	__u8 side;  /* enum side_index: of the victim */
};

static __always_inline __u32 flow_client_group(const struct address *client, __u64 seed)
{
	return flow_hash(client, 0, 0, seed) >> 60;
}

static __always_inline const struct flow *flow_live(__u32 at)
{
	const struct flow *flow = flow_entry(at);

	return flow && (flow_word(flow) & FLOW_PHASE_MASK) == FLOW_LIVE ? flow : NULL;
}

/* The three looks at an entry, functions of their own so that the verifier goes through each once. */

/* Counts it in its client's group, and for the client that comes. */
__noinline int flow_count_client(struct flow_crowd *crowd, const struct insertion *in, __u32 at)
{
	const struct settings *settings = settings_get();
	const struct flow *flow = flow_live(at);
	__u32 group;

	if (!flow || !crowd || !in || !settings)
		return 0;
	crowd->own += address_equal(&flow->client, &in->flow.client);
	group = flow_client_group(&flow->client, settings->seed) & (FLOW_CLIENT_GROUPS - 1);
	crowd->counts[group]++;
	if (crowd->counts[group] > crowd->counts[crowd->largest & (FLOW_CLIENT_GROUPS - 1)])
		crowd->largest = group;
	return 0;
}

/* One step of Boyer's and Moore's majority vote over the largest group: at the end client is its majority, if there is one. */
__noinline int flow_vote(struct flow_crowd *crowd, __u32 at)
{
	const struct settings *settings = settings_get();
	const struct flow *flow = flow_live(at);

	if (!flow || !crowd || !settings || flow_client_group(&flow->client, settings->seed) != crowd->largest)
		return 0;
	if (!crowd->votes)
		crowd->client = flow->client;
	if (address_equal(&crowd->client, &flow->client))
		crowd->votes++;
	else
		crowd->votes--;
	return 0;
}

/* Weighs it if it is the elected client's. The word comes first: whoever takes the entry by it takes what was weighed. */
__noinline int flow_weigh(struct flow_crowd *crowd, __u32 at)
{
	const struct flow *flow = flow_entry(at);
	__u32 word;
	__u64 idle;

	if (!flow || !crowd)
		return 0;
	word = flow_word(flow);
	flow_barrier();
	if ((word & FLOW_PHASE_MASK) != FLOW_LIVE || !address_equal(&flow->client, &crowd->client))
		return 0;
	crowd->count++;
	idle = (__u64)flow_age(flow, flow_now()) + 1;
	if (idle <= crowd->victim.eviction)
		return 0;
	crowd->victim.eviction = idle;
	crowd->victim.at = at;
	crowd->victim.word = word;
	crowd->side = flow->side;
	return 0;
}

/* Whether a client with count entries gives one up: it has at least `least`, and at least two more than the new client. */
static __always_inline bool flow_has_surplus(const struct flow_crowd *crowd, __u32 count, __u32 least)
{
	return count >= least && count > crowd->own + 1u;
}

/* Takes an entry of the client that has most flows in the first block, if it has too many. A function of its own for the sake of the
 * stack. */
__noinline int flow_take_surplus(struct insertion *in)
{
	__u32 count = (flow_set_mask < FLOW_SETS ? flow_set_mask + 1 : FLOW_SETS) * FLOW_WAYS;
	struct flow_crowd crowd = {};
	bool outside;
	__u32 first;

	if (!in)
		return INSERT_FULL;
	first = flow_block(in->hash, 0) * FLOW_SETS * FLOW_WAYS;
	for (__u32 i = 0; i < FLOW_SETS * FLOW_WAYS && i < count; i++)
		flow_count_client(&crowd, in, first + i);
	if (!flow_has_surplus(&crowd, crowd.counts[crowd.largest & (FLOW_CLIENT_GROUPS - 1)], FLOW_BLOCK_SHARE))
		return INSERT_FULL;
	for (__u32 i = 0; i < FLOW_SETS * FLOW_WAYS && i < count; i++)
		flow_vote(&crowd, first + i);
	for (__u32 i = 0; i < FLOW_SETS * FLOW_WAYS && i < count; i++)
		flow_weigh(&crowd, first + i);
	outside = in->flow.side == SIDE_EXTERNAL && crowd.side == SIDE_INTERNAL;
	if (!flow_has_surplus(&crowd, crowd.count, outside ? FLOW_NODE_SHARE : FLOW_BLOCK_SHARE))
		return INSERT_FULL;
	return flow_take_judged(in, crowd.victim.at, crowd.victim.word);
}

/* Takes an entry that others keep. The first set alone is asked first: it mostly has one whose connection has ended, was never
 * answered, or was answered once. A function of its own for the sake of the stack. */
__noinline int flow_evict(struct insertion *in)
{
	struct flow_victim victim = {};

	if (!in)
		return INSERT_FULL;
	if (in->looked)
		return in->made == FLOW_NONE ? INSERT_FULL : flow_take_judged(in, in->made, in->made_word);
	flow_find_victim(&victim, in->hash, 0, false);
	if (victim.eviction >> 32 < EVICT_ANSWERED) {
		flow_find_victim(&victim, in->hash, 0, true);
		flow_find_victim(&victim, in->hash, 1, true);
		if (victim.eviction >> 32 == EVICT_FREE)
			return INSERT_SWEPT;
	}
	if (victim.eviction >> 32 >= (in->last ? EVICT_IDLE : EVICT_DIRECT))
		return flow_take_judged(in, victim.at, victim.word);
	in->looked = true;
	in->made = victim.eviction ? victim.at : FLOW_NONE;
	in->made_word = victim.word;
	return INSERT_FULL;
}

/* While there is another place, only what has ended, is unanswered, was answered once or is merely remembered makes room: INSERT_FULL. */
static __always_inline enum insert flow_make_room(struct insertion *in)
{
	enum insert result = flow_choose(in, in->last || in->blocks == FLOW_BLOCKS_PAIR ? 1 : FLOW_SCARCE);

	if (result == INSERT_LEFT || in->blocks == FLOW_BLOCKS_PAIR)
		return result == INSERT_DONE ? INSERT_DONE : INSERT_FULL;
	if (result == INSERT_FULL)
		result = flow_evict(in);
	if (result == INSERT_SWEPT) {
		result = flow_choose(in, 1);
		if (result == INSERT_DONE || !in->last)
			return result == INSERT_DONE ? INSERT_DONE : INSERT_FULL;
		return INSERT_AGAIN;
	}
	return result == INSERT_FULL && in->last && !(in->flow.flags & FLOW_DIRECT) ? flow_take_surplus(in) : result;
}

/* Two processors may insert clashing flows at once: each first shows its own entry (FLOW_CLAIMED), then looks for the other's; a full
 * barrier lies between, so at least one sees the other. A writer that was killed in between (the agent, carrying flows over) leaves an
 * entry that is nobody's: after a while it may be taken, so whoever publishes asks whether the entry still is its own. */

static __always_inline void flow_fill(struct flow *to, const struct flow *from, __u32 now)
{
	to->touched = now;
	to->seen = from->flags & FLOW_ALIAS ? from->seen & ~SEEN_COUNTED : from->seen;
	to->backend = from->backend;
	to->client = from->client;
	to->frontend = from->frontend;
	to->key_port = from->key_port;
	to->twin_port = from->twin_port;
	to->frontend_port = from->frontend_port;
	to->generation = from->generation;
	to->protocol = from->protocol;
	to->flags = from->flags;
	to->source = from->source;
	to->side = from->side;
	to->service = from->service;
	if (to->seen & SEEN_COUNTED)
		load_add(to->backend, 1);
}

/* Notes when an entry was made. Whoever reads it wants the entry's word to be the same afterwards. */
static __always_inline void flow_begin(__u32 at)
{
	__u32 index = at / FLOW_WAYS;
	struct flow_begun *begun = bpf_map_lookup_elem(&flow_begun, &index);

	if (begun)
		begun->ways[at & (FLOW_WAYS - 1)] = bpf_jiffies64() >> FLOW_BEGUN_SHIFT;
}

/* Has everybody look in the second block of a hash if this entry of it is there. Comes before the entry is shown, as flow_spill does. */
static __always_inline void flow_overflow(__u64 hash, __u32 at)
{
	__u32 block = flow_block(hash, 0);
	volatile __u64 *overflows;

	if (at / (FLOW_SETS * FLOW_WAYS) == block)
		return;
	overflows = flow_overflow_word(block);
	if (overflows && !(*overflows & flow_overflow_bit(block)))
		__sync_fetch_and_or(overflows, flow_overflow_bit(block));
}

/* Of one client to one frontend. */
static __always_inline bool flow_same_ends(const struct flow *flow, const struct flow *other)
{
	return flow->frontend_port == other->frontend_port && address_equal(&flow->frontend, &other->frontend) &&
	       address_equal(&flow->client, &other->client);
}

static __always_inline bool flow_same_key(const struct flow *flow, const struct flow *other)
{
	return !((flow->flags | other->flags) & FLOW_ALIAS) && flow->key_port == other->key_port &&
	       flow_same_ends(flow, other);
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
	return flow->flags & FLOW_ALIAS && flow->flags == other->flags && flow->key_port == other->key_port &&
	       flow->twin_port == other->twin_port && flow_same_ends(flow, other);
}

#define FLOW_SILENT_SECONDS 2 /* a SYN has come again by then, and an answer to one has had its own */

/* Nothing came of it yet, and nobody has been heard for so long that a port of SNAT is better another's, if there is no other: the client of a
 * forged SYN never is. */
static __always_inline bool flow_is_silent(const struct flow *flow, __u32 seen, __u32 now)
{
	__u32 seconds = flow->protocol == IPPROTO_UDP ? udp_active_seconds : FLOW_SILENT_SECONDS;

	return !seen_answered(flow->protocol, seen) && flow_age(flow, now) >= seconds * jiffies_per_second;
}

/* The entry has a port of SNAT, and its connection has ended, as far as can be seen, or never came to be. */
static __always_inline bool flow_leaves_port(const struct flow *flow, __u32 now)
{
	__u32 seen = flow->seen;

	return (flow->flags & FLOW_WIRE) == FLOW_WIRE &&
	       (seen_closed(seen) || flow_is_answered(flow, seen) || flow_is_silent(flow, seen, now));
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
	    (in->over && flow_leaves_port(flow, now)))
		return flow_free(flow, at, word) ? INSERT_DONE : INSERT_AGAIN;
	flow_barrier();
	if (flow_word(flow) != word)
		return INSERT_AGAIN; /* it was another flow's in part */
	return same_key ? INSERT_AGAIN : INSERT_PORT;
}

__noinline int flow_clash_round(struct flow_cursor *cursor, const struct insertion *in)
{
	for (int i = 0; i < FLOW_ROUND; i++) {
		int at = flow_next(cursor);
		int clash = at < 0 ? INSERT_DONE : flow_clash(in, at);

		if (at < 0 || clash != INSERT_DONE)
			return clash;
	}
	return FLOW_NEXT_ROUND;
}

/* How many entries a search that has just begun may find. A function of its own for the sake of the stack. */
__noinline int flow_count_tagged(const struct flow_cursor *cursor)
{
	__u32 count = 0;

	if (!cursor)
		return 0;
	for (__u32 i = 0; i < FLOW_BLOCKS_PAIR && i * FLOW_SETS < cursor->end; i++)
		count += flow_count(cursor->hash, i, cursor->tag);
	return count;
}

/* Entries that may clash are found by this hash, so they have its tag. A function of its own for the sake of the stack. */
__noinline int flow_find_clash(const struct insertion *in, __u64 hash, __u32 blocks)
{
	struct flow_cursor cursor = {};

	if (!in)
		return INSERT_DONE;
	flow_search_begin(&cursor, hash, blocks);
	if (flow_count_tagged(&cursor) <= (hash == in->hash)) /* by that hash its own entry is found, too */
		return INSERT_DONE;
	for (int i = 0; i < FLOW_ROUNDS; i++) {
		int clash = flow_clash_round(&cursor, in);

		if (clash != FLOW_NEXT_ROUND)
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
	flow_begin(in->made);
	flow_write_tag(in->made, flow_tag(in->hash));
	if (in->blocks == FLOW_BLOCKS_OWN)
		flow_overflow(in->hash, in->made);
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
