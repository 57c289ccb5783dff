/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The client's door: a packet of a flow that exists gets the backend's address on the way out, and the frontend's back on the way in. */
#pragma once

#include "flow.h"
#include "observe.h"
#include "packet.h"
#include "policy.h"
#include "retry.h"
#include "rewrite.h"
#include "settings.h"
#include "tunnel.h"
#include "work.h"

/* Way out: packets of clients. */

/* Not 0: the backend is in the list that is in force for the packet's frontend. A function of its own for the sake of the stack. */
__noinline int backend_is_listed(const struct backend *backend, const struct packet *packet)
{
	struct frontend_key key;
	const struct record *record;

	if (!backend || !packet)
		return false;
	frontend_key_of(&key, packet);
	record = frontend_find(&key);
	return record && backend->member & record->sides[packet_side(packet)].member;
}

/* A new connection may go to this backend: it is active, or terminating and still in the list that is in force. */
static __always_inline bool backend_takes_new(const struct backend *backend, const struct packet *packet)
{
	if (backend->state == BACKEND_ACTIVE)
		return true;
	if (backend->state == BACKEND_RESPONDER)
		return responder_alive();
	return backend->state == BACKEND_DRAINING && backend_is_listed(backend, packet);
}

/* TCP stays with its backend whatever becomes of it, and on its way; a new connection and UDP do not. */
static __always_inline bool forward_backend_usable(struct __sk_buff *skb, const struct flow *flow,
						   const struct backend *backend, const struct packet *packet)
{
	if (!backend)
		return false;
	if (!opens_connection(packet))
		return true;
	if (flow->flags & FLOW_CARRY && !(tunnel_there && tunnel_goes_on(backend->node, packet->family)))
		return false;
	if (!(packet->protocol == IPPROTO_UDP ? backend_serving(backend) : backend_takes_new(backend, packet)))
		return false;
	return backend->state != BACKEND_RESPONDER ||
	       responder_listens(skb, &backend->address, backend->port, packet->protocol);
}

/* Without its second entry no reply finds a flow: it is made again. */
static __always_inline bool forward_complete(const struct settings *settings, const struct flow *flow)
{
	return !flow_has_twin(flow) || flow_twin(settings, flow);
}

static __always_inline bool forward_has_waited(const struct flow *flow)
{
	return flow_age(flow, flow_now()) >= jiffies_per_second * retry_milliseconds / 1000;
}

/* Of a SYN: the server of the flow had one before, and did not answer. */
static __always_inline bool forward_unanswered(const struct flow *flow, const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && is_plain_syn(packet) && !(flow->flags & FLOW_DIRECT) &&
	       !(flow->seen & SEEN_REPLY) && tried_count(flow_tried(flow)) < TRIED_MAX;
}

/* Of a connection that has ended: its server answered the SYN with a reset. */
static __always_inline bool forward_refused(const struct flow *flow)
{
	return (flow->seen & (SEEN_REFUSED | SEEN_ESTABLISHED)) == SEEN_REFUSED &&
	       tried_count(flow_tried(flow)) < TRIED_MAX;
}

static __always_inline void forward_judge(struct __sk_buff *skb, struct found *found, const struct settings *settings,
					  const struct flow *flow, const struct packet *packet)
{
	const struct backend *backend;

	if (flow_expired(flow, flow_now()))
		return;
	if (opens_connection(packet) && (seen_closed(flow->seen) || flow_may_be_closed(flow, flow->seen))) {
		found->retry = is_plain_syn(packet) && forward_refused(flow);
		return;
	}
	if (!forward_complete(settings, flow)) {
		found->port = flow->twin_port;
		return;
	}
	if (flow->flags & FLOW_DIRECT) {
		found->usable = !(flow_of_opened(flow) && opens_connection(packet)); /* a client's SYN is no answer */
		return;
	}
	backend = flow_backend(flow);
	found->usable = forward_backend_usable(skb, flow, backend, packet);
	found->lost = !found->usable;
	/* of one that answers past this node, nobody here can tell whether it is silent */
	found->gone = found->usable && packet->protocol == IPPROTO_TCP && backend->state == BACKEND_GONE &&
		      !(flow->flags & FLOW_DSR);
	found->asks = found->usable && flow->flags & FLOW_ASKS && packet->fragment != FRAGMENT_LATER;
	found->retry = forward_unanswered(flow, packet) &&
		       (found->lost ? tried_count(flow_tried(flow)) > 0 : forward_has_waited(flow));
}

