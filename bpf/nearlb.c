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
#include "lib/export.h"
#include "lib/fast.h"
#include "lib/event.h"
#include "lib/finish.h"
#include "lib/reject.h"
#include "lib/slow.h"
#include "lib/slow_icmp.h"
#include "lib/tail.h"

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	enum verdict verdict = fast_from_pod(skb);

	if (verdict == VERDICT_CONTINUE) {
		tail_begin(skb);
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_FROM_POD, verdict);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	enum verdict verdict = fast_to_pod(skb);

	if (verdict == VERDICT_CONTINUE) {
		bpf_tail_call(skb, &programs, PROGRAM_TO_POD_SLOW);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_TO_POD, verdict);
}

SEC("tc")
int from_pod_slow(struct __sk_buff *skb)
{
	struct work work = {};
	enum verdict verdict = slow_from_pod(skb, &work);

	if (work.again && tail_again(skb, work.clash, work.found.lost))
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_SLOW);
	if (work.icmp) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_ICMP);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (work.hairpin) {
		bpf_tail_call(skb, &programs, PROGRAM_FROM_POD_HAIRPIN);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	if (work.service)
		count_refused(work.service, verdict);
	event_refused(skb, &work.packet, verdict);
	if (verdict_is_reject(verdict)) {
		tail_reject(skb, HOOK_FROM_POD, verdict);
		bpf_tail_call(skb, &programs, PROGRAM_REJECT);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_FROM_POD, verdict);
}

SEC("tc")
int to_pod_slow(struct __sk_buff *skb)
{
	bool icmp = false;
	enum verdict verdict = slow_to_pod(skb, &icmp);

	if (icmp) {
		bpf_tail_call(skb, &programs, PROGRAM_TO_POD_ICMP);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, HOOK_TO_POD, verdict);
}

SEC("tc")
int from_pod_hairpin(struct __sk_buff *skb)
{
	return finish(skb, HOOK_FROM_POD, slow_hairpin(skb));
}

SEC("tc")
int from_pod_icmp(struct __sk_buff *skb)
{
	struct icmp icmp = { .outer.hook = HOOK_FROM_POD };
	__u32 length = skb->len;
	enum verdict verdict = icmp_from_pod(skb, &icmp);

	event_refused(skb, &icmp.outer, verdict);
	return finish_turned(skb, HOOK_FROM_POD, verdict, length, icmp.back);
}

SEC("tc")
int to_pod_icmp(struct __sk_buff *skb)
{
	struct icmp icmp = { .outer.hook = HOOK_TO_POD };
	enum verdict verdict = icmp_to_pod(skb, &icmp);

	return finish_turned(skb, HOOK_TO_POD, verdict, skb->len, icmp.back);
}

SEC("tc")
int reject(struct __sk_buff *skb)
{
	enum verdict verdict = skb->cb[CB_VERDICT];
	enum hook hook = skb->cb[CB_HOOK];
	__u32 length = skb->len;

	return finish_turned(skb, hook, verdict, length, reject_answer(skb));
}

char __license[] SEC("license") = "Dual BSD/GPL";
