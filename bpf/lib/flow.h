/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reading the flow table: which entry a packet belongs to, what the entry has seen, and the second entry of a flow whose source
 * port or address is translated. */
#pragma once

#include "config.h"
#include "health.h"
#include "load.h"
#include "maps.h"
#include "packet.h"
#include "policy.h"
#include "settings.h"

#define FLOW_CLAIM  4 /* one in the claim counter of a flow's word */
#define FLOW_CLOSED (SEEN_CLIENT_FIN | SEEN_SERVER_FIN)

#define FLOW_NONE (~0u) /* no entry */

/* Addresses and ports that an entry is searched by. */
struct flow_ends {
	struct address client;
	struct address server; /* what the client takes for it (QUERY_FORWARD), or what sent the reply */
	__be16 client_port;
	__be16 server_port;
	__u8 protocol;
};

static __always_inline __u32 flow_word(const struct flow *flow)
{
	return *(volatile const __u32 *)&flow->word;
}

/* Keeps loads and stores on their side. On x86 only the compiler would move them; a BPF atomic that
 * fetches is a full barrier everywhere. */
static __always_inline void flow_barrier(void)
{
	__u32 fence = 0;

	if (weak_memory_order)
		fence = __sync_fetch_and_add(&fence, 0);
	asm volatile("" ::"r"(fence) : "memory");
}

static __always_inline __u32 flow_now(void)
{
	return bpf_jiffies64();
}

/* Jiffies since the last packet. Another processor may have read a later clock: that is no age. */
static __always_inline __u32 flow_age(const struct flow *flow, __u32 now)
{
	__u32 age = now - *(volatile const __u32 *)&flow->touched;

	return age > -jiffies_per_second ? 0 : age;
}

/* Both sides have sent their FIN. */
static __always_inline bool seen_fins(__u32 seen)
{
	return (seen & FLOW_CLOSED) == FLOW_CLOSED;
}

static __always_inline bool seen_closed(__u32 seen)
{
	return seen & SEEN_RESET || seen_fins(seen);
}

#define FLOW_HELD (FLOW_CLOSED | SEEN_SERVER_WAITS)
#define FLOW_WIRE (FLOW_SNAT | FLOW_ALIAS)

/* The entry keeps a port of SNAT that the server still remembers, though the connection has ended. One comparison, as the verifier goes
 * through this for each entry of a set. */
static __always_inline bool flow_holds_port(const struct flow *flow, __u32 seen)
{
	return (((seen & FLOW_HELD) << 8) | (flow->flags & FLOW_WIRE)) == (FLOW_HELD << 8 | FLOW_WIRE);
}

/* The client has closed a connection whose server answers it past this node: whether the server has closed, too, is not seen here. */
static __always_inline bool flow_may_be_closed(const struct flow *flow, __u32 seen)
{
	return seen & SEEN_CLIENT_FIN && (flow->flags & (FLOW_CARRY | FLOW_DSR)) == (FLOW_CARRY | FLOW_DSR);
}

/* As far as this node will see. */
static __always_inline bool flow_has_ended(const struct flow *flow, __u32 seen)
{
	return seen_closed(seen) || flow_may_be_closed(flow, seen);
}

/* Of UDP: a question that has its answer, or looks like one. Nothing but its source address says who asked. */
static __always_inline bool flow_is_answered(const struct flow *flow, __u32 seen)
{
	return flow->protocol == IPPROTO_UDP && (seen & (SEEN_REPLY | SEEN_WENT_ON | SEEN_ESTABLISHED)) == SEEN_REPLY;
}

static __always_inline __u32 flow_timeout(const struct flow *flow, __u32 seen)
{
	if (flow->protocol == IPPROTO_UDP)
		return seen & SEEN_ESTABLISHED ? udp_answered_timeout : udp_unanswered_timeout;
	if (seen_closed(seen))
		return flow_holds_port(flow, seen) ? tcp_held_timeout : tcp_closed_timeout;
	if (flow_may_be_closed(flow, seen))
		return udp_answered_timeout;
	return seen & SEEN_ESTABLISHED ? tcp_established_timeout : tcp_unanswered_timeout;
}

static __always_inline bool flow_expired(const struct flow *flow, __u32 now)
{
	return flow_age(flow, now) > flow_timeout(flow, flow->seen) * jiffies_per_second;
}