/* The entry of a client's packet where its address and port say, below 0: there is none. */
static __always_inline int forward_search(struct flow_query *query, const struct packet *packet,
					  const struct settings *settings)
{
	flow_ends_forward(&query->ends, packet);
	query->kind = QUERY_FORWARD;
	query->blocks = FLOW_BLOCKS_OWN;
	query->hash = flow_ends_hash(&query->ends, settings->seed);
	return flow_search(query);
}

/* Nothing was found. */
static __always_inline void found_nothing(struct found *found)
{
	found->at = FLOW_NONE;
	found->usable = 0;
	found->lost = 0;
	found->spilled = 0;
	found->retry = 0;
	found->gone = 0;
	found->asks = 0;
	found->port = 0;
}

/* Not 0: found tells. query is room for the search, that of the caller for the sake of the stack. A function of its own so that the
 * verifier goes through it once. */
__noinline int forward_find(struct __sk_buff *skb, struct found *found, const struct packet *packet,
			    struct flow_query *query)
{
	const struct settings *settings = settings_get();
	struct flow *flow;
	int at;

	if (!settings || !found || !packet || !query)
		return false;
	found_nothing(found);
	at = forward_search(query, packet, settings);
	if (at < 0 && flow_any_spilled()) {
		query->hash = flow_ends_pair_hash(&query->ends, settings->seed);
		query->blocks = FLOW_BLOCKS_PAIR;
		at = flow_search(query);
		found->spilled = 1;
	}
	flow = at < 0 ? NULL : flow_entry(at);
	if (!flow) {
		found->spilled = 0;
		return true;
	}
	found->at = at;
	found->word = query->word;
	forward_judge(skb, found, settings, flow, packet);
	return true;
}

/* Where a flow's packets go. */
static __always_inline bool forward_target(struct rewrite *to, const struct settings *settings, const struct flow *flow,
					   const struct packet *packet)
{
	const struct backend *backend;

	to->source = *flow_source(settings, flow, packet->family);
	to->source_port = flow->twin_port;
	if (flow->flags & FLOW_DIRECT) {
		to->destination = packet->destination;
		to->destination_port = packet->destination_port;
		return true;
	}
	backend = flow_backend(flow);
	if (!backend)
		return false;
	to->destination = backend->address;
	to->destination_port = backend->port;
	return true;
}

static __always_inline enum verdict forward_verdict(const struct packet *packet, const struct flow *flow,
						    enum verdict verdict)
{
	if (flow->flags & FLOW_HAIRPIN)
		return VERDICT_TRANSLATE_HAIRPIN;
	if (flow->flags & FLOW_DIRECT)
		return VERDICT_TRANSLATE_DIRECT;
	return packet->fragment == FRAGMENT_LATER ? VERDICT_TRANSLATE_FRAGMENT : verdict;
}

/* Rewrites a packet by a flow that this processor has read whole. A function of its own for the sake of the stack. */
__noinline int forward_rewrite(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow,
			       const struct rewrite *to, enum verdict verdict)
{
	enum verdict result;

	if (!packet || !flow || !to)
		return VERDICT_DROP_REWRITE;
	trace_flow(flow);
	if (flow->flags & FLOW_CARRY && !trace_on) { /* a trace shows what the backend sees */
		fragment_remember(packet);
		count_to_backend(flow->backend, skb->len);
		return forward_verdict(packet, flow, verdict);
	}
	if (packet->protocol == IPPROTO_SCTP && packet->fragment != FRAGMENT_LATER &&
	    (to->source_port != packet->source_port || to->destination_port != packet->destination_port))
		return VERDICT_DROP_SCTP_PORT;
	fragment_remember(packet);
	if (!packet_pull(skb, packet->l4 + l4_touched(packet)))
		return VERDICT_DROP_REWRITE;
	result = rewrite_any(skb, packet, to);
	if (result != VERDICT_CONTINUE)
		return result;
	if (flow->flags & FLOW_HAIRPIN && !swap_macs(skb))
		return VERDICT_DROP_REWRITE;
	if (!(flow->flags & FLOW_DIRECT))
		count_to_backend(flow->backend, skb->len);
	return forward_verdict(packet, flow, verdict);
}

