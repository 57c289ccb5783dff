/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reading the flow table: which entry a packet belongs to, what the entry has seen, and the second entry of a flow whose source
 * port or address is translated. */
#pragma once

#include "config.h"
#include "hash.h"
#include "maps.h"
#include "packet.h"
#include "policy.h"
#include "settings.h"

#define FLOW_CLAIM  4 /* one in the claim counter of a flow's word */
#define FLOW_CLOSED (SEEN_CLIENT_FIN | SEEN_SERVER_FIN)

/* Where a client's flows are. */
struct flow_place {
	struct flow_set *set;
	__u32 index; /* of the set */
	__u32 start; /* the way to look at first: an entry is mostly there */
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

static __always_inline __u32 flow_timeout(const struct flow *flow, __u32 seen)
{
	if (flow->protocol == IPPROTO_UDP)
		return seen & SEEN_REPLY ? udp_answered_timeout : udp_unanswered_timeout;
	if (seen_closed(seen))
		return flow_holds_port(flow, seen) ? tcp_held_timeout : tcp_closed_timeout;
	return seen & SEEN_ESTABLISHED ? tcp_established_timeout : tcp_unanswered_timeout;
}

static __always_inline bool flow_expired(const struct flow *flow, __u32 now)
{
	return flow_age(flow, now) > flow_timeout(flow, flow->seen) * jiffies_per_second;
}

static __always_inline bool flow_find_place(struct flow_place *place, const struct address *client, __be16 port,
					    __u8 protocol, __u64 seed)
{
	__u64 hash = flow_hash(client, port, protocol, seed);

	place->index = hash & flow_set_mask;
	place->start = hash >> 61;
	place->set = bpf_map_lookup_elem(&flows, &place->index);
	return place->set;
}

/* The ways of a set in the order of a search: the i-th. */
static __always_inline __u32 flow_way(const struct flow_place *place, __u32 i)
{
	return (place->start + i) & (FLOW_WAYS - 1);
}

static __always_inline struct flow *flow_at(const struct flow_place *place, __u32 way)
{
	return &place->set->ways[way & (FLOW_WAYS - 1)];
}

/* The flow has a second entry. */
static __always_inline bool flow_has_twin(const struct flow *flow)
{
	return flow->flags & FLOW_SNAT || flow->other_port != flow->port;
}

/* Source port that the backend sees under this entry, 0 none: the other one of the two entries has it. */
static __always_inline __be16 flow_wire_port(const struct flow *flow)
{
	return flow->flags & FLOW_ALIAS || !flow_has_twin(flow) ? flow->port : 0;
}

static __always_inline bool flow_is_clients(const struct flow *flow, const struct address *client, __be16 port,
					    __u8 protocol)
{
	return flow->port == port && flow->protocol == protocol && address_equal(&flow->client, client);
}

/* A packet of the client towards what it takes for the server. */
static __always_inline bool flow_matches_forward(const struct flow *flow, const struct packet *packet)
{
	return flow_is_clients(flow, &packet->source, packet->source_port, packet->protocol) &&
	       flow->frontend_port == packet->destination_port && !(flow->flags & FLOW_ALIAS) &&
	       address_equal(&flow->frontend, &packet->destination);
}

/* The backend that a flow may still use: its id was not handed to another endpoint since. */
static __always_inline const struct backend *flow_backend(const struct flow *flow)
{
	const struct backend *backend = backend_get(flow->backend);

	if (!backend || backend->generation != flow->generation || backend->state == BACKEND_FREE)
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
static __always_inline bool flow_matches_reply(const struct flow *flow, const struct packet *packet)
{
	return flow_is_clients(flow, &packet->destination, packet->destination_port, packet->protocol) &&
	       !(flow->flags & FLOW_SNAT) && flow_wire_port(flow) &&
	       flow_leads_to(flow, &packet->source, packet->source_port);
}

static __always_inline const struct address *snat_address(const struct settings *settings, const struct flow *flow)
{
	return &settings->sources[flow->source & (SOURCES_MAX - 1)];
}

/* A packet of the server towards the address of this node that it takes for the client's. */
static __always_inline bool flow_matches_snat_reply(const struct flow *flow, const struct settings *settings,
						    const struct packet *packet)
{
	return flow->port == packet->destination_port && flow->protocol == packet->protocol &&
	       (flow->flags & (FLOW_SNAT | FLOW_ALIAS)) == (FLOW_SNAT | FLOW_ALIAS) &&
	       address_equal(snat_address(settings, flow), &packet->destination) &&
	       flow_leads_to(flow, &packet->source, packet->source_port);
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
		return 0;
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
		add |= SEEN_RESET;
	return add | seen_wait(packet, seen);
}

/* A reset outside the window ends nothing, and the entry has no room for sequence numbers: whoever goes on after it takes it back. */
static __always_inline __u32 seen_after(__u32 seen, __u32 add)
{
	return (seen | add) & ~((add & SEEN_ESTABLISHED) / SEEN_ESTABLISHED * SEEN_RESET);
}

static __always_inline void flow_note_seen(struct flow *flow, __u32 seen, __u32 add)
{
	if (add & ~seen)
		__sync_fetch_and_or(&flow->seen, add);
	if (add & SEEN_ESTABLISHED && seen & SEEN_RESET)
		__sync_fetch_and_and(&flow->seen, ~SEEN_RESET);
}

/* Both writes are rare, so that an established connection's cache line stays shared between processors. */
static __always_inline void flow_note(struct flow *flow, __u32 now, __u32 add)
{
	__u32 seen = flow->seen;

	if (seen_after(seen, add) != seen)
		flow_note_seen(flow, seen, add);
	if (flow_age(flow, now) >= jiffies_per_second)
		*(volatile __u32 *)&flow->touched = now;
}

/* A SYN goes on with the entry: the FINs were another connection's. */
static __always_inline void flow_reopen(struct flow *flow)
{
	if (flow->seen & FLOW_HELD)
		__sync_fetch_and_and(&flow->seen, ~FLOW_HELD);
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

/* The two entries of a flow whose source is translated: each is found by one direction. */

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