/* An entry's number is that of its set times FLOW_WAYS, and its way. */
static __always_inline struct flow *flow_entry(__u32 at)
{
	__u32 index = at / FLOW_WAYS;
	struct flow_set *set = bpf_map_lookup_elem(&flows, &index);

	if (!set)
		return NULL;
	asm volatile("" : "+r"(set)); /* what follows comes after the question, as the verifier wants it */
	return &set->ways[at & (FLOW_WAYS - 1)];
}

#define FLOW_HOMES 4 /* the i-th is flow_home ^ i: lines side by side */

/* The entry that a flow has where it is free, or else one of the other three beside it; then its packets read no tags. */
static __always_inline __u32 flow_home(__u64 hash)
{
	return (hash & flow_set_mask) * FLOW_WAYS + (hash >> 61);
}

static __always_inline __u64 flow_tag(__u64 hash)
{
	__u64 tag = (hash >> 47) & 0xff;

	return tag ? tag : 1;
}

/* The i-th of a hash's four blocks, which are four different ones in a table of as many. A table of less than eight sets is one smaller
 * block. */
static __always_inline __u32 flow_block(__u64 hash, __u32 i)
{
	__u64 block = hash / FLOW_SETS;

	if (i & 1)
		block ^= hash >> 29 | 1;
	if (i & 2)
		block ^= (hash >> 40 | 2) & ~1ULL;
	return block & (flow_set_mask / FLOW_SETS);
}

/* The sets of a block in the order of a search: the i-th. */
static __always_inline __u32 flow_set_in_block(__u64 hash, __u32 i)
{
	return (hash + i) & flow_set_mask & (FLOW_SETS - 1);
}

static __always_inline __u64 flow_tags_equal(__u64 tags, __u64 tag)
{
	__u64 x = tags ^ tag * 0x0101010101010101ULL;

	return ~(((x & 0x7f7f7f7f7f7f7f7fULL) + 0x7f7f7f7f7f7f7f7fULL) | x | 0x7f7f7f7f7f7f7f7fULL);
}

/* Where a block has the tag of an entry. */
static __always_inline volatile __u8 *flow_tag_of(struct flow_block *tags, __u32 at)
{
	return (volatile __u8 *)tags + (at & (FLOW_SETS * FLOW_WAYS - 1));
}

/* Not 0: some way of a set has the tag; the top bit of the lowest one's byte is set then, and of no byte below. */
static __always_inline __u64 flow_tags_found(__u64 tags, __u64 tag)
{
	__u64 x = tags ^ tag * 0x0101010101010101ULL;

	return (x - 0x0101010101010101ULL) & ~x & 0x8080808080808080ULL;
}

/* The sets of a block that have entries with this tag: a byte for each, 1 or 0. Without a branch, as the verifier goes both ways at each. */
static __always_inline __u64 flow_block_sets(const struct flow_block *tags, __u64 tag)
{
	__u64 sets = 0;

#pragma unroll
	for (int i = 0; i < FLOW_SETS; i++) {
		__u64 found = -(flow_tags_found(tags->sets[i], tag) >> 7);

		asm volatile("" : "+r"(found)); /* one after the other; and else the compiler makes a branch of it */
		sets |= found >> 63 << (8 * i);
	}
	return flow_set_mask < FLOW_SETS - 1 ? sets & ((1ULL << 8 * (flow_set_mask + 1)) - 1) : sets;
}

/* The block has an entry with the tag. */
static __always_inline bool flow_block_has(const struct flow_block *tags, __u64 tag)
{
	__u64 found = 0;

#pragma unroll
	for (int i = 0; i < FLOW_SETS; i++)
		found |= flow_tags_found(tags->sets[i], tag);
	return found;
}

/* A search for entries with a tag, in one or in several of a hash's blocks. */
struct flow_cursor {
	__u64 hash;
	__u64 tag;   /* flow_tag, or 0: free entries */
	__u64 match; /* ways of set that have it and were not handed out yet: the top bits of their bytes */
	__u32 set;   /* index */
	__u16 step;  /* the next of the sets: FLOW_SETS of the first block, then those of the second ... */
	__u16 end;   /* the last step, and one */
};

