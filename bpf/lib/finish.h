/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The last line of every entry point at TC: counts the packet once and turns its verdict into what TC does. */
#pragma once

#include <linux/pkt_cls.h>

#include "count.h"
#include "trace.h"

/* length: of the packet as it came. turned: it now goes back through its device. TC_ACT_UNSPEC lets other programs of the hook see the packet;
 * without any it goes on. A reject that is not turned has no answer. */
static __always_inline int finish_turned(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					 bool turned)
{
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	if (verdict_is_drop(verdict))
		return TC_ACT_SHOT;
	if (turned)
		return bpf_redirect(skb->ifindex, 0);
	return verdict >= VERDICT_REJECT_NO_ENDPOINTS ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

static __always_inline int finish(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	return finish_turned(skb, hook, verdict, skb->len, verdict == VERDICT_TRANSLATE_HAIRPIN);
}
