/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checksums, changed incrementally (RFC 1624), and what the kernel says about a packet's. */
#pragma once

#include <bpf/bpf_core_read.h>

#include "config.h"
#include "packet.h"

/* skb->ip_summed: include/linux/skbuff.h. */
enum summed {
	SUMMED_NONE = 0,        /* the checksum in the packet is complete */
	SUMMED_UNNECESSARY = 1, /* the same, and found right */
	SUMMED_COMPLETE = 2,    /* skb->csum is the sum from the network header on: it has to follow every change */
	SUMMED_PARTIAL = 3,     /* the field has the sum of the pseudo header; device or stack do the rest */
	SUMMED_UNKNOWN = 4,     /* kernel before 6.2: the checksum helpers know */
};

struct sk_buff {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *context) __ksym __weak;

static __always_inline enum summed packet_summed(struct __sk_buff *skb)
{
	if (checksum_helpers || !bpf_cast_to_kern_ctx)
		return SUMMED_UNKNOWN;
	const struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

/* Sums are kept in 64 bits and folded at the end; two's complement words need no carry before. */
static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum >> 32) + (__u32)sum;
	sum = (sum >> 16) + (__u16)sum;
	sum = (sum >> 16) + (__u16)sum;
	sum = (sum >> 16) + (__u16)sum;
	return sum;
}

/* What replacing one word by another adds to a sum. */
static __always_inline __u64 csum_change(__u32 from, __u32 to)
{
	return (__u64)(__u32)~from + to;
}

static __always_inline __u64 csum_change_port(__be16 from, __be16 to)
{
	return (__u64)(__u16)~from + to;
}

static __always_inline __u64 csum_change_address(__u8 family, const struct address *from, const struct address *to)
{
	__u64 sum = csum_change(from->longs[1] >> 32, to->longs[1] >> 32);

	if (family == 4)
		return sum;
	sum += csum_change(from->longs[1], to->longs[1]);
	sum += csum_change(from->longs[0], to->longs[0]);
	sum += csum_change(from->longs[0] >> 32, to->longs[0] >> 32);
	return sum;
}

/* A complete checksum field after a change. */
static __always_inline __u16 csum_after(__u16 field, __u64 change)
{
	return ~csum_fold((__u16)~field + change);
}

/* skb->csum follows the packet's bytes. */
static __always_inline void csum_complete(struct __sk_buff *skb, __u64 change)
{
	bpf_csum_update(skb, csum_fold(change));
}
