// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Entry points of every hook, and nothing else. */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/types.h"
#include "lib/maps.h"
#include "lib/config.h"
#include "lib/dns.h"
#include "lib/fast.h"
#include "lib/host.h"
#include "lib/icmp.h"
#include "lib/onward.h"
#include "lib/opened.h"
#include "lib/retry.h"
#include "lib/shortcut.h"
#include "lib/slow.h"
#include "lib/snat.h"
#include "lib/sock.h"
#include "lib/tunnel.h"
#include "lib/tunnel_in.h"
#include "lib/work.h"
#include "lib/xdp.h"
#include "lib/xdp_create.h"
#include "lib/xdp_tunnel.h"

/* From a pod to the host, and of no connection of its sockets that these tables know. Returns where the former ones do not, either, or there are
 * none. */
static __always_inline enum verdict pod_unknown_reply(struct __sk_buff *skb)
{
	bpf_tail_call(skb, &programs, PROGRAM_FORMER_POD_REPLY);
	return VERDICT_PASS_NOT_SERVICE;
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_FROM_POD };
	enum verdict verdict = fast_path(skb, &packet);

	if (verdict == VERDICT_TRANSLATE_REPLY) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_REPLY);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (verdict == VERDICT_PASS_UNKNOWN_REPLY)
		verdict = pod_unknown_reply(skb);
	if (verdict == VERDICT_CONTINUE) {
		tail_begin(skb);
		if (dns_there && packet.protocol == IPPROTO_UDP && packet.destination_port == bpf_htons(DNS_PORT))
			bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_DNS);
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	verdict = tunnel_guard(&packet, verdict);
	shortcut_try(skb, &packet, HOOK_FROM_POD, verdict);
	return finish(skb, HOOK_FROM_POD, verdict);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_TO_POD };
	enum verdict verdict = fast_path(skb, &packet);

	if (verdict == VERDICT_CONTINUE) {
		bpf_tail_call(skb, &programs, PROGRAM_TO_POD_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_TO_POD, verdict);
}

static __always_inline int from_net_begin(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_FROM_NET };
	enum verdict verdict;

	if (tunnel_came_aside(skb))
		return TC_ACT_UNSPEC;
	verdict = for_this_host(skb) ? fast_path(skb, &packet) : VERDICT_PASS_NOT_SERVICE;

	if (verdict == VERDICT_TRANSLATE_REPLY) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_REPLY);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (tunnel_is_here(skb, &packet, verdict)) {
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_IN);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (verdict == VERDICT_PASS_UNKNOWN_REPLY)
		bpf_tail_call(skb, &programs, PROGRAM_FORMER_REPLY);
	if (verdict == VERDICT_CONTINUE) {
		tail_begin(skb);
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	shortcut_try(skb, &packet, HOOK_FROM_NET, verdict);
	return finish(skb, HOOK_FROM_NET, verdict);
}

SEC("tc")
int from_net(struct __sk_buff *skb)
{
	if (!xdp_opens || !link_header)
		return from_net_begin(skb);
	if (opened_take(skb))
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OPENED);
	else
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_FAST);
	return finish(skb, HOOK_FROM_NET, VERDICT_DROP_NO_PROGRAM);
}

SEC("tc")
int onward(struct __sk_buff *skb)
{
	struct route route = { .packet.hook = HOOK_FROM_NET };
	bool back = handed(skb)->onward.back;
	__u32 length = skb->len;
	struct step step = onward_take(skb, &route);

	if (step.next == NEXT_ROUTE)
		return finish_routed(skb, HOOK_FROM_NET, step.verdict, length, &route);
	if (step.next == NEXT_TUNNEL) {
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
	} else if (back) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_REPLY);
	} else {
		tail_begin(skb);
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_SLOW);
	}
	return finish(skb, HOOK_FROM_NET, VERDICT_DROP_NO_PROGRAM);
}

SEC("tc")
int from_net_fast(struct __sk_buff *skb)
{
	return from_net_begin(skb);
}

SEC("xdp")
int from_net_xdp(struct xdp_md *ctx)
{
	return xdp_from_net(ctx);
}

SEC("xdp")
int xdp_tunnel_out(struct xdp_md *ctx)
{
	return xdp_wrap(ctx);
}

