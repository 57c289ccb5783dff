/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The client's door, way out: the first packet of a flow, which backend it goes to, and the entries that it gets: one, or two where the
 * server sees another source than the client's. */
#pragma once

#include "answered.h"
#include "conntrack.h"
#include "flow_insert.h"
#include "policy.h"
#include "retry.h"
#include "settings.h"
#include "snat.h"
#include "translate.h"
#include "tunnel.h"
#include "work.h"

/* The source port that a server sees where it is not the client's own, though the address is. */

/* A source port to try where the client's own is taken, or does not tell where the flow is. Not a well-known one, never the client's;
 * another in each try, the same in each life of the connection. */
static __always_inline __be16 create_port(const struct flow *flow, __u64 seed, __u32 try)
{
	__u32 hash = hash_next((__u32)(flow_own_pair_hash(flow, seed) >> 32) + try);
	__be16 port = bpf_htons(1024 + hash % (65536 - 1024));

	return port == flow->key_port ? port ^ bpf_htons(1) : port;
}

/* Not 0: this is the second entry of a flow that is made again. A function of its own so that the verifier goes through it once. */
__noinline int create_is_second(const struct insertion *in, __u32 port, __u32 at)
{
	const struct flow *flow = flow_entry(at);

	return flow && in && (flow_word(flow) & FLOW_PHASE_MASK) == FLOW_LIVE && flow->flags & FLOW_ALIAS &&
	       flow->key_port == port && flow->twin_port == in->flow.key_port && flow->protocol == in->flow.protocol &&
	       flow_same_ends(flow, &in->flow) && !flow_expired(flow, flow_now());
}

#define CREATE_PORTS_KNOWN 2 /* that a connection may have got: hardly one of them is taken */

__noinline int create_second_round(struct flow_cursor *cursor, const struct insertion *in, __u32 port)
{
	for (int i = 0; i < FLOW_ROUND; i++) {
		int at = flow_next(cursor);

		if (at < 0 || create_is_second(in, port, at))
			return at;
	}
	return FLOW_NEXT_ROUND;
}

/* Not 0: a flow that is made again has its second entry under this port. A function of its own so that the verifier goes through it once. */
__noinline int create_has_second(const struct insertion *in, __u32 port)
{
	struct flow_cursor cursor = {};
	__u64 hash;

	if (!in)
		return false;
	hash = flow_hash(&in->flow.client, port, in->flow.protocol, filter_seed());
	if (flow_is_absent(hash))
		return false;
	flow_search_begin(&cursor, hash, FLOW_BLOCKS_OWN);
	for (int i = 0; i < FLOW_ROUNDS; i++) {
		int at = create_second_round(&cursor, in, port);

		if (at != FLOW_NEXT_ROUND)
			return at >= 0;
	}
	return false;
}

/* The port that the server sees of a flow whose first entry was evicted, 0: its own, as far as can be seen. */
static __always_inline __be16 create_port_known(const struct insertion *in)
{
	for (__u32 try = 0; try < CREATE_PORTS_KNOWN; try++) {
		__be16 port = create_port(&in->flow, filter_seed(), try);

		if (create_has_second(in, port))
			return port;
	}
	return 0;
}

/* A connection that goes on does so from the port that its server knows. Of a datagram nobody can tell whether it begins one: it is asked about
 * where many flows have such a port. */
static __always_inline __be16 create_port_again(const struct work *work)
{
	if (work->found.port)
		return work->found.port;
	if (work->found.at != FLOW_NONE ||
	    (opens_connection(&work->packet) && (work->packet.protocol != IPPROTO_UDP || !flow_any_spilled())))
		return 0;
	return create_port_known(&work->in);
}

/* The entries of a flow. */

/* What tells the two entries of a flow with another source port apart. */
static __always_inline void create_turn(struct insertion *in)
{
	__be16 port = in->flow.key_port;

	in->flow.key_port = in->flow.twin_port;
	in->flow.twin_port = port;
	in->flow.flags ^= FLOW_ALIAS;
}

