/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last line of every entry point at TC: counts the packet once and turns its verdict into what TC does. */
#pragma once

#include <linux/pkt_cls.h>

#include "count.h"
#include "trace.h"

/* TC_ACT_UNSPEC lets other programs of the hook see the packet; without any it goes on. */
static __always_inline int finish(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	trace_verdict(verdict);
	count_verdict(hook, verdict, skb->len);
	if (verdict_is_drop(verdict))
		return TC_ACT_SHOT;
	if (verdict == VERDICT_TRANSLATE_HAIRPIN)
		return bpf_redirect(skb->ifindex, 0);
	return TC_ACT_UNSPEC;
}

/* Of a packet that was to be answered: it became the answer, or there is none. */
static __always_inline int finish_answer(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					 bool answered)
{
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	return answered ? bpf_redirect(skb->ifindex, 0) : TC_ACT_SHOT;
}