SEC("xdp")
int xdp_tunnel_in(struct xdp_md *ctx)
{
	return xdp_tunnel(ctx);
}

SEC("xdp")
int xdp_create(struct xdp_md *ctx)
{
	return xdp_open_flow(ctx);
}

SEC("tc")
int to_net(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_TO_NET };
	enum verdict verdict = fast_path(skb, &packet);

	if (verdict == VERDICT_CONTINUE) {
		bpf_tail_call(skb, &programs, PROGRAM_TO_NET_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_TO_NET, verdict);
}

SEC("tc")
int from_pod_slow(struct __sk_buff *skb)
{
	struct work work = {};
	struct step step = slow_forward(skb, &work, HOOK_FROM_POD);

	if (tail_again(skb, &work, step.next))
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_SLOW);
	if (step.next == NEXT_ICMP)
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_ICMP);
	if (step.next == NEXT_HAIRPIN)
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_HAIRPIN);
	if (step.next == NEXT_REPLY)
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_REPLY);
	if (step.next == NEXT_FORMER)
		step.verdict = pod_unknown_reply(skb);
	step.verdict = tunnel_guard(&work.packet, step.verdict);
	shortcut_try(skb, &work.packet, HOOK_FROM_POD, step.verdict);
	return slow_finish(skb, &work, HOOK_FROM_POD, step.verdict);
}

SEC("tc")
int from_net_slow(struct __sk_buff *skb)
{
	struct work work = {};
	struct step step = slow_forward(skb, &work, HOOK_FROM_NET);

	if (tail_again(skb, &work, step.next))
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_SLOW);
	if (step.next == NEXT_ICMP)
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_ICMP);
	if (step.next == NEXT_REPLY)
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_REPLY);
	if ((step.next == NEXT_FINISH || step.next == NEXT_FORMER) && tunnel_is_here(skb, &work.packet, step.verdict)) {
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_IN);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_TUNNEL) {
		tail_tunnel(skb, &work.in.flow, step.verdict, backend_node(work.in.flow.backend),
			    tail_kind(&work.in.flow, &work.packet), HOOK_FROM_NET);
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_FORMER)
		bpf_tail_call(skb, &programs, PROGRAM_FORMER_REPLY);
	if (step.next == NEXT_ROUTE) {
		tail_route(skb, step.verdict, slow_length(skb), work.in.flow.service, WAY_FORWARD);
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	shortcut_try(skb, &work.packet, HOOK_FROM_NET, step.verdict);
	return slow_finish(skb, &work, HOOK_FROM_NET, step.verdict);
}

SEC("tc")
int to_pod_slow(struct __sk_buff *skb)
{
	struct step step = slow_reply(skb, HOOK_TO_POD);

	if (step.next == NEXT_ICMP)
		bpf_tail_call(skb, &programs, PROGRAM_TO_POD_ICMP);
	if (step.next == NEXT_RESEND)
		bpf_tail_call(skb, &programs, PROGRAM_RESEND);
	if (step.next == NEXT_HOST) {
		tail_host(skb, HOOK_TO_POD);
		bpf_tail_call(skb, &programs, PROGRAM_HOST_OUT);
	}
	return finish(skb, HOOK_TO_POD, step.verdict);
}