/* The second entry, found by what the server sees. It is shown before the first packet leaves. */
static __always_inline enum insert create_alias(struct insertion *in, const struct settings *settings, bool last)
{
	enum insert result;

	create_turn(in);
	in->hash = flow_hash(flow_alias_address(settings, &in->flow), in->flow.key_port, in->flow.protocol,
			     settings->seed);
	in->blocks = FLOW_BLOCKS_OWN;
	in->last = last;
	in->looked = false;
	in->replace = FLOW_NONE;
	in->wire_port = in->flow.key_port;
	result = flow_insert(in);
	if (result == INSERT_DONE && !flow_publish(in, FLOW_LIVE))
		result = INSERT_AGAIN;
	create_turn(in);
	return result;
}

/* Whether the first entry may be placed by the frontend's address as well. Not that of a flow which the fast path must find (fast_of_host, too),
 * or whose ports cannot change; nor of an ongoing connection, whose server knows its port. A small table has no other place. */
static __always_inline bool create_may_spill(const struct work *work)
{
	const struct flow *flow = &work->in.flow;

	return flow_set_mask >= FLOW_STEPS - 1 && !(flow->flags & FLOW_DIRECT) && flow->protocol != IPPROTO_SCTP &&
	       !flow_of_host(flow) && (flow_has_twin(flow) || opens_connection(&work->packet));
}

static __always_inline enum insert create_own(struct insertion *in, __u64 seed, bool last)
{
	in->hash = flow_own_hash(&in->flow, seed);
	in->blocks = FLOW_BLOCKS_OWN;
	in->last = last;
	in->wire_port = flow_wire_port(&in->flow);
	return flow_insert(in);
}

/* Where the frontend's address and port count as well. Replies are found by a second entry then, but for those that come through the tunnel: they
 * have the frontend's. */
static __always_inline enum insert create_pair(struct insertion *in, __u64 seed, __u32 try)
{
	if (!flow_has_twin(&in->flow) && !(in->flow.flags & FLOW_CARRY))
		in->flow.twin_port = create_port(&in->flow, seed, try);
	in->hash = flow_own_pair_hash(&in->flow, seed);
	in->blocks = FLOW_BLOCKS_PAIR;
	in->last = false;
	in->wire_port = 0;
	return flow_insert(in);
}

/* The first entry: where the client's address and port say; where those are full, where the frontend's say as well; where all are, in
 * the place of the client that has most. XDP leaves all but the first of these to TC. */
static __always_inline enum insert create_main(struct entry_point point, struct insertion *in, const struct work *work,
					       __u32 try)
{
	__u64 seed = work->settings->seed;
	__be16 twin_port = in->flow.twin_port;
	enum insert result;

	in->replace = work->found.at;
	in->replace_word = work->found.word;
	if (!point.xdp && work->found.spilled)
		return create_pair(in, seed, try);
	result = create_own(in, seed, false);
	if (result != INSERT_FULL || point.xdp)
		return result;
	if (create_may_spill(work)) {
		flow_spill();
		result = create_pair(in, seed, try);
		if (result != INSERT_FULL)
			return result;
		in->flow.twin_port = twin_port;
	}
	return create_own(in, seed, true);
}

#define TRIES_LAST \
	3 /* from this try on a second entry, too, takes the place of what is idle, or of the client that has most; */
#define TRIES_FULL 6 /* from this one on no other port is tried because its blocks are full */

/* The second entry: in another port's blocks if need be, but for a connection that goes on, whose server knows its port. */
static __always_inline enum insert create_second(struct entry_point point, struct work *work, __u32 try)
{
	bool stays = !opens_connection(&work->packet) || point.handed->slow.snat_next & SNAT_HELD_TOO;
	enum insert result = create_alias(&work->in, work->settings, stays || work->found.port || try >= TRIES_LAST);

	/* another port is in other blocks */
	return result == INSERT_FULL && !stays && try < TRIES_FULL ? INSERT_PORT : result;
}

