/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of servers on other nodes to an address and a port that SNAT uses. */
#pragma once

#include "conntrack.h"
#include "parse_full.h"
#include "reply.h"

static __always_inline bool snat_find(const struct settings *settings, const struct packet *packet, struct reply *reply)
{
	struct flow_place place;

	if (!flow_find_place(&place, &packet->destination, packet->destination_port, packet->protocol, settings->seed))
		return false;
	reply_find(reply, &place, packet, settings);
	return reply->at;
}

static __always_inline enum verdict snat_translate(struct __sk_buff *skb, const struct settings *settings,
						   const struct packet *packet, struct reply *reply)
{
	__u32 add = seen_from_server(packet);

	flow_note(reply->at, flow_now(), add);
	flow_note_twin(settings, &reply->flow, add);
	trace_flow(&reply->flow);
	return reply_rewrite(skb, packet, &reply->flow);
}

/* Nobody can say whether kube-proxy's masquerade has the port, and kube-proxy is at work. SCTP is never by SNAT. */
static __always_inline bool snat_unsure(const struct settings *settings, const struct packet *packet)
{
	if (packet->protocol == IPPROTO_SCTP)
		return true;
	return !conntrack_there() && (settings->yield & YIELD_NEW || settings->draining);
}

/* No flow: of a connection that the kernel made, if it knows it, be it kube-proxy's masquerade or a socket. The host would answer what
 * it knows no connection of with a reset, and so end one that the client's next packet mends: such a packet is dropped. */
static __always_inline enum verdict snat_unknown(struct __sk_buff *skb, const struct settings *settings,
						 const struct packet *packet)
{
	struct ends ends = {};

	ends_of(&ends, packet);
	if (!snat_unsure(settings, packet) && !conntrack_replies(skb, &ends))
		return VERDICT_DROP_UNKNOWN_REPLY;
	fragment_remember(packet);
	return VERDICT_PASS_OTHER_NAT;
}

/* The slow path has sent what is here: reply and packet are told of. */
static __always_inline enum verdict snat_reply(struct __sk_buff *skb, struct packet *packet, struct reply *reply)
{
	const struct settings *settings = settings_get();

	if (!settings)
		return VERDICT_PASS_DISABLED;
	if (parse_full(skb, packet) != VERDICT_CONTINUE ||
	    (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet)))
		return VERDICT_DROP_UNKNOWN_REPLY;
	if (snat_find(settings, packet, reply))
		return snat_translate(skb, settings, packet, reply);
	return snat_unknown(skb, settings, packet);
}