SEC("tc")
int to_net_slow(struct __sk_buff *skb)
{
	struct step step = slow_reply(skb, HOOK_TO_NET);

	if (step.next == NEXT_ICMP)
		bpf_tail_call(skb, &programs, PROGRAM_TO_NET_ICMP);
	if (step.next == NEXT_RESEND)
		bpf_tail_call(skb, &programs, PROGRAM_RESEND);
	if (step.next == NEXT_HOST) {
		tail_host(skb, HOOK_TO_NET);
		bpf_tail_call(skb, &programs, PROGRAM_HOST_OUT);
	}
	if (step.next == NEXT_TUNNEL) {
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_REJECT) {
		tail_reject(skb, HOOK_TO_NET, step.verdict);
		bpf_tail_call(skb, &programs, PROGRAM_REJECT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_TO_NET, step.verdict);
}

SEC("tc")
int from_pod_hairpin(struct __sk_buff *skb)
{
	return finish(skb, HOOK_FROM_POD, slow_hairpin(skb).verdict);
}

SEC("tc")
int from_pod_icmp(struct __sk_buff *skb)
{
	struct icmp icmp = { .outer.hook = HOOK_FROM_POD };
	__u32 length = skb->len;
	struct step step = icmp_forward(skb, &icmp, HOOK_FROM_POD);

	event_refused(skb, &icmp.outer, step.verdict);
	return finish_turned(skb, HOOK_FROM_POD, step.verdict, length, icmp.back);
}

SEC("tc")
int from_net_icmp(struct __sk_buff *skb)
{
	struct icmp icmp = { .outer.hook = HOOK_FROM_NET };
	__u32 length = skb->len;
	struct step step = icmp_forward(skb, &icmp, HOOK_FROM_NET);

	if (step.next == NEXT_ROUTE) {
		tail_route(skb, step.verdict, length, icmp.match.flow.service, WAY_ERROR);
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_TUNNEL) {
		tail_tunnel(skb, &icmp.match.flow, step.verdict, backend_node(icmp.match.flow.backend), TUNNEL_FORWARD,
			    HOOK_FROM_NET);
		handed(skb)->tunnel.backend = 0;
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	event_refused(skb, &icmp.outer, step.verdict);
	return finish_turned(skb, HOOK_FROM_NET, step.verdict, length, icmp.back);
}

SEC("tc")
int to_pod_icmp(struct __sk_buff *skb)
{
	struct icmp icmp = { .outer.hook = HOOK_TO_POD };
	struct step step = icmp_reply(skb, &icmp, HOOK_TO_POD);

	return finish_turned(skb, HOOK_TO_POD, step.verdict, skb->len, icmp.back);
}

SEC("tc")
int to_net_icmp(struct __sk_buff *skb)
{
	struct icmp icmp = { .outer.hook = HOOK_TO_NET };
	struct step step = icmp_reply(skb, &icmp, HOOK_TO_NET);

	if (step.next == NEXT_TUNNEL) {
		tail_tunnel(skb, &icmp.match.flow, step.verdict, flow_carried_by(&icmp.match.flow), TUNNEL_REPLY,
			    HOOK_TO_NET);
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish_turned(skb, HOOK_TO_NET, step.verdict, skb->len, icmp.back);
}

SEC("tc")
int from_net_reply(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_FROM_NET };
	struct reply reply = {};
	struct step step = snat_reply(skb, &packet, &reply);

	if (step.next == NEXT_RESEND)
		bpf_tail_call(skb, &programs, PROGRAM_RESEND);
	if (step.next == NEXT_ROUTE && flow_of_host(&reply.flow))
		return finish_host(skb, HOOK_FROM_NET, step.verdict, &packet, &reply.flow);
	if (step.next == NEXT_ROUTE) {
		tail_route(skb, step.verdict, skb->len, reply.flow.service, WAY_BACK);
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_FORMER)
		step = host_reply(skb, &packet);
	if (step.next == NEXT_REJECT) {
		tail_reject(skb, HOOK_FROM_NET, step.verdict);
		bpf_tail_call(skb, &programs, PROGRAM_REJECT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_FORMER)
		bpf_tail_call(skb, &programs, PROGRAM_FORMER_REPLY);
	event_refused(skb, &packet, step.verdict);
	return finish(skb, HOOK_FROM_NET, step.verdict);
}

SEC("tc")
int from_pod_reply(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_FROM_POD };
	struct reply reply = {};
	struct step step = step_finish(VERDICT_PASS_NOT_SERVICE);

	if (parse_full(skb, &packet) == VERDICT_CONTINUE && host_comes_right(skb, &packet))
		step = snat_reply(skb, &packet, &reply);

	if (step.next == NEXT_ROUTE)
		return finish_host(skb, HOOK_FROM_POD, step.verdict, &packet, &reply.flow);
	if (step.next == NEXT_FORMER)
		step = host_reply(skb, &packet);
	if (step.next == NEXT_FORMER)
		step.verdict = pod_unknown_reply(skb);
	if (step.next == NEXT_REJECT) {
		tail_reject(skb, HOOK_FROM_POD, step.verdict);
		bpf_tail_call(skb, &programs, PROGRAM_REJECT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_FROM_POD, step.verdict);
}

SEC("tc")
int host_out(struct __sk_buff *skb)
{
	struct work work = {};
	struct step step = host_forward(skb, &work);
	enum hook hook = host_hook(skb);

	if (tail_again(skb, &work, step.next))
		bpf_tail_call(skb, &programs, PROGRAM_HOST_OUT);
	if (step.next == NEXT_ROUTE) {
		tail_route(skb, step.verdict, skb->len, work.in.flow.service, WAY_HOST);
		handed(skb)->route.hook = hook;
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, hook, step.verdict);
}

SEC("tc")
int route(struct __sk_buff *skb)
{
	struct route route = { .packet.hook = HOOK_FROM_NET };
	enum verdict verdict = handed(skb)->route.verdict;
	__u32 length = handed(skb)->route.length;
	enum hook hook = handed(skb)->route.hook;
	enum verdict result = route_packet(skb, &route, handed(skb)->route.way == WAY_HOST);
	bool error;

	if (result == VERDICT_CONTINUE)
		return finish_routed(skb, hook, verdict, length, &route);
	if (!verdict_is_translate(verdict)) /* an answer, whose packet is counted as answered */
		return finish_turned(skb, hook, verdict, length, false);
	error = handed(skb)->route.way == WAY_ERROR;
	if (!verdict_is_drop(result) && !error && !icmp_error_allowed())
		result = VERDICT_DROP_ICMP_LIMIT;
	if (!verdict_is_drop(result) && !error) {
		tail_too_big(skb, result, route.mtu);
		bpf_tail_call(skb, &programs, PROGRAM_TOO_BIG);
		result = VERDICT_DROP_NO_PROGRAM;
	}
	count_refused(handed(skb)->route.service, result);
	event_refused(skb, &route.packet, result);
	return finish_turned(skb, hook, result, length, false);
}

/* What was handed on is read again where it is wanted: there is no stack to keep it. */
SEC("tc")
int too_big(struct __sk_buff *skb)
{
	if (too_big_answer(skb, handed(skb)->route.verdict, handed(skb)->route.mtu, handed(skb)->route.way)) {
		if (way_comes_in(handed(skb)->route.way)) /* to the socket, by the device that the packet came to */
			return finish_resent(handed(skb)->route.hook, handed(skb)->route.verdict,
					     handed(skb)->route.length, skb->ifindex);
		if (handed(skb)->route.way == WAY_CARRIED) {
			tail_error_back(skb);
			bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
		}
		handed(skb)->route.way = WAY_ERROR;
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
	}
	return finish_turned(skb, handed(skb)->route.hook, handed(skb)->route.verdict, handed(skb)->route.length,
			     false);
}

SEC("tc")
int tunnel_out(struct __sk_buff *skb)
{
	enum verdict verdict = handed(skb)->tunnel.verdict;
	__u32 service = handed(skb)->tunnel.service;
	__u32 length = handed(skb)->tunnel.length;
	enum hook hook = handed(skb)->tunnel.hook;
	struct wrap wrap = {};
	enum verdict result = tunnel_there ? wrap_packet(skb, &wrap) : VERDICT_DROP_NO_PROGRAM;

	if (result == VERDICT_CONTINUE)
		return wrap.turns ? finish_turned(skb, hook, verdict, length, true)
				  : finish_routed(skb, hook, verdict, length, &wrap.route);
	if (!verdict_is_translate(verdict)) /* an answer, whose packet is counted as answered */
		return finish_turned(skb, hook, verdict, length, false);
	if (!verdict_is_drop(result) && verdict != VERDICT_TRANSLATE_ICMP && !icmp_error_allowed())
		result = VERDICT_DROP_ICMP_LIMIT;
	if (!verdict_is_drop(result) && verdict != VERDICT_TRANSLATE_ICMP) {
		tail_route(skb, result, length, service, wrap_way(skb, &wrap));
		handed(skb)->route.hook = hook;
		handed(skb)->route.mtu = wrap.route.mtu;
		bpf_tail_call(skb, &programs, PROGRAM_TOO_BIG);
		result = VERDICT_DROP_NO_PROGRAM;
	}
	count_refused(service, result);
	event_refused(skb, &wrap.route.packet, result);
	return finish_turned(skb, hook, result, length, false);
}

/* Does not return where it can be helped. */
static __always_inline enum verdict tunnel_leave(struct __sk_buff *skb, const struct packet *packet, __u8 kind)
{
	tail_begin(skb);
	if (is_icmp(packet->protocol, packet->family))
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_ICMP);
	else if (kind == TUNNEL_REPLY || kind == TUNNEL_UNKNOWN)
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_BACK);
	else
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_FORWARD);
	return VERDICT_DROP_NO_PROGRAM;
}