static __always_inline enum insert create_entries(struct entry_point point, struct work *work)
{
	__u32 try = point.xdp ? 0 : point.handed->slow.tries; /* at XDP there is one */
	struct insertion *in = &work->in;
	enum insert result = create_main(point, in, work, try);
	__u32 made = in->made;
	__u32 word = in->made_word;
	bool keep;

	if (result != INSERT_DONE)
		return result;
	if (flow_has_twin(&in->flow))
		result = create_second(point, work, try);
	in->made = made;
	in->made_word = word;
	keep = result == INSERT_DONE || (result == INSERT_FULL && work->found.port); /* it tells the port yet */
	if (!flow_publish(in, keep ? FLOW_LIVE : FLOW_FREE) && result == INSERT_DONE)
		return INSERT_AGAIN;
	return result;
}

/* As snat_is_anothers. */
static __always_inline bool create_is_anothers(struct entry_point point, const struct insertion *in)
{
	return point.xdp ? snat_is_anothers_xdp(point.ctx, in) : snat_is_anothers(point.ctx, in);
}

/* The source port that the server will see: of SNAT the one that the server knows already, else one that seems free. */
static __always_inline enum insert create_source(struct entry_point point, struct work *work)
{
	struct insertion *in = &work->in;
	enum insert result;
	__be16 port;

	if (in->flow.flags & FLOW_SNAT) {
		result = create_snat_port(point, work);
		if (result == INSERT_DONE && (opens_connection(&work->packet) || point.handed->slow.snat_next) &&
		    create_is_anothers(point, in))
			return INSERT_PORT; /* the port that the server knows goes unasked: snat_next is 0 then */
		return result;
	}
	if (point.xdp)
		return INSERT_DONE;
	port = point.handed->slow.translate ? create_port(&in->flow, work->settings->seed, point.handed->slow.tries)
					    : create_port_again(work);
	if (port)
		in->flow.twin_port = port;
	return INSERT_DONE;
}

/* At XDP the source port is chosen before, for the sake of the way (xdp_create_decide). */
static __always_inline enum insert create_flow(struct entry_point point, struct work *work)
{
	enum insert result = point.xdp ? INSERT_DONE : create_source(point, work);

	if (result == INSERT_DONE)
		result = create_entries(point, work);
	if (work->in.flow.flags & FLOW_SNAT)
		point.handed->slow.snat_next += result == INSERT_PORT;
	else if (point.handed->slow.translate && result == INSERT_AGAIN)
		result = INSERT_PORT;
	return result;
}

/* What follows from an insertion. A direct flow need not be remembered. */
static __always_inline struct step create_made(const struct work *work, enum insert result, enum verdict verdict)
{
	const struct flow *flow = &work->in.flow;
	bool direct = flow->flags & FLOW_DIRECT;

	if (result == INSERT_FULL)
		return step_finish(direct ? VERDICT_PASS_DIRECT : VERDICT_DROP_FLOWS_FULL);
	if (result == INSERT_EXHAUSTED)
		return step_finish(VERDICT_DROP_PORTS_FULL);
	if (result == INSERT_PORT)
		return (struct step){ NEXT_AGAIN_PORT, VERDICT_DROP_PORTS_FULL };
	if (result != INSERT_DONE)
		return step_again(direct ? VERDICT_PASS_DIRECT : VERDICT_DROP_FLOW_RACE);
	if (direct)
		return flow->twin_port == flow->key_port ? step_finish(VERDICT_PASS_DIRECT)
							 : step_translate(VERDICT_TRANSLATE_DIRECT);
	if (verdict != VERDICT_TRANSLATE_RECOVER && verdict != VERDICT_TRANSLATE_UNCARRIED) { /* counted before */
		count_connection(flow->service, flow->backend);
		if (flow->protocol == IPPROTO_TCP && is_plain_syn(&work->packet))
			health_awaits(flow);
	}
	if (verdict != VERDICT_TRANSLATE_RECOVER && flow->protocol == IPPROTO_TCP)
		syn_note(flow);
	if (flow->flags & FLOW_ASKS)
		asked_note(flow);
	return step_translate(verdict);
}

/* The flow that a packet opens: what refuses it, and its backend. */

