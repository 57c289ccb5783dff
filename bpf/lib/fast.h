/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The fast path: packets of established flows and packets that are not for a service. No helper call (the verifier
 * inlines array lookups and jiffies), one cache line of the flow table. VERDICT_CONTINUE leaves a packet to the slow path. */
#pragma once

#include <linux/if_packet.h>

#include "flow.h"
#include "observe.h"
#include "packet.h"
#include "rewrite.h"
#include "settings.h"
#include "work.h"

/* A flow whose packets keep their source port and leave by the usual way. */
static __always_inline bool flow_is_plain(const struct flow *flow)
{
	return flow->flags == 0 && flow->twin_port == flow->key_port;
}

/* Also notes the packet. False: the entry has expired, or was claimed for another flow meanwhile. */
static __always_inline bool flow_use(struct flow *flow, __u32 word, __u32 add)
{
	__u32 now = flow_now();

	if (flow_age(flow, now) >= jiffies_per_second && flow_expired(flow, now))
		return false;
	flow_barrier();
	if (flow_word(flow) != word)
		return false;
	flow_note(flow, now, add);
	return true;
}

/* No bit of the filter: for nobody that is known here, but for service CIDRs and, from a pod, the hairpin address. */
static __always_inline enum verdict fast_unknown(const struct settings *settings, const struct packet *packet)
{
	if (in_service_cidr(settings, &packet->destination) ||
	    (packet->hook == HOOK_FROM_POD && is_hairpin_address(settings, packet->family, &packet->destination)))
		return VERDICT_CONTINUE;
	return VERDICT_PASS_NOT_SERVICE;
}

/* What passes and could have been a reply to SNAT is told apart. */
static __always_inline enum verdict fast_unknown_reply(enum verdict verdict, bool reply)
{
	return reply && verdict == VERDICT_PASS_NOT_SERVICE ? VERDICT_PASS_UNKNOWN_REPLY : verdict;
}

/* No flow, destination known. Mid-connection packets between pods and replies of servers end here, and on the server's node what
 * began at another node's doors. */