#define FLOW_BLOCKS_OWN  2 /* where the client's address and port alone say where an entry is */
#define FLOW_BLOCKS_PAIR 4 /* where those of its frontend do as well (flow_pair_hash) */
#define FLOW_STEPS       (FLOW_BLOCKS_PAIR * FLOW_SETS)
/* Of one call of flow_next: one for each block, as those without the tag are passed over, and as many again for sets that another processor
 * empties between the two looks at their tags. */
#define FLOW_TURNS (2 * FLOW_BLOCKS_PAIR)

#define FLOW_OVERFLOW_BITS (8 * sizeof(struct flow_overflow))

/* The word that has a block's bit, which is flow_overflow_bit; NULL: the kernel has no such element. */
static __always_inline volatile __u64 *flow_overflow_word(__u32 block)
{
	__u32 index = block / FLOW_OVERFLOW_BITS;
	struct flow_overflow *of = bpf_map_lookup_elem(&flow_overflows, &index);

	return of ? &of->blocks[block % FLOW_OVERFLOW_BITS / 64] : NULL;
}

static __always_inline __u64 flow_overflow_bit(__u32 block)
{
	return 1ULL << (block & 63);
}

/* In how many of a hash's blocks its entries may be: where the client's address and port alone say that, the second has none before the first
 * has overflowed. A function of its own for the sake of the stack. */
__noinline int flow_blocks_of(__u64 hash, __u32 blocks)
{
	__u32 block = flow_block(hash, 0);
	const volatile __u64 *overflows;

	if (blocks != FLOW_BLOCKS_OWN)
		return blocks;
	overflows = flow_overflow_word(block);
	return !overflows || *overflows & flow_overflow_bit(block) ? FLOW_BLOCKS_OWN : 1;
}

/* blocks: where a hash has as many, FLOW_BLOCKS_OWN or FLOW_BLOCKS_PAIR. */
static __always_inline void flow_search_begin(struct flow_cursor *cursor, __u64 hash, __u32 blocks)
{
	blocks = flow_blocks_of(hash, blocks);
	cursor->hash = hash;
	cursor->tag = flow_tag(hash);
	cursor->match = 0;
	cursor->set = 0;
	cursor->step = 0;
	cursor->end = blocks * FLOW_SETS;
}

/* Not 0: nothing is found by this hash where the client's address and port alone say where: a line of tags says so, before a search has to begin. A
 * function of its own so that the verifier goes through it once. */
__noinline int flow_is_absent(__u64 hash)
{
	__u32 block = flow_block(hash, 0);
	const struct flow_block *tags = bpf_map_lookup_elem(&flow_tags, &block);

	return tags && !flow_block_has(tags, flow_tag(hash)) && flow_blocks_of(hash, FLOW_BLOCKS_OWN) == 1;
}

/* flow_block_sets of the block of a search, in its order and without those that it has looked at. */
static __always_inline __u64 flow_block_rest(const struct flow_block *tags, const struct flow_cursor *cursor)
{
	__u64 sets = flow_block_sets(tags, cursor->tag);
	__u32 first = 8 * flow_set_in_block(cursor->hash, 0);

	sets = sets >> first | sets << (-first & 63);
	return sets & ~0ULL << 8 * (cursor->step % FLOW_SETS);
}

/* The number of the lowest byte that is 1, where the others are 1 or 0. */
static __always_inline __u32 flow_lowest(__u64 bytes)
{
	return (bytes & -bytes) * 0x0001020304050607ULL >> 56;
}

/* The ways that have the tag in the next of a block's sets where there are some. */
static __always_inline void flow_next_set(struct flow_cursor *cursor, const struct flow_block *tags, __u32 block)
{
	__u64 sets = flow_block_rest(tags, cursor);
	__u32 step = cursor->step & ~(FLOW_SETS - 1);
	__u32 i, set;

	if (!sets) {
		cursor->step = step + FLOW_SETS;
		return;
	}
	i = flow_lowest(sets);
	set = flow_set_in_block(cursor->hash, i);
	cursor->match = flow_tags_equal(tags->sets[set], cursor->tag);
	cursor->set = block * FLOW_SETS + set;
	cursor->step = step + i + 1;
}