static __always_inline void create_describe(struct insertion *in, const struct packet *packet)
{
	__builtin_memset(in, 0, sizeof(*in));
	in->flow.client = packet->source;
	in->flow.frontend = packet->destination;
	in->flow.key_port = packet->source_port;
	in->flow.twin_port = packet->source_port;
	in->flow.frontend_port = packet->destination_port;
	in->flow.protocol = packet->protocol;
	in->flow.seen = packet->tcp_flags & TCP_RST ? SEEN_RESET : 0;
}

static __always_inline enum verdict create_verdict(const struct work *work, bool affine)
{
	if (work->found.lost && opens_connection(&work->packet))
		return VERDICT_TRANSLATE_REHOME;
	if (!opens_connection(&work->packet))
		return VERDICT_TRANSLATE_RECOVER;
	return affine ? VERDICT_TRANSLATE_AFFINITY : VERDICT_TRANSLATE_BALANCE;
}

/* What the new entry records about other backends. An entry that replaces a connection not known to be closed keeps that one's backend: a
 * forged RST and SYN end nothing. Nor do a forged FIN and SYN where servers answer past this node: what answers a SYN comes by this node (tunnel_flags)
 * and shows that the connection goes on, before a second SYN takes it elsewhere. A server is silent to all but the first of several such
 * packets within half a second (tcp_invalid_ratelimit), so one that comes as soon is no evidence. */
static __always_inline __u32 create_tried(struct entry_point point, const struct work *work, enum verdict verdict)
{
	const struct flow *last;

	if (verdict == VERDICT_TRANSLATE_RETRY || verdict == VERDICT_TRANSLATE_UNCARRIED)
		return point.handed->slow.tried;
	last = found_flow(&work->found);
	if (!last || seen_fins(last->seen))
		return 0;
	if (flow_may_be_closed(last, last->seen) && flow_age(last, flow_now()) >= 2 * jiffies_per_second)
		return 0;
	return last->seen & SEEN_ESTABLISHED || flow_tried(last) == TRIED_STAYS ? TRIED_STAYS : 0;
}

/* What a flow of the frontend has in seen for the sake of its backend's load. A connection that is reset counts no more. */
static __always_inline __u32 create_loads(const struct record *record, const struct packet *packet)
{
	if (record->balance != BALANCE_LEAST_CONNECTIONS)
		return 0;
	return packet->tcp_flags & TCP_RST ? SEEN_LOADS : SEEN_LOADS | SEEN_COUNTED;
}

/* Notes the SYN of a Service whose refused ones are sent again. False: that is TC's to do. */
static __always_inline bool create_notes_syn(struct entry_point point, const struct packet *packet)
{
	if (point.xdp)
		return packet->protocol != IPPROTO_TCP;
	kept_note(point.ctx, packet);
	return true;
}

/* Describes a flow to a backend, and says by which address its packets leave. NEXT_FINISH: it is refused. */
static __always_inline struct step create_to_backend(struct entry_point point, struct work *work,
						     const struct record *record, enum side_index side,
						     const struct choice *choice, enum verdict verdict)
{
	struct packet *packet = &work->packet;
	struct insertion *in = &work->in;
	enum verdict external;

	if (packet->protocol == IPPROTO_SCTP && choice->port != packet->destination_port)
		return step_finish(VERDICT_DROP_SCTP_PORT);
	if (tunnel_is_backend(choice, packet->protocol))
		return step_finish(VERDICT_DROP_TUNNEL_SOURCE);
	if (record->flags & RECORD_RETRY_REFUSED && opens_connection(packet) && !create_notes_syn(point, packet))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	create_describe(in, packet);
	in->flow.backend = choice->backend;
	in->flow.generation = choice->generation;
	in->flow.service = record->service;
	in->flow.side = side;
	in->flow.seen |= create_tried(point, work, verdict) << TRIED_SHIFT | create_loads(record, packet);
	if (side == SIDE_INTERNAL && address_equal(&choice->address, &packet->source))
		in->flow.flags = FLOW_HAIRPIN;
	in->to.destination = choice->address;
	in->to.destination_port = choice->port;
	external = side == SIDE_EXTERNAL ? create_external(point, work, record, choice) : VERDICT_CONTINUE;
	if (external != VERDICT_CONTINUE)
		return step_finish(external);
	if (record->udp_retry && packet->protocol == IPPROTO_UDP && !(in->flow.flags & FLOW_CARRY))
		in->flow.flags |= FLOW_ASKS;
	return (struct step){ NEXT_CREATE, verdict };
}

