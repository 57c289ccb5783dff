/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Questions to the kernel's routing tables. */
#pragma once

#include "config.h"
#include "packet.h"
#include "settings.h"

#define AF_INET  2
#define AF_INET6 10

/* A way from source to destination for a packet that came as skb did. length: of the largest IP packet that goes that way,
 * 0 for whatever length. */
static __always_inline void fib_describe(struct bpf_fib_lookup *fib, const struct __sk_buff *skb,
					 const struct packet *packet, const struct address *source,
					 const struct address *destination, __u32 length)
{
	fib->ifindex = skb->ifindex;
	fib->l4_protocol = packet->protocol;
	fib->sport = packet->source_port;
	fib->dport = packet->destination_port;
	fib->tot_len = length;
	if (packet->family == 4) {
		fib->family = AF_INET;
		fib->ipv4_src = address_to4(source);
		fib->ipv4_dst = address_to4(destination);
		return;
	}
	fib->family = AF_INET6;
	address_to6(source, (struct in6_addr *)fib->ipv6_src);
	address_to6(destination, (struct in6_addr *)fib->ipv6_dst);
}

/* Of an answer that names no way: what becomes of the packet. */
static __always_inline enum verdict fib_verdict(long answer)
{
	return answer == BPF_FIB_LKUP_RET_FWD_DISABLED ? VERDICT_DROP_FORWARDING_OFF : VERDICT_DROP_NO_ROUTE;
}

/* An answer that names a device. */
static __always_inline bool fib_found(long answer)
{
	return answer == BPF_FIB_LKUP_RET_SUCCESS || answer == BPF_FIB_LKUP_RET_NO_NEIGH ||
	       answer == BPF_FIB_LKUP_RET_FRAG_NEEDED || answer == BPF_FIB_LKUP_RET_NO_SRC_ADDR;
}