static __always_inline enum verdict fast_without_flow(const struct settings *settings, const struct packet *packet,
						      __u32 known)
{
	if (known & KNOWN_FRONTEND)
		return VERDICT_CONTINUE;
	if (packet->protocol == IPPROTO_TCP && (packet->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return VERDICT_PASS_NOT_SERVICE;
	return direct_may_clash(settings, packet) ? VERDICT_CONTINUE : fast_unknown(settings, packet);
}

static __always_inline enum verdict fast_forward_flow(struct __sk_buff *skb, const struct packet *packet,
						      const struct headers *headers, struct flow *flow, __u32 word)
{
	const struct backend *backend = flow_backend_stays(flow);
	__u32 id = flow->backend;
	struct rewrite to;

	if (!backend || (packet->protocol == IPPROTO_UDP && !backend_serves_always(backend)))
		return VERDICT_CONTINUE;
	to.destination = backend->address;
	to.destination_port = backend->port;
	if (!flow_use(flow, word, seen_from_client(packet, flow->seen)))
		return VERDICT_CONTINUE;
	rewrite_headers(skb, packet, headers, &to, CHANGE_DESTINATION | CHANGE_DESTINATION_PORT);
	count_to_backend(id, skb->len);
	return VERDICT_TRANSLATE_ESTABLISHED;
}

/* Hands a packet of a connection through SNAT or the tunnel, with the entry that it has, to the program for those that only go on. Returns
 * where there is none, and for devices without a link header. */
static __always_inline void fast_onward(struct __sk_buff *skb, const struct packet *packet, __u32 number, __u32 word,
					bool back)
{
	if (packet->hook != HOOK_FROM_NET || !link_header || !route_lookup)
		return;
	handed(skb)->onward.at = number;
	handed(skb)->onward.word = word;
	handed(skb)->onward.back = back;
	bpf_tail_call(skb, &programs, PROGRAM_ONWARD);
}

static __always_inline enum verdict fast_forward_match(struct __sk_buff *skb, const struct packet *packet,
						       const struct headers *headers, struct flow *flow, __u32 number,
						       __u32 word)
{
	if (flow_is_plain(flow))
		return fast_forward_flow(skb, packet, headers, flow, word);
	if (flow->flags == FLOW_DIRECT && flow->twin_port == flow->key_port &&
	    flow_use(flow, word, seen_from_client(packet, flow->seen)))
		return VERDICT_PASS_DIRECT;
	if (flow->flags & (FLOW_SNAT | FLOW_CARRY) && !(flow->flags & FLOW_ASKS))
		fast_onward(skb, packet, number, word, false);
	return VERDICT_CONTINUE;
}

/* The entry of a packet that is not where its flow would best be. ends are copied here, so that they take no memory where they are
 * looked at alone. */
static __always_inline struct flow *fast_search(struct flow_query *query, const struct flow_ends *ends,
						enum flow_query_kind kind, __u32 *number)
{
	int at;

	*number = FLOW_NONE;
	if (flow_is_absent(query->hash))
		return NULL;
	query->ends = *ends;
	query->kind = kind;
	query->blocks = FLOW_BLOCKS_OWN;
	at = flow_look(query);
	*number = at;
	return at < 0 ? NULL : flow_entry(at);
}

/* kind: a constant. */
static __always_inline bool fast_matches(const struct flow *flow, const struct settings *settings,
					 const struct flow_ends *ends, enum flow_query_kind kind)
{
	if (kind == QUERY_FORWARD)
		return flow_matches_forward(flow, ends);
	if (kind == QUERY_REPLY)
		return flow_matches_reply(flow, ends);
	if (kind == QUERY_LEFT)
		return flow_matches_left(flow, ends);
	return flow_matches_snat_reply(flow, settings, ends) && !flow_expired(flow, flow_now());
}

/* The entry of a packet, its word in query, its number in number; NULL: none. kind: a constant. */
static __always_inline struct flow *fast_find_number(struct flow_query *query, const struct flow_ends *ends,
						     const struct settings *settings, enum flow_query_kind kind,
						     __u32 *number)
{
	query->hash = flow_ends_hash(ends, settings->seed);
#pragma unroll
	for (__u32 i = 0; i < FLOW_HOMES; i++) {
		struct flow *flow = flow_entry(flow_home(query->hash) ^ i);

		if (!flow)
			return NULL;
		*number = flow_home(query->hash) ^ i;
		query->word = flow_word(flow);
		flow_barrier();
		if ((query->word & FLOW_PHASE_MASK) == FLOW_LIVE && fast_matches(flow, settings, ends, kind))
			return flow;
	}
	return fast_search(query, ends, kind, number);
}

static __always_inline struct flow *fast_find(struct flow_query *query, const struct flow_ends *ends,
					      const struct settings *settings, enum flow_query_kind kind)
{
	__u32 number;

	return fast_find_number(query, ends, settings, kind, &number);
}

/* From a pod packets to the node are looked at only if they may be answers to such connections. */
static __always_inline bool fast_may_be_reply(const struct settings *settings, const struct packet *packet)
{
	return (packet->hook == HOOK_FROM_NET || host_there(settings)) && may_be_snat_reply(settings, packet);
}

/* Of what may be a reply to SNAT: it is one, or the program for these has to look at it for the sake of the host's own connections. */
static __always_inline bool fast_is_reply(struct __sk_buff *skb, struct flow_query *query,
					  const struct settings *settings, const struct packet *packet)
{
	struct flow_ends ends;
	__u32 number;

	flow_ends_reply(&ends, packet);
	if (fast_find_number(query, &ends, settings, QUERY_SNAT_REPLY, &number)) {
		fast_onward(skb, packet, number, query->word, true);
		return true;
	}
	if (!host_there(settings) || packet->protocol != IPPROTO_TCP)
		return false;
	return answers_syn(packet) || fast_find(query, &ends, settings, QUERY_LEFT);
}

/* packet: parsed, its family and hook constants here. VERDICT_TRANSLATE_REPLY: it is one to SNAT, and has yet to be translated. */
static __always_inline enum verdict fast_forward(struct __sk_buff *skb, const struct packet *packet,
						 const struct headers *headers)
{
	const struct settings *settings = settings_get();
	struct flow_query query = {};
	struct flow_ends ends;
	struct flow *flow;
	__u32 known, number;
	bool opens, reply;

	if (!settings || settings_slow(settings) || trace_on)
		return VERDICT_CONTINUE;
	reply = fast_may_be_reply(settings, packet);
	if (reply && fast_is_reply(skb, &query, settings, packet))
		return VERDICT_TRANSLATE_REPLY;
	known = known_destination(&packet->destination, packet->destination_port, settings->seed);
	if (!known)
		return fast_unknown_reply(fast_unknown(settings, packet), reply);
	opens = (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	if (opens && (known & KNOWN_FRONTEND || direct_may_clash(settings, packet)))
		return VERDICT_CONTINUE;
	flow_ends_forward(&ends, packet);
	flow = fast_find_number(&query, &ends, settings, QUERY_FORWARD, &number);
	if (!flow)
		return fast_without_flow(settings, packet, known);
	return opens ? VERDICT_CONTINUE : fast_forward_match(skb, packet, headers, flow, number, query.word);
}

static __always_inline enum verdict fast_reply_flow(struct __sk_buff *skb, const struct packet *packet,
						    const struct headers *headers, struct flow *flow, __u32 word)
{
	__u32 id = flow->backend;
	struct rewrite to;

	to.source = flow->frontend;
	to.source_port = flow->frontend_port;
	if (!flow_use(flow, word, seen_from_server(packet, flow->seen)))
		return VERDICT_CONTINUE;
	rewrite_headers(skb, packet, headers, &to, CHANGE_SOURCE | CHANGE_SOURCE_PORT);
	count_from_backend(id, skb->len);
	return VERDICT_TRANSLATE_REPLY;
}

static __always_inline enum verdict fast_reply_match(struct __sk_buff *skb, const struct packet *packet,
						     const struct headers *headers, struct flow *flow, __u32 word)
{
	if (packet->tcp_flags & TCP_RST && !(flow->seen & SEEN_REPLY)) /* its SYN may be kept */
		return VERDICT_CONTINUE;
	if (flow_is_plain(flow))
		return fast_reply_flow(skb, packet, headers, flow, word);
	if (flow->flags == FLOW_DIRECT && flow_use(flow, word, seen_from_server(packet, flow->seen)))
		return VERDICT_PASS_DIRECT;
	return VERDICT_CONTINUE;
}

/* Of what leaves and answers nobody: a SYN that a socket of this host sends again, or what is of a connection whose SYN was; or one from a
 * frontend's port. Of first SYNs that asks whether the socket has sent anything twice, of all else nothing before the first such connection. */
static __always_inline enum verdict fast_of_host(struct __sk_buff *skb, const struct settings *settings,
						 const struct packet *packet)
{
	struct flow_query query = {};
	struct flow_ends ends;

	if (packet->protocol != IPPROTO_TCP)
		return VERDICT_PASS_NOT_SERVICE;
	if (is_plain_syn(packet) && (sends_again(skb) || opens_unasked(settings, packet)))
		return VERDICT_CONTINUE;
	if (!host_there(settings) || !is_snat_source(settings, &packet->source))
		return VERDICT_PASS_NOT_SERVICE;
	flow_ends_forward(&ends, packet);
	return fast_find(&query, &ends, settings, QUERY_FORWARD) ? VERDICT_CONTINUE : VERDICT_PASS_NOT_SERVICE;
}

static __always_inline enum verdict fast_reply(struct __sk_buff *skb, const struct packet *packet,
					       const struct headers *headers)
{
	const struct settings *settings = settings_get();
	struct flow_query query = {};
	struct flow_ends ends;
	struct flow *flow;

	if (!settings || settings_slow(settings) || trace_on)
		return VERDICT_CONTINUE;
	if (known_backend(&packet->source, packet->source_port, settings->seed)) {
		flow_ends_reply(&ends, packet);
		flow = fast_find(&query, &ends, settings, QUERY_REPLY);
		if (flow)
			return fast_reply_match(skb, packet, headers, flow, query.word);
		if (reply_may_be_late(settings, packet))
			return VERDICT_CONTINUE;
	}
	return fast_of_host(skb, settings, packet);
}

/* Tunnels (IPIP, GRE), ESP and others, whose IP header is as it should be: no flow is theirs, but addresses of services refuse them. */
static __always_inline enum verdict fast_portless(const struct packet *packet)
{
	const struct settings *settings = settings_get();

	if (!settings || settings_slow(settings) || trace_on)
		return VERDICT_CONTINUE;
	if (packet->hook == HOOK_TO_POD || packet->hook == HOOK_TO_NET)
		return VERDICT_PASS_PROTOCOL;
	if (known_frontend(&packet->destination, settings->seed) || in_service_cidr(settings, &packet->destination))
		return VERDICT_CONTINUE;
	return VERDICT_PASS_PROTOCOL;
}

static __always_inline enum verdict fast_decide(struct __sk_buff *skb, const struct packet *packet,
						const struct headers *headers)
{
	if (packet->hook == HOOK_FROM_POD || packet->hook == HOOK_FROM_NET)
		return fast_forward(skb, packet, headers);
	return fast_reply(skb, packet, headers);
}

/* A network device in promiscuous mode also shows what the switch sends to others. The kernel forwards none of it either. */
static __always_inline bool for_this_host(const struct __sk_buff *skb)
{
	return !link_header || skb->pkt_type == PACKET_HOST;
}

static __always_inline enum verdict fast_from(struct __sk_buff *skb, __u32 start, struct packet *packet)
{
	struct span span = span_of(skb);
	struct headers headers;

	if (is_tagged(skb))
		return VERDICT_PASS_NOT_IP;
	if (skb->protocol == bpf_htons(ETH_P_IP) && parse_plain4(&span, start, packet, &headers))
		return fast_decide(skb, packet, &headers);
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && parse_plain6(&span, start, packet, &headers))
		return fast_decide(skb, packet, &headers);
	return packet->family && is_portless(packet->protocol, packet->family) ? fast_portless(packet)
									       : VERDICT_CONTINUE;
}

/* packet: says the hook, is parsed here. The verifier leaves one of the two; offsets that are constants to the compiler as well
 * save it registers. */
static __always_inline enum verdict fast_path(struct __sk_buff *skb, struct packet *packet)
{
	return link_header ? fast_from(skb, ETH_HLEN, packet) : fast_from(skb, 0, packet);
}