/* The flow is there but for its second entry: it stays with its backend. At XDP there is nothing of the flow. */
static __always_inline bool create_keep(struct entry_point point, struct choice *choice, const struct work *work)
{
	struct flow *flow = found_flow(&work->found);
	const struct backend *backend;

	if (point.xdp || !work->found.port || !flow || flow_word(flow) != work->found.word)
		return false;
	backend = flow_backend(flow);
	if (backend && backend->service != work->service && work->packet.protocol == IPPROTO_UDP)
		return false; /* the frontend is another service port's by now */
	return forward_backend_usable(point.ctx, flow, backend, &work->packet) &&
	       backend_choose(choice, flow->backend, backend);
}

/* The choice is no responder, or one that listens. XDP leaves connections to backends of this node, as that one is, to TC (create_external). */
static __always_inline bool create_listens(struct entry_point point, const struct choice *choice, __u8 protocol)
{
	return point.xdp || !choice_is_responder(choice) ||
	       responder_listens(point.ctx, &choice->address, choice->port, protocol);
}

/* A connection that goes on finds its backend again, left out or not; not by a turn. */
static __always_inline int create_how(struct entry_point point, const struct packet *packet,
				      const struct record *record)
{
	return opens_connection(packet) ? PICK_NEW | PICK_TRIAL | pick_balance(record) | (point.xdp ? PICK_LOOK : 0)
					: 0;
}

static __always_inline bool create_pick(struct entry_point point, struct choice *choice, const struct side *side,
					const struct work *work, __u32 hash, int how)
{
	if (!backend_pick(choice, side, work->service, hash, how | PICK_RESPONDER))
		return false;
	return create_listens(point, choice, work->packet.protocol) ||
	       backend_pick(choice, side, work->service, hash, how);
}

/* Of a connection that goes to another backend: its client does so too if the last one refused it, or was silent to as many datagrams as
 * its Service says. One lost SYN is no reason to. */
static __always_inline void create_move_affinity(const struct choice *choice, const struct work *work, __u32 service)
{
	const struct flow *last = found_flow(&work->found);

	if (last && (last->protocol == IPPROTO_UDP || last->seen & SEEN_REFUSED))
		affinity_move(choice, &work->packet.source, service, last->backend);
}

/* At XDP the turn is yet to be taken (xdp_create_turn). */
static __always_inline __u32 create_turn_of(struct entry_point point, __u32 service)
{
	if (!point.xdp)
		return turn_take(service, point.handed->slow.tries);
	point.handed->slow.tried = turn_look(service);
	return point.handed->slow.tried;
}

/* The backend of a new flow, by retry, by what is left of the flow, by affinity, by turn or by Maglev, or VERDICT_DROP_NO_BACKEND. */
static __always_inline enum verdict create_choose(struct entry_point point, struct choice *choice, struct work *work,
						  const struct record *record, const struct side *side)
{
	int affine = AFFINITY_OVER, how = create_how(point, &work->packet, record);
	__u32 hash;

	if (retry_chosen(point, choice, record->service)) {
		if (record->affinity)
			create_move_affinity(choice, work, record->service);
		return point.handed->slow.lost & LOST_WAY ? VERDICT_TRANSLATE_UNCARRIED : VERDICT_TRANSLATE_RETRY;
	}
	if (create_keep(point, choice, work))
		return create_verdict(work, false);
	if (record->affinity)
		affine = affinity_find(choice, record, side, &work->packet.source, how);
	if (affine == AFFINITY_FOUND && create_listens(point, choice, work->packet.protocol))
		return create_verdict(work, true);
	hash = affine == AFFINITY_OVER ? maglev_hash(&work->packet.source, work->packet.source_port, &record->key)
				       : maglev_hash_client(&work->packet.source);
	if (how & PICK_TURN)
		hash = create_turn_of(point, record->service);
	if (!create_pick(point, choice, side, work, hash, how))
		return VERDICT_DROP_NO_BACKEND;
	if (record->affinity && !point.xdp) /* there the flow may not come to be */
		affinity_remember(choice, &work->packet.source, record->service);
	return create_verdict(work, false);
}

