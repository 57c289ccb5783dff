/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of known connections of clients off the node that only go on, through SNAT both ways and into the tunnel: what becomes of them, for TC and
 * for XDP, and the program at TC that sends them on with one parse and no other program. What teaches a flow more than that a packet came, and
 * whatever is not simple, is left to the slow path as it came. */
#pragma once

#include "flow.h"
#include "rewrite.h"
#include "route.h"
#include "settings.h"
#include "shortcut.h"
#include "tunnel.h"
#include "work.h"

/* What a packet that goes on becomes. No pointers: it is handed to functions that the verifier knows apart. */
struct onward {
	struct rewrite to;
	__u32 backend; /* id */
	__u32 add;     /* what the packet adds to what the flow has seen: nothing that it has not */
};

/* The flow has seen what the packet shows. */
static __always_inline bool flow_knows(const struct flow *flow, __u32 add)
{
	__u32 seen = *(volatile const __u32 *)&flow->seen;

	return seen_after(seen, add) == seen;
}

/* Of the slow path's: forward_judge and forward_target for a packet that opens nothing. False: it is not simple. */
static __always_inline bool onward_forward(struct onward *on, const struct settings *settings,
					   const struct packet *packet, const struct flow *flow)
{
	const struct backend *backend = flow_backend_stays(flow);

	on->add = seen_from_client(packet, flow->seen);
	if (flow->flags != FLOW_SNAT || flow_expired(flow, flow_now()) || !flow_knows(flow, on->add) || !backend ||
	    (packet->protocol == IPPROTO_UDP && !backend_serves_always(backend)))
		return false;
	on->to.source = *snat_address(settings, flow);
	on->to.source_port = flow->twin_port;
	on->to.destination = backend->address;
	on->to.destination_port = backend->port;
	on->backend = flow->backend;
	return true;
}

/* snat_reply, the same. Whether the flow has expired was asked as it was found. */
static __always_inline bool onward_reply(struct onward *on, const struct packet *packet, const struct flow *flow)
{
	on->add = seen_from_server(packet, flow->seen);
	if (packet->tcp_flags & TCP_SYN || flow->flags & FLOW_ASKS || !flow_knows(flow, on->add))
		return false;
	on->to.source = flow->frontend;
	on->to.source_port = flow->frontend_port;
	on->to.destination = flow->client;
	on->to.destination_port = flow->twin_port;
	on->backend = flow->backend;
	return true;
}

/* The backend of a flow that takes the tunnel, by one entry, and that the packet teaches nothing. NULL: it is not simple. */
static __always_inline const struct backend *onward_carried(const struct flow *flow, __u32 add)
{
	if (!(flow->flags & FLOW_CARRY) || flow->flags & ~(FLOW_CARRY | FLOW_DSR) || flow_has_twin(flow) ||
	    flow_expired(flow, flow_now()) || !flow_knows(flow, add))
		return NULL;
	return flow_backend_stays(flow);
}

/* The way of the packet as it will be. length: as in fib_describe. */
static __always_inline void onward_describe(struct bpf_fib_lookup *fib, __u32 ifindex, const struct packet *packet,
					    const struct rewrite *to, __u32 length)
{
	fib_describe(fib, ifindex, packet, &to->source, &to->destination, length);
	fib->sport = to->source_port;
	fib->dport = to->destination_port;
}

/* At TC. A step is NEXT_ROUTE: the packet was translated, and leaves as the route says; NEXT_TUNNEL: it goes to another node; else it is as it
 * came. */

/* False: the routing tables know no simple way. */
static __always_inline bool onward_route(struct __sk_buff *skb, struct route *route, const struct onward *on)
{
	struct bpf_fib_lookup fib = {};

	onward_describe(&fib, skb->ifindex, &route->packet, &on->to, route_length(skb, &route->packet));
	if (bpf_fib_lookup(skb, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return false;
	route_next(route, &fib, BPF_FIB_LKUP_RET_SUCCESS);
	return true;
}

/* flow: the entry that was found, whose word said so. */
static __always_inline struct step onward_translate(struct __sk_buff *skb, struct route *route,
						    const struct headers *headers, struct flow *flow, __u32 word,
						    bool back)
{
	const struct settings *settings = settings_get();
	const struct packet *packet = &route->packet;
	struct onward on;
	struct flow *twin;

	if (!settings || hops_left(headers) <= 1 || flow_of_host(flow) ||
	    !(back ? onward_reply(&on, packet, flow) : onward_forward(&on, settings, packet, flow)))
		return step_finish(VERDICT_CONTINUE);
	twin = flow_twin(settings, flow);
	if (!twin || !flow_knows(twin, on.add) || !onward_route(skb, route, &on))
		return step_finish(VERDICT_CONTINUE);
	flow_barrier();
	if (flow_word(flow) != word)
		return step_finish(VERDICT_CONTINUE);
	flow_touch(flow, flow_now());
	flow_touch(twin, flow_now());
	shortcut_age(skb, headers);
	rewrite_headers(skb, packet, headers, &on.to, CHANGE_ALL);
	if (back)
		count_from_backend(on.backend, skb->len);
	else
		count_to_backend(on.backend, skb->len);
	return (struct step){ NEXT_ROUTE, back ? VERDICT_TRANSLATE_REPLY : VERDICT_TRANSLATE_ESTABLISHED };
}

/* The same of a client's packet whose flow takes the tunnel. */
static __always_inline struct step onward_carry(struct __sk_buff *skb, const struct packet *packet, struct flow *live,
						__u32 word)
{
	struct flow flow = *live; /* as it was when the word was asked again */
	const struct backend *backend = onward_carried(&flow, seen_from_client(packet, flow.seen));

	if (!backend || (packet->protocol == IPPROTO_UDP &&
			 !(backend_serves_always(backend) && tunnel_goes_on(backend->node, packet->family))))
		return step_finish(VERDICT_CONTINUE);
	flow_barrier();
	if (flow_word(live) != word)
		return step_finish(VERDICT_CONTINUE);
	flow_touch(live, flow_now());
	count_to_backend(flow.backend, skb->len);
	tail_tunnel(skb, &flow, VERDICT_TRANSLATE_ESTABLISHED, backend->node, tail_kind(&flow, packet), HOOK_FROM_NET);
	return step_to(NEXT_TUNNEL);
}

static __always_inline struct step onward_flow(struct __sk_buff *skb, struct route *route,
					       const struct headers *headers)
{
	__u32 word = handed(skb)->onward.word;
	struct flow *flow = flow_entry(handed(skb)->onward.at);

	if (!flow)
		return step_finish(VERDICT_CONTINUE);
	if (handed(skb)->onward.back)
		return onward_translate(skb, route, headers, flow, word, true);
	if (tunnel_there && flow->flags & FLOW_CARRY)
		return onward_carry(skb, &route->packet, flow, word);
	return onward_translate(skb, route, headers, flow, word, false);
}

/* What the fast path has handed on. route: its packet says the hook. */
static __always_inline struct step onward_take(struct __sk_buff *skb, struct route *route)
{
	struct span span = span_of(skb);
	struct headers headers;

	if (skb->protocol == bpf_htons(ETH_P_IP) && parse_plain4(&span, ETH_HLEN, &route->packet, &headers))
		return onward_flow(skb, route, &headers);
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && parse_plain6(&span, ETH_HLEN, &route->packet, &headers))
		return onward_flow(skb, route, &headers);
	return step_finish(VERDICT_CONTINUE);
}