/* Number of the next entry, below 0: there is none. A function of its own so that the verifier goes through it once. */
__noinline int flow_next(struct flow_cursor *cursor)
{
	const struct flow_block *tags;
	__u32 block;
	__u64 match;

	if (!cursor)
		return -1;
	for (int i = 0; i < FLOW_TURNS && !cursor->match && cursor->step < cursor->end; i++) {
		block = flow_block(cursor->hash, cursor->step / FLOW_SETS);
		tags = bpf_map_lookup_elem(&flow_tags, &block);
		if (!tags)
			return -1;
		flow_next_set(cursor, tags, block);
	}
	match = cursor->match;
	if (!match)
		return -1;
	cursor->match = match & (match - 1);
	return cursor->set * FLOW_WAYS + flow_lowest(match >> 7);
}

/* A search may find more entries than there is room for with one client's address, port and protocol. It looks at them in rounds, which are
 * functions of their own: the verifier goes through each turn of a round and each round, not through each of the entries. */
#define FLOW_ROUND      16
#define FLOW_ROUNDS     (FLOW_STEPS * FLOW_WAYS / FLOW_ROUND)
#define FLOW_NEXT_ROUND (-2) /* what a round returns that has not found what it was to, nor the end */

/* The flow has a second entry. */
static __always_inline bool flow_has_twin(const struct flow *flow)
{
	return flow->flags & FLOW_SNAT || flow->twin_port != flow->key_port;
}

/* Source port that the backend sees under this entry, 0 none: the other one of the two entries has it. */
static __always_inline __be16 flow_wire_port(const struct flow *flow)
{
	if (flow->flags & FLOW_CARRY)
		return 0; /* its node keeps ports apart */
	return flow->flags & FLOW_ALIAS || !flow_has_twin(flow) ? flow->key_port : 0;
}

static __always_inline bool flow_is_clients(const struct flow *flow, const struct address *client, __be16 port,
					    __u8 protocol)
{
	return flow->key_port == port && flow->protocol == protocol && address_equal(&flow->client, client);
}

/* Ends of a packet that a client sends. */
static __always_inline void flow_ends_forward(struct flow_ends *ends, const struct packet *packet)
{
	ends->client = packet->source;
	ends->server = packet->destination;
	ends->client_port = packet->source_port;
	ends->server_port = packet->destination_port;
	ends->protocol = packet->protocol;
}

static __always_inline void flow_ends_reply(struct flow_ends *ends, const struct packet *packet)
{
	ends->client = packet->destination;
	ends->server = packet->source;
	ends->client_port = packet->destination_port;
	ends->server_port = packet->source_port;
	ends->protocol = packet->protocol;
}

static __always_inline __u64 flow_ends_hash(const struct flow_ends *ends, __u64 seed)
{
	return flow_hash(&ends->client, ends->client_port, ends->protocol, seed);
}

static __always_inline __u64 flow_ends_pair_hash(const struct flow_ends *ends, __u64 seed)
{
	return flow_pair_hash(&ends->client, ends->client_port, &ends->server, ends->server_port, ends->protocol, seed);
}

/* A packet of the client towards what it takes for the server. */
static __always_inline bool flow_matches_forward(const struct flow *flow, const struct flow_ends *ends)
{
	return flow_is_clients(flow, &ends->client, ends->client_port, ends->protocol) &&
	       flow->frontend_port == ends->server_port && !(flow->flags & FLOW_ALIAS) &&
	       address_equal(&flow->frontend, &ends->server);
}

/* The backend that a flow may still use: its id was not handed to another endpoint since. */
static __always_inline const struct backend *flow_backend(const struct flow *flow)
{
	const struct backend *backend = backend_get(flow->backend);

	if (!backend || backend->generation != flow->generation || backend->state == BACKEND_FREE)
		return NULL;
	return backend;
}

/* The same where its packets are just sent on: not one that is gone (lost_find). */
static __always_inline const struct backend *flow_backend_stays(const struct flow *flow)
{
	const struct backend *backend = backend_get(flow->backend);

	if (!backend || backend->generation != flow->generation || !(backend->state & BACKEND_STAYS))
		return NULL;
	return backend;
}

/* The address and port that the flow's packets have at the server's side; false when that is nobody any more. */
static __always_inline bool flow_leads_to(const struct flow *flow, const struct address *address, __be16 port)
{
	const struct backend *backend;

	if (flow->flags & FLOW_DIRECT)
		return flow->frontend_port == port && address_equal(&flow->frontend, address);
	backend = flow_backend(flow);
	return backend && backend->port == port && address_equal(&backend->address, address);
}

