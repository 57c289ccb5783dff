/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last line of every entry point at TC: counts the packet once and turns its verdict into what TC does. */
#pragma once

#include <linux/pkt_cls.h>

#include "answer.h"
#include "create.h"
#include "observe.h"
#include "route.h"
#include "shortcut.h"
#include "work.h"

/* length: of the packet as it came. turned: it now goes back through its device. TC_ACT_UNSPEC lets other programs of the hook see the packet;
 * without any it goes on. A reject that is not turned has no answer. */
static __always_inline int finish_turned(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					 bool turned)
{
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	if (verdict_is_drop(verdict))
		return TC_ACT_SHOT;
	if (turned) /* what was about to leave comes in */
		return bpf_redirect(skb->ifindex, hook == HOOK_TO_NET ? BPF_F_INGRESS : 0);
	return verdict >= VERDICT_REJECT_NO_ENDPOINTS ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Counts the packet with what was decided before it was routed, and lets it go. */
static __always_inline int finish_routed(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					 struct route *route)
{
	if (route->stack)
		return finish_turned(skb, hook, verdict, length, false);
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	return route_send(route);
}

/* Counts a packet at its hook, and at to_pod as well where it leaves without coming by there. length: as it came. */
static __always_inline int finish_shortcut(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					   const struct bpf_fib_lookup *fib, enum way_out out)
{
	struct bpf_redir_neigh next = {};

	count_verdict(hook, verdict, length);
	if (out == OUT_STACK)
		return TC_ACT_UNSPEC;
	if (out == OUT_POD) {
		count_verdict(HOOK_TO_POD,
			      verdict == VERDICT_PASS_NOT_SERVICE ? VERDICT_TRANSLATE_REPLY : VERDICT_PASS_NOT_SERVICE,
			      length);
		return bpf_redirect_peer(fib->ifindex, 0);
	}
	next.nh_family = fib->family;
	if (fib->family == AF_INET)
		next.ipv4_nh = fib->ipv4_dst;
	else
		__builtin_memcpy(next.ipv6_nh, fib->ipv6_dst, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

static __always_inline int finish(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	return finish_turned(skb, hook, verdict, skb->len, verdict == VERDICT_TRANSLATE_HAIRPIN);
}

/* Of the slow path: also says which service did not get the packet, and answers what is rejected. */
static __always_inline int slow_finish(struct __sk_buff *skb, const struct work *work, enum hook hook,
				       enum verdict verdict)
{
	/* what is held back was refused none the less: its sender is not told */
	if (verdict_is_reject(verdict) && work->packet.protocol != IPPROTO_TCP && !icmp_error_allowed())
		verdict = VERDICT_DROP_ICMP_LIMIT;
	if (work->service)
		count_refused(work->service, verdict);
	event_refused(skb, &work->packet, verdict);
	if (verdict_is_reject(verdict)) {
		tail_reject(skb, hook, verdict);
		bpf_tail_call(skb, &programs, PROGRAM_REJECT);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, hook, verdict);
}