static __always_inline struct step create_balance(struct entry_point point, struct work *work,
						  const struct record *record, enum side_index side_index)
{
	struct choice choice = {}; /* kernels before 6.3 want what is handed to a function to be written */
	enum verdict verdict = create_choose(point, &choice, work, record, &record->sides[side_index]);

	if (verdict != VERDICT_DROP_NO_BACKEND)
		return create_to_backend(point, work, record, side_index, &choice, verdict);
	/* Its last backend may have gone since the record was found: the one in force has others. */
	return point.handed->slow.tries ? step_finish(verdict) : step_again(verdict);
}

/* The packet answers this node's own (answered.h): it is asked once, and of no packet of a flow. At XDP that was asked before (xdp_judge). */
static __always_inline bool create_is_answer(struct entry_point point, const struct work *work,
					     const struct record *record)
{
	return !point.xdp && !work->found.lost && !work->found.port && !point.handed->slow.backend &&
	       !point.handed->slow.tries && answered_may_be(record, &work->packet) &&
	       answered(point.ctx, &work->packet);
}

static __always_inline struct step create_by_record(struct entry_point point, struct work *work,
						    const struct record *record, enum side_index side_index)
{
	const struct side *side = &record->sides[side_index];
	enum verdict verdict;

	trace_frontend(record, side_index);
	if (create_is_answer(point, work, record))
		return step_finish(VERDICT_PASS_UNKNOWN_REPLY);
	verdict = point.xdp || work->found.port || point.handed->slow.backend ? VERDICT_CONTINUE
									      : leave(point.ctx, &work->packet);
	if (verdict != VERDICT_CONTINUE)
		return step_finish(verdict);
	work->service = record->service;
	if (!source_allowed(record, &work->packet.source))
		return step_finish(VERDICT_DROP_SOURCE_RANGE);
	if (side->action == ACTION_REJECT)
		return step_finish(reject_verdict(side->reason));
	if (side->action == ACTION_DROP)
		return step_finish(VERDICT_DROP_NO_LOCAL_ENDPOINTS);
	return create_balance(point, work, record, side_index);
}

/* Passes a direct connection to a server. It gets an entry where its client can also reach the server by a frontend, so that the two use
 * different source ports. */
static __always_inline struct step create_direct(struct work *work)
{
	struct packet *packet = &work->packet;
	struct insertion *in = &work->in;

	if (!known_backend(&packet->destination, packet->destination_port, work->settings->seed) ||
	    !opens_connection(packet) || work->found.spilled || !direct_may_clash(work->settings, packet))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	create_describe(in, packet);
	in->flow.flags = FLOW_DIRECT;
	in->to.destination = packet->destination;
	in->to.destination_port = packet->destination_port;
	return (struct step){ NEXT_CREATE, VERDICT_PASS_DIRECT };
}

/* No frontend of this port. */
static __always_inline struct step create_unknown(struct work *work)
{
	enum verdict verdict = refuse_unknown(&work->packet.destination);

	return verdict == VERDICT_CONTINUE ? create_direct(work) : step_finish(verdict);
}

/* Makes the flow that work->in describes. NEXT_TRANSLATE: it is there. */
static __always_inline struct step create_new(struct entry_point point, struct work *work, enum verdict verdict)
{
	/* read again behind the barrier: the verifier has forgotten it by then, and goes through the insertion once */
	point.handed->slow.verdict = verdict;
	asm volatile("" ::: "memory");
	return create_made(work, create_flow(point, work), point.handed->slow.verdict);
}

/* NEXT_TRANSLATE: work->in has the flow. */
static __always_inline struct step forward_create(struct __sk_buff *skb, struct work *work, enum side_index side)
{
	const struct record *record = frontend_of(&work->packet);
	bool service = record && !(record->flags & RECORD_ADDRESS);
	struct step step = service ? create_by_record(point_tc(skb), work, record, side) : create_unknown(work);

	return step.next == NEXT_CREATE ? create_new(point_tc(skb), work, step.verdict) : step;
}