/* A packet of the server towards the client, whose address it knows. */
static __always_inline bool flow_matches_reply(const struct flow *flow, const struct flow_ends *ends)
{
	return flow_is_clients(flow, &ends->client, ends->client_port, ends->protocol) && !(flow->flags & FLOW_SNAT) &&
	       flow_wire_port(flow) && flow_leads_to(flow, &ends->server, ends->server_port);
}

static __always_inline const struct address *snat_address(const struct settings *settings, const struct flow *flow)
{
	return &settings->sources[flow->source & (SOURCES_MAX - 1)];
}

/* A packet of the server towards the address of this node that it takes for the client's. */
static __always_inline bool flow_matches_snat_reply(const struct flow *flow, const struct settings *settings,
						    const struct flow_ends *ends)
{
	return flow->key_port == ends->client_port && flow->protocol == ends->protocol &&
	       (flow->flags & (FLOW_SNAT | FLOW_ALIAS)) == (FLOW_SNAT | FLOW_ALIAS) &&
	       address_equal(snat_address(settings, flow), &ends->client) &&
	       flow_leads_to(flow, &ends->server, ends->server_port);
}

/* The connection is of a socket of the host, whose peer is the frontend: a backend that did not answer it (host.h). */
static __always_inline bool flow_of_host(const struct flow *flow)
{
	return flow->flags & FLOW_SNAT && flow->side == SIDE_INTERNAL;
}

/* FLOW_DIRECT of a connection that this node's own opened, from a port that is a frontend's (host_opens): the flow's client is who answers. */
static __always_inline bool flow_of_opened(const struct flow *flow)
{
	return flow->flags == FLOW_DIRECT && flow->side == SIDE_EXTERNAL;
}

static __always_inline bool flow_matches_left(const struct flow *flow, const struct flow_ends *ends)
{
	return flow_matches_forward(flow, ends) && flow_of_host(flow);
}

enum flow_query_kind {
	QUERY_FORWARD = 0, /* of a packet of a client */
	QUERY_REPLY,       /* of a packet of a server; entries that have expired do not count */
	QUERY_SNAT_REPLY,  /* the same, to an address and a port that SNAT uses */
	QUERY_LEFT, /* of a packet of a server: the connection of a socket of the host that went from there to another one */
	QUERY_LATE, /* of an answer to a SYN that has no flow: the client's connection that left this server */
};

/* Which backends a connection's SYN went to before: a count, and the low bits of their ids. Another one with the same bits is passed over:
 * one of 1,024 that are not neighbours. */

static __always_inline __u32 tried_count(__u32 tried)
{
	return tried & ((1 << TRIED_COUNT_BITS) - 1);
}

static __always_inline __u32 tried_bits(__u32 id, __u32 i)
{
	return (id & ((1 << TRIED_ID_BITS) - 1)) << (TRIED_COUNT_BITS + i * TRIED_ID_BITS);
}

static __always_inline bool tried_has(__u32 tried, __u32 id)
{
	for (__u32 i = 0; i < TRIED_MAX - 1; i++) {
		if (i < tried_count(tried) && (tried & tried_bits(~0u, i)) == tried_bits(id, i))
			return true;
	}
	return false;
}

/* The last one is counted alone: nobody asks for it. */
static __always_inline __u32 tried_add(__u32 tried, __u32 id)
{
	__u32 count = tried_count(tried);

	return tried + 1 + (count < TRIED_MAX - 1 ? tried_bits(id, count) : 0);
}

/* The value of tried for a connection that went to one backend and must stay there: the highest count, and no ids. */
#define TRIED_STAYS TRIED_MAX

/* To which backends the connection went before. Of one that came through the tunnel the other node knows. */
static __always_inline __u32 flow_tried(const struct flow *flow)
{
	return flow->flags & FLOW_CARRIED ? 0 : flow->seen >> TRIED_SHIFT & ((1u << TRIED_BITS) - 1);
}

/* Another backend may answer it yet. */
static __always_inline bool flow_has_left(const struct flow *flow)
{
	return flow->flags & FLOW_CARRIED ? flow->seen & CARRIED_LEFT : flow_tried(flow) > TRIED_STAYS;
}

/* The connection of a client off the node went to another server, as one did not answer in time. It does not tell which. */
static __always_inline bool flow_matches_late(const struct flow *flow, const struct flow_ends *ends)
{
	return flow_is_clients(flow, &ends->client, ends->client_port, ends->protocol) &&
	       !(flow->flags & (FLOW_ALIAS | FLOW_DIRECT)) && flow->side == SIDE_EXTERNAL && flow_has_left(flow);
}

