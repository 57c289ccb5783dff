// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Entry points of every hook, and nothing else. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/types.h"
#include "lib/maps.h"
#include "lib/config.h"
#include "lib/export.h"

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	__u32 zero = 0;
	bpf_map_lookup_elem(&frontends, &zero);
	return TC_ACT_OK;
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	return TC_ACT_OK;
}

char __license[] SEC("license") = "Dual BSD/GPL";