/* Reads the flow into flow. VERDICT_CONTINUE: the entry was claimed for another one meanwhile. */
static __always_inline enum verdict forward_established(struct __sk_buff *skb, const struct settings *settings,
							const struct packet *packet, const struct found *found,
							struct flow *flow, struct rewrite *to)
{
	struct flow *live = found_flow(found);
	__u32 add;

	if (!live)
		return VERDICT_CONTINUE;
	*flow = *live;
	flow_barrier();
	if (flow_word(live) != found->word || !forward_target(to, settings, flow, packet))
		return VERDICT_CONTINUE;
	add = seen_from_client(packet, flow->seen);
	flow_note(live, flow_now(), add);
	flow_count_sent(settings, found->at, found->word, skb->len);
	if (opens_connection(packet))
		flow_reopen(live);
	flow_note_twin(flow, add, opens_connection(packet));
	if (flow->flags == FLOW_DIRECT && flow->twin_port == flow->key_port)
		return VERDICT_PASS_DIRECT;
	return forward_rewrite(skb, packet, flow, to, VERDICT_TRANSLATE_ESTABLISHED);
}

/* Way in: packets of servers, which get the frontend's address back. */

struct reply {
	struct flow flow; /* copy */
	struct flow *at;  /* NULL: nothing */
	__u32 entry;      /* number of at */
};

/* kind: QUERY_REPLY or QUERY_SNAT_REPLY. */
static __always_inline void reply_find(struct reply *reply, const struct settings *settings,
				       const struct packet *packet, enum flow_query_kind kind)
{
	struct flow_query query = { .kind = kind, .blocks = FLOW_BLOCKS_OWN };
	struct flow *flow;
	int at;

	flow_ends_reply(&query.ends, packet);
	query.hash = flow_ends_hash(&query.ends, settings->seed);
	at = flow_search(&query);
	flow = at < 0 ? NULL : flow_entry(at);
	if (!flow)
		return;
	reply->flow = *flow;
	reply->entry = at;
	flow_barrier();
	if (flow_word(flow) == query.word)
		reply->at = flow;
}

static __always_inline void reply_target(struct rewrite *to, const struct flow *flow, const struct packet *packet)
{
	to->source = flow->flags & FLOW_DIRECT ? packet->source : flow->frontend;
	to->source_port = flow->frontend_port;
	to->destination = flow->client;
	to->destination_port = flow->flags & FLOW_ALIAS ? flow->twin_port : flow->key_port;
}

static __always_inline enum verdict reply_verdict(const struct packet *packet, const struct flow *flow)
{
	if (flow->flags & FLOW_HAIRPIN)
		return VERDICT_TRANSLATE_HAIRPIN;
	if (flow->flags & FLOW_DIRECT)
		return VERDICT_TRANSLATE_DIRECT;
	return packet->fragment == FRAGMENT_LATER ? VERDICT_TRANSLATE_FRAGMENT : VERDICT_TRANSLATE_REPLY;
}

static __always_inline enum verdict reply_rewrite(struct __sk_buff *skb, const struct packet *packet,
						  const struct flow *flow)
{
	struct rewrite to = {};
	enum verdict verdict;

	reply_target(&to, flow, packet);
	fragment_remember(packet);
	if (!packet_pull(skb, packet->l4 + l4_touched(packet)))
		return VERDICT_DROP_REWRITE;
	verdict = rewrite_any(skb, packet, &to);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (flow->flags & FLOW_HAIRPIN && !swap_macs(skb))
		return VERDICT_DROP_REWRITE;
	if (!(flow->flags & FLOW_DIRECT))
		count_from_backend(flow->backend, skb->len);
	return reply_verdict(packet, flow);
}

/* Not 0: an answer to a SYN, for a client off the node, that comes after the client's SYN went to another backend. The client could not
 * refuse it, as it may have no way to the server's address. A function of its own for the sake of the stack. */
__noinline int reply_is_late(const struct packet *packet)
{
	const struct settings *settings = settings_get();
	struct flow_query query = { .kind = QUERY_LATE, .blocks = FLOW_BLOCKS_OWN };

	if (!packet || !settings || packet->fragment == FRAGMENT_LATER || !reply_may_be_late(settings, packet))
		return false;
	flow_ends_reply(&query.ends, packet);
	query.hash = flow_ends_hash(&query.ends, settings->seed);
	return flow_search(&query) >= 0;
}