/* A search for the entry of a packet. */
struct flow_query {
	struct flow_ends ends;
	__u16 kind;                /* enum flow_query_kind */
	__u16 blocks;              /* to search: FLOW_BLOCKS_OWN or FLOW_BLOCKS_PAIR */
	__u32 word;                /* of the entry that was found, when it was */
	__u64 hash;                /* by which the entry is searched */
	struct flow_cursor cursor; /* of the search; here for the sake of the stack */
};

/* Not 0: this is the entry; its word is in the query. A function of its own so that the verifier goes through it once. */
__noinline int flow_answers(struct flow_query *query, __u32 at)
{
	const struct settings *settings = settings_get();
	const struct flow *flow = flow_entry(at);

	if (!flow || !query || !settings)
		return false;
	query->word = flow_word(flow);
	flow_barrier();
	if ((query->word & FLOW_PHASE_MASK) != FLOW_LIVE)
		return false;
	if (query->kind == QUERY_FORWARD)
		return flow_matches_forward(flow, &query->ends);
	if (query->kind == QUERY_LATE) {
		if (!flow_matches_late(flow, &query->ends))
			return false;
	} else if (query->kind == QUERY_LEFT) {
		if (!flow_matches_left(flow, &query->ends))
			return false;
	} else if (query->kind == QUERY_REPLY ? !flow_matches_reply(flow, &query->ends)
					      : !flow_matches_snat_reply(flow, settings, &query->ends)) {
		return false;
	}
	return !flow_expired(flow, flow_now());
}

/* One round. A function of its own so that the verifier goes through it once, as the others of the kind. */
__noinline int flow_search_round(struct flow_query *query)
{
	if (!query)
		return -1;
	for (int i = 0; i < FLOW_ROUND; i++) {
		int at = flow_next(&query->cursor);

		if (at < 0 || flow_answers(query, at))
			return at;
	}
	return FLOW_NEXT_ROUND;
}

/* Number of the entry, below 0: there is none. It may be another flow's by now: then its word is another. A function of its own so
 * that the verifier goes through it once. */
__noinline int flow_look(struct flow_query *query)
{
	if (!query)
		return -1;
	flow_search_begin(&query->cursor, query->hash, query->blocks);
	for (int i = 0; i < FLOW_ROUNDS; i++) {
		int at = flow_search_round(query);

		if (at != FLOW_NEXT_ROUND)
			return at;
	}
	return -1;
}

/* The same of what most probably is not there. */
static __always_inline int flow_search(struct flow_query *query)
{
	return query->blocks == FLOW_BLOCKS_OWN && flow_is_absent(query->hash) ? -1 : flow_look(query);
}

static __always_inline bool flow_any_spilled(void)
{
	__u32 zero = 0;
	const struct flow_spill *spill = bpf_map_lookup_elem(&flow_spills, &zero);

	return spill && *(volatile const __u32 *)&spill->spilled;
}

/* Whoever closed first has the last word: the other one forgets the connection with it. The entry has no room for sequence numbers: an
 * acknowledgment that was on its way as the server's FIN went by passes for that word, a round trip too soon. */
static __always_inline __u32 seen_last(const struct packet *packet, __u32 seen)
{
	return seen_fins(seen) && !(packet->tcp_flags & TCP_FIN) ? SEEN_CLIENT_WAITS : 0;
}