SEC("tc")
int tunnel_in(struct __sk_buff *skb)
{
	struct arrival arrival = { .packet.hook = HOOK_FROM_NET };
	struct tunnel_packet *in = tunnel_packet_get();
	__u32 length = skb->len;
	enum verdict verdict = in ? arrival_take(skb, &arrival, in) : VERDICT_DROP_NO_PROGRAM;

	if (verdict == VERDICT_CONTINUE)
		verdict = tunnel_leave(skb, &arrival.packet, in->kind);
	event_refused(skb, &arrival.packet, verdict);
	return finish_turned(skb, HOOK_FROM_NET, verdict, length, verdict == VERDICT_REJECT_HELLO);
}

SEC("tc")
int tunnel_opened(struct __sk_buff *skb)
{
	struct arrival arrival = { .packet.hook = HOOK_FROM_NET };
	struct tunnel_packet *in = tunnel_packet_get();
	enum verdict verdict = in ? arrival_opened(skb, &arrival, in) : VERDICT_DROP_NO_PROGRAM;

	if (verdict == VERDICT_CONTINUE)
		verdict = tunnel_leave(skb, &arrival.packet, in->kind);
	event_refused(skb, &arrival.packet, verdict);
	return finish_turned(skb, HOOK_FROM_NET, verdict, in ? in->length : 0, false);
}