/* What answers a connection's first packet, or ends it at once, is told to the node that the client came by: it leaves out who does not
 * answer, and forgets what is over. All else goes to the client itself where FLOW_DSR says so; so does a reset after the client has closed,
 * as that node may have forgotten the connection already. */
static __always_inline bool reply_goes_back(const struct packet *packet, const struct flow *flow)
{
	__u8 told = flow->seen & SEEN_CLIENT_FIN ? TCP_SYN : TCP_SYN | TCP_RST;

	return flow->flags & FLOW_CARRIED && !(flow->flags & FLOW_DSR && !(packet->tcp_flags & told));
}

/* What comes after a reply was translated: answers of carried connections go to the node that the client came by. */
static __always_inline struct step reply_translated(struct __sk_buff *skb, const struct packet *packet,
						    const struct flow *flow, enum verdict verdict)
{
	if (!tunnel_there || packet->hook != HOOK_TO_NET || !reply_goes_back(packet, flow) ||
	    !verdict_is_translate(verdict))
		return step_finish(verdict);
	tail_tunnel(skb, flow, verdict, flow_carried_by(flow), TUNNEL_REPLY, HOOK_TO_NET);
	return (struct step){ NEXT_TUNNEL, verdict };
}

/* Notes an answer with both entries of its flow. at: the one that was found; flow: the same, or a copy of it. */
static __always_inline void reply_note(struct flow *at, const struct flow *flow, const struct packet *packet)
{
	__u32 add = seen_from_server(packet, flow->seen);

	flow_note(at, flow_now(), add);
	flow_note_twin(flow, add, false);
	trace_flow(flow);
	if (flow->flags & FLOW_ASKS)
		asked_answered(flow);
}

/* seen: the packet with its client as the destination, which it is but for hairpin flows. */
static __always_inline struct step reply_translate(struct __sk_buff *skb, const struct settings *settings,
						   const struct packet *packet, const struct packet *seen)
{
	struct reply reply = {};
	__u32 syn = 0;

	reply_find(&reply, settings, seen, QUERY_REPLY);
	if (!reply.at)
		return reply_is_late(packet) ? (struct step){ NEXT_REJECT, VERDICT_REJECT_LATE_ANSWER }
					     : step_finish(VERDICT_PASS_NOT_SERVICE);
	reply_note(reply.at, &reply.flow, packet);
	flow_count_received(settings, reply.entry, reply.flow.word, skb->len);
	if (reply.flow.flags == FLOW_DIRECT)
		return step_finish(VERDICT_PASS_DIRECT);
	if (kept_asked(packet, &reply.flow))
		syn = kept_refused(skb, packet, &reply.flow);
	if (syn)
		return step_resend(skb, syn, packet->hook);
	return reply_translated(skb, packet, &reply.flow, reply_rewrite(skb, packet, &reply.flow));
}

/* It is no reply, but a packet of this host (host.h). */
static __always_inline bool reply_may_be_hosts(const struct settings *settings, const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && (is_plain_syn(packet) || host_there(settings)) &&
	       is_snat_source(settings, &packet->source);
}

static __always_inline struct step reply_slow(struct __sk_buff *skb, const struct settings *settings,
					      struct packet *packet)
{
	struct step step = step_finish(VERDICT_PASS_NOT_SERVICE);

	if (packet->malformed)
		return step_finish(VERDICT_PASS_MALFORMED);
	if (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet))
		return step_finish(VERDICT_PASS_FRAGMENT);
	if (!has_ports(packet->protocol))
		return step_finish(VERDICT_PASS_PROTOCOL);
	if (known_backend(&packet->source, packet->source_port, settings->seed))
		step = reply_translate(skb, settings, packet, packet);
	if (step.verdict == VERDICT_PASS_NOT_SERVICE && reply_may_be_hosts(settings, packet))
		return step_to(NEXT_HOST);
	return step;
}

/* The server's side of a hairpin flow: the pod answers the address that stood for it as a client. */
static __always_inline struct step reply_hairpin(struct __sk_buff *skb, const struct settings *settings,
						 const struct packet *packet)
{
	struct packet seen = *packet;

	seen.destination = packet->source;
	return reply_translate(skb, settings, packet, &seen);
}
