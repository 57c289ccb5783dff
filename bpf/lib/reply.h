/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The client's door, way in: packets of servers, which get the frontend's address back. */
#pragma once

#include "flow.h"
#include "hash.h"
#include "observe.h"
#include "parse.h"
#include "rewrite.h"
#include "settings.h"
#include "work.h"

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
	to->destination_port = flow->flags & FLOW_ALIAS ? flow->other_port : flow->port;
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

/* client: where the client is to be looked for; the packet's destination but for hairpin flows. */
static __always_inline enum verdict reply_translate(struct __sk_buff *skb, const struct settings *settings,
						    const struct packet *packet, const struct packet *seen)
{
	struct reply reply = {};
	__u32 add;

	reply_find(&reply, settings, seen, QUERY_REPLY);
	if (!reply.at)
		return reply_is_late(packet) ? VERDICT_REJECT_LATE_ANSWER : VERDICT_PASS_NOT_SERVICE;
	add = seen_from_server(packet, reply.flow.seen);
	flow_note(reply.at, flow_now(), add);
	flow_note_twin(&reply.flow, add, false);
	trace_flow(&reply.flow);
	if (reply.flow.flags == FLOW_DIRECT)
		return VERDICT_PASS_DIRECT;
	if (tunnel_there && packet->hook == HOOK_TO_NET && reply.flow.flags & FLOW_CARRIED)
		tail_tunnel(skb, &reply.flow, VERDICT_TRANSLATE_REPLY, flow_carried_by(&reply.flow), TUNNEL_REPLY,
			    HOOK_TO_NET);
	return reply_rewrite(skb, packet, &reply.flow);
}

static __always_inline enum verdict reply_slow(struct __sk_buff *skb, const struct settings *settings,
					       struct packet *packet)
{
	if (packet->malformed)
		return VERDICT_PASS_MALFORMED;
	if (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet))
		return VERDICT_PASS_FRAGMENT;
	if (!has_ports(packet->protocol))
		return VERDICT_PASS_PROTOCOL;
	if (!known_backend(&packet->source, packet->source_port, settings->seed))
		return VERDICT_PASS_NOT_SERVICE;
	return reply_translate(skb, settings, packet, packet);
}

/* The server's side of a hairpin flow: the pod answers the address that stood for it as a client. */
static __always_inline enum verdict reply_hairpin(struct __sk_buff *skb, const struct settings *settings,
						  const struct packet *packet)
{
	struct packet seen = *packet;

	seen.destination = packet->source;
	return reply_translate(skb, settings, packet, &seen);
}