SEC("tc")
int tunnel_forward(struct __sk_buff *skb)
{
	const struct tunnel_packet *in = tunnel_packet_get();
	struct work work = {};
	struct step step = in ? tunnel_deliver(skb, &work, in) : step_finish(VERDICT_DROP_NO_PROGRAM);
	__u32 aside;

	in = tunnel_packet_get(); /* again: there is no stack to keep it */
	if (tail_again(skb, &work, step.next))
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_FORWARD);
	if (in && step.next == NEXT_TUNNEL) {
		tail_tunnel_to(skb, step.verdict, in->node, TUNNEL_UNKNOWN, HOOK_FROM_NET);
		handed(skb)->tunnel.length = in->length;
		bpf_tail_call(skb, &programs, PROGRAM_TUNNEL_OUT);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (step.next == NEXT_ROUTE) {
		tail_route(skb, step.verdict, in ? in->length : 0, work.service, WAY_NEAR);
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (work.service)
		count_refused(work.service, step.verdict);
	event_refused(skb, &work.packet, step.verdict);
	aside = step_lets_in(step) ? tunnel_aside(skb, &work.packet, &work.in, &work.found) : 0;
	if (aside)
		return finish_aside(skb, step.verdict, in ? in->length : 0, aside);
	shortcut_try_without(skb, &work.packet, HOOK_FROM_NET, step.verdict, in ? in->length - skb->len : 0);
	return finish_turned(skb, HOOK_FROM_NET, step.verdict, in ? in->length : 0, false);
}

SEC("tc")
int tunnel_back(struct __sk_buff *skb)
{
	const struct tunnel_packet *in = tunnel_packet_get();
	struct flow_query query = {};
	struct packet packet = {};
	struct found found = {};
	bool turned = in && in->kind == TUNNEL_UNKNOWN;
	enum verdict verdict = VERDICT_DROP_NO_PROGRAM;
	const struct flow *flow;

	if (in)
		verdict = turned ? tunnel_turn(skb, &packet, &found, &query, in->node)
				 : tunnel_answer(skb, &packet, &found, &query, in->node);
	flow = found_flow(&found);
	if (verdict == VERDICT_CONTINUE && turned) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_NET_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (verdict == VERDICT_CONTINUE) {
		verdict = packet.fragment == FRAGMENT_LATER ? VERDICT_TRANSLATE_FRAGMENT : VERDICT_TRANSLATE_REPLY;
		tail_route(skb, verdict, in->length, flow ? flow->service : 0, WAY_CARRIED);
		handed(skb)->route.node = in->node;
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	event_refused(skb, &packet, verdict);
	return finish_turned(skb, HOOK_FROM_NET, verdict, in ? in->length : 0, false);
}

SEC("tc")
int tunnel_icmp(struct __sk_buff *skb)
{
	const struct tunnel_packet *in = tunnel_packet_get();
	struct icmp icmp = { .outer.hook = HOOK_FROM_NET };
	struct step step = in ? tunnel_error(skb, &icmp, in) : step_finish(VERDICT_DROP_NO_PROGRAM);
	__u32 aside = in ? tunnel_error_aside(skb, &icmp, step) : 0;

	if (in && aside)
		return finish_aside(skb, step.verdict, in->length, aside);
	if (step.next == NEXT_ROUTE) {
		tail_route(skb, step.verdict, in ? in->length : 0, 0, WAY_ERROR);
		bpf_tail_call(skb, &programs, PROGRAM_ROUTE);
		step.verdict = VERDICT_DROP_NO_PROGRAM;
	}
	event_refused(skb, &icmp.outer, step.verdict);
	return finish_turned(skb, HOOK_FROM_NET, step.verdict, in ? in->length : 0, false);
}

SEC("tc")
int shortcut(struct __sk_buff *skb)
{
	enum verdict verdict = handed(skb)->shortcut.verdict;
	__u32 length = skb->len + (handed(skb)->shortcut.hook >> SHORTCUT_FRONT_SHIFT);
	enum hook hook = (__u8)handed(skb)->shortcut.hook;
	struct bpf_fib_lookup fib = {};

	return finish_shortcut(skb, hook, verdict, length, &fib, shortcut_take(skb, hook, verdict, &fib));
}

SEC("tc")
int from_pod_dns(struct __sk_buff *skb)
{
	struct packet packet = { .hook = HOOK_FROM_POD };
	__u32 length = skb->len;
	enum verdict verdict = dns_answer(skb, &packet);

	if (verdict == VERDICT_CONTINUE) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish_turned(skb, HOOK_FROM_POD, verdict, length, verdict == VERDICT_REJECT_NAME);
}

SEC("tc")
int reject(struct __sk_buff *skb)
{
	enum verdict verdict = handed(skb)->reject.verdict;
	enum hook hook = handed(skb)->reject.hook;
	__u32 length = skb->len;

	return finish_turned(skb, hook, verdict, length, reject_answer(skb, verdict));
}

SEC("tc")
int resend(struct __sk_buff *skb)
{
	enum hook hook = handed(skb)->resend.hook;
	__u32 length = skb->len;
	struct kept_syn kept;
	__u32 ifindex = kept_send(skb, &kept);

	return finish_resent(hook, ifindex ? VERDICT_TRANSLATE_REFUSED : VERDICT_DROP_REWRITE, length, ifindex);
}

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	return sock_connect(ctx, false);
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	return sock_connect(ctx, true);
}

SEC("cgroup/sendmsg4")
int sock_sendmsg4(struct bpf_sock_addr *ctx)
{
	return sock_send(ctx, false);
}

SEC("cgroup/sendmsg6")
int sock_sendmsg6(struct bpf_sock_addr *ctx)
{
	return sock_send(ctx, true);
}

SEC("cgroup/recvmsg4")
int sock_recvmsg4(struct bpf_sock_addr *ctx)
{
	return sock_receive(ctx, false);
}

SEC("cgroup/recvmsg6")
int sock_recvmsg6(struct bpf_sock_addr *ctx)
{
	return sock_receive(ctx, true);
}

SEC("cgroup/getpeername4")
int sock_getpeername4(struct bpf_sock_addr *ctx)
{
	return sock_peer_name(ctx, false);
}

SEC("cgroup/getpeername6")
int sock_getpeername6(struct bpf_sock_addr *ctx)
{
	return sock_peer_name(ctx, true);
}

SEC("tc")
int sock_explain(struct __sk_buff *skb)
{
	return finish(skb, HOOK_SOCK, sock_explain_packet(skb));
}

SEC("iter/udp")
int sock_peers(struct bpf_iter__udp *ctx)
{
	sock_list(ctx);
	return 0;
}

char __license[] SEC("license") = "Dual BSD/GPL";