/* What a packet of the client adds to what the flow has seen. */
static __always_inline __u32 seen_from_client(const struct packet *packet, __u32 seen)
{
	__u32 add = 0;

	if (packet->protocol == IPPROTO_UDP)
		return (seen & SEEN_REPLY) * SEEN_WENT_ON;
	if (packet->tcp_flags & TCP_FIN)
		add |= SEEN_CLIENT_FIN;
	if (packet->tcp_flags & TCP_RST)
		add |= SEEN_RESET;
	if ((packet->tcp_flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK && seen & SEEN_REPLY)
		add |= SEEN_ESTABLISHED | seen_last(packet, seen);
	return add;
}

/* Who has sent its FIN and gets the other's only then keeps the connection: a server that had none of the client before its own, or
 * that goes on after both. */
static __always_inline __u32 seen_wait(const struct packet *packet, __u32 seen)
{
	if (packet->tcp_flags & TCP_FIN)
		return seen & SEEN_CLIENT_FIN ? 0 : SEEN_SERVER_WAITS;
	return seen_fins(seen) && !(packet->tcp_flags & TCP_RST) ? SEEN_SERVER_WAITS : 0;
}

/* Of a reset: it answers a SYN if it is the first that comes, and acknowledges (RFC 9293 3.10.7.1). Without a branch, as the verifier goes
 * through this in every program. */
static __always_inline __u32 seen_refusal(const struct packet *packet, __u32 seen)
{
	return packet->tcp_flags / TCP_ACK * (~seen & SEEN_REPLY) * SEEN_REFUSED & SEEN_REFUSED;
}

static __always_inline __u32 seen_from_server(const struct packet *packet, __u32 seen)
{
	__u32 add = SEEN_REPLY;

	if (packet->protocol == IPPROTO_UDP)
		return add;
	if (!(packet->tcp_flags & (TCP_SYN | TCP_RST)))
		add |= SEEN_ESTABLISHED;
	if (packet->tcp_flags & TCP_FIN)
		add |= SEEN_SERVER_FIN;
	if (packet->tcp_flags & TCP_RST)
		add |= SEEN_RESET | seen_refusal(packet, seen);
	return add | seen_wait(packet, seen);
}

/* A reset outside the window ends nothing, and the entry has no room for sequence numbers: whoever goes on after it takes it back. */
static __always_inline __u32 seen_after(__u32 seen, __u32 add)
{
	return (seen | add) & ~((add & SEEN_ESTABLISHED) / SEEN_ESTABLISHED * SEEN_RESET);
}

/* The server's first answer, by this entry of the flow. */
static __always_inline void flow_answered(const struct flow *flow, __u32 add)
{
	health_answered(flow->backend);
	if (flow->protocol == IPPROTO_TCP && !(add & SEEN_RESET))
		syn_answered(flow);
}

static __always_inline void flow_note_seen(struct flow *flow, __u32 seen, __u32 add)
{
	if (add & ~seen)
		__sync_fetch_and_or(&flow->seen, add);
	if (add & ~seen & SEEN_REPLY)
		flow_answered(flow, add);
	if (add & SEEN_ESTABLISHED && seen & SEEN_RESET)
		__sync_fetch_and_and(&flow->seen, ~SEEN_RESET);
	if (seen & SEEN_COUNTED && flow_has_ended(flow, seen_after(seen, add)))
		load_leave(flow);
}

/* Says when the flow's last packet came. Written once a second at most: so UDP that comes here, and was answered before (seen: what the flow has
 * seen before the packet), is no question that has its answer. */
static __always_inline void flow_touch_after(struct flow *flow, __u32 now, __u32 seen)
{
	if (flow_age(flow, now) < jiffies_per_second)
		return;
	if (flow->protocol == IPPROTO_UDP && (seen & (SEEN_REPLY | SEEN_ESTABLISHED)) == SEEN_REPLY)
		__sync_fetch_and_or(&flow->seen, SEEN_ESTABLISHED);
	*(volatile __u32 *)&flow->touched = now;
}

/* The same of a packet that teaches the flow nothing. */
static __always_inline void flow_touch(struct flow *flow, __u32 now)
{
	flow_touch_after(flow, now, *(volatile const __u32 *)&flow->seen);
}

/* Both writes are rare, so that an established connection's cache line stays shared between processors. */
static __always_inline void flow_note(struct flow *flow, __u32 now, __u32 add)
{
	__u32 seen = flow->seen;

	if (seen_after(seen, add) != seen)
		flow_note_seen(flow, seen, add);
	flow_touch_after(flow, now, seen);
}

/* A SYN goes on with the entry: the FINs were another connection's. */
static __always_inline void flow_reopen(struct flow *flow)
{
	if (flow->seen & FLOW_HELD)
		__sync_fetch_and_and(&flow->seen, ~FLOW_HELD);
}

/* FLOW_CARRIED: number of the node that the connection came from. */
static __always_inline __u16 flow_carried_by(const struct flow *flow)
{
	return flow->seen >> CARRIED_NODE_SHIFT;
}

/* The connection comes by this node, and did not try others. */
static __always_inline void flow_uncarry(struct flow *flow)
{
	*(volatile __u8 *)&flow->flags &= (__u8) ~(FLOW_CARRIED | FLOW_DSR);
	__sync_fetch_and_and(&flow->seen, SEEN_UNCARRIED);
}

/* The address that the server takes for its client's. */
static __always_inline const struct address *flow_source(const struct settings *settings, const struct flow *flow,
							 __u8 family)
{
	if (flow->flags & FLOW_HAIRPIN)
		return hairpin_address(settings, family);
	if (flow->flags & FLOW_SNAT)
		return snat_address(settings, flow);
	return &flow->client;
}

/* Of a flow's first entry: where it is, and where it is when there is no room. */
static __always_inline __u64 flow_own_hash(const struct flow *flow, __u64 seed)
{
	return flow_hash(&flow->client, flow->key_port, flow->protocol, seed);
}

static __always_inline __u64 flow_own_pair_hash(const struct flow *flow, __u64 seed)
{
	return flow_pair_hash(&flow->client, flow->key_port, &flow->frontend, flow->frontend_port, flow->protocol,
			      seed);
}

/* The two entries of a flow whose source is translated: each is found by one direction. */

/* Not 0: this is the other entry. A function of its own so that the verifier goes through it once. */
__noinline int flow_is_twin(const struct flow *of, __u32 at)
{
	const struct flow *flow = flow_entry(at);

	return flow && of && (flow_word(flow) & FLOW_PHASE_MASK) == FLOW_LIVE &&
	       flow_is_clients(flow, &of->client, of->twin_port, of->protocol) && flow->twin_port == of->key_port &&
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

__noinline int flow_twin_round(struct flow_cursor *cursor, const struct flow *of)
{
	for (int i = 0; i < FLOW_ROUND; i++) {
		int at = flow_next(cursor);

		if (at < 0 || flow_is_twin(of, at))
			return at;
	}
	return FLOW_NEXT_ROUND;
}

/* Number of the other entry where it would best be, as most are; below 0: it is not there. A function of its own so that the verifier goes
 * through it once. */
__noinline int flow_twin_home(const struct flow *of, __u64 hash)
{
	for (__u32 i = 0; i < FLOW_HOMES; i++) {
		if (flow_is_twin(of, flow_home(hash) ^ i))
			return flow_home(hash) ^ i;
	}
	return -1;
}

/* Number of the other entry, below 0: there is none. A function of its own for the sake of the stack. */
__noinline int flow_twin_find(const struct flow *of, __u64 hash, __u32 blocks)
{
	struct flow_cursor cursor = {};

	flow_search_begin(&cursor, hash, blocks);
	for (int i = 0; i < FLOW_ROUNDS; i++) {
		int at = flow_twin_round(&cursor, of);

		if (at != FLOW_NEXT_ROUND)
			return at;
	}
	return -1;
}

/* Below 0: evicted, or of is the only entry of its flow. */
static __always_inline int flow_twin_at(const struct settings *settings, const struct flow *of)
{
	const struct address *address = of->flags & FLOW_ALIAS ? &of->client : flow_alias_address(settings, of);
	__u64 hash;
	int at;

	if (!flow_has_twin(of))
		return -1;
	hash = flow_hash(address, of->twin_port, of->protocol, settings->seed);
	at = flow_twin_home(of, hash);
	if (at < 0)
		at = flow_twin_find(of, hash, FLOW_BLOCKS_OWN);
	if (at < 0 && of->flags & FLOW_ALIAS && flow_any_spilled())
		at = flow_twin_find(of,
				    flow_pair_hash(&of->client, of->twin_port, &of->frontend, of->frontend_port,
						   of->protocol, settings->seed),
				    FLOW_BLOCKS_PAIR);
	return at;
}

static __always_inline struct flow *flow_twin(const struct settings *settings, const struct flow *of)
{
	int at = flow_twin_at(settings, of);

	return at < 0 ? NULL : flow_entry(at);
}

/* Both entries live as long as packets come. A SYN goes on with both: the FINs that they have seen were another connection's. A
 * function of its own for the sake of the stack. */
__noinline int flow_note_twin(const struct flow *of, __u32 add, int opens)
{
	const struct settings *settings = settings_get();
	struct flow *flow = of && settings ? flow_twin(settings, of) : NULL;

	if (!flow)
		return 0;
	flow_note(flow, flow_now(), add);
	if (opens)
		flow_reopen(flow);
	return 0;
}
