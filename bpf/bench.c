// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Wrapper for nearlb bench: restores the packet, makes it one of the flows and tail-calls the program that is measured.
 * BPF_PROG_TEST_RUN runs a repeated packet on as the last run left it, so a program that rewrites cannot be repeated bare. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/types.h"

#define FRAME_WORDS 12
#define PORTS_BITS  15 /* flows from one client address: 32768 source ports, then the next address */

/* Where a frame has what, bytes from its start; set before load, so that they are constants to the verifier. */
volatile const __u32 address_at;       /* last two bytes of the client's address */
volatile const __u32 port_at;          /* the client's port */
volatile const __u32 network_fix_at;   /* IPv4 identification: keeps the header checksum right; 0 none */
volatile const __u32 transport_fix_at; /* first two bytes of data: keep the transport checksum right */

struct frame {
	__u64 words[FRAME_WORDS];
};

/* Which flow is next. Flow 0 is the frame as it was given. */
struct cursor {
	__u64 next;
	__u64 flows;  /* how many */
	__u64 stride; /* smaller than flows, without common divisor: each comes once a round */
	__u64 drained;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct frame);
	__uint(max_entries, 1);
} frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct cursor);
	__uint(max_entries, 1);
} cursors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} target SEC(".maps");

/* The same of programs at XDP: a table has programs of one kind. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} target_xdp SEC(".maps");

/* The hash that a load balancer without a flow table of its own would look up: one entry, found. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct frontend_key);
	__type(value, __u32);
	__uint(max_entries, 16);
} hash SEC(".maps");

static __always_inline void add(void *data, __u32 at, __u32 number)
{
	__be16 *word = data + at;
	__u32 sum = bpf_ntohs(*word) + number;

	*word = bpf_htons((sum & 0xffff) + (sum >> 16));
}

/* Moves the frame to a flow; what address and port add to a checksum is taken away again in the fix words. */
static __always_inline void choose(void *data, __u64 flow)
{
	__u32 port = flow & ((1 << PORTS_BITS) - 1);
	__u32 address = (flow >> PORTS_BITS) & 0xfff;

	add(data, port_at, port);
	add(data, address_at, address);
	if (network_fix_at)
		add(data, network_fix_at, 0xffff - address);
	add(data, transport_fix_at, 0xffff - port);
	add(data, transport_fix_at, 0xffff - address);
}

/* False: it does not fit. */
static __always_inline bool restore(void *data, void *end)
{
	__u32 zero = 0;
	struct frame *frame = bpf_map_lookup_elem(&frames, &zero);
	struct cursor *p = bpf_map_lookup_elem(&cursors, &zero);

	if (!frame || !p || data + sizeof(*frame) > end)
		return false;
#pragma unroll
	for (int i = 0; i < FRAME_WORDS; i++)
		((__u64 *)data)[i] = frame->words[i];
	choose(data, p->next);
	p->next += p->stride;
	if (p->next >= p->flows)
		p->next -= p->flows;
	/* A locked instruction waits until the packet is in the cache, where a real one is by now: reads that span two of
	 * the stores above would else wait for them, and be measured. */
	__sync_lock_test_and_set(&p->drained, 1);
	return true;
}

SEC("tc")
int wrapper(struct __sk_buff *skb)
{
	if (restore((void *)(long)skb->data, (void *)(long)skb->data_end))
		bpf_tail_call_static(skb, &target, 0);
	return TC_ACT_SHOT;
}

SEC("xdp")
int wrapper_xdp(struct xdp_md *ctx)
{
	int more = (int)((void *)(long)ctx->data_end - (void *)(long)ctx->data) - (int)sizeof(struct frame);

	if (more && bpf_xdp_adjust_head(ctx, more)) /* what the packet before got in front is still there */
		return XDP_ABORTED;
	if (restore((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		bpf_tail_call_static(ctx, &target_xdp, 0);
	return XDP_ABORTED;
}

SEC("xdp")
int floor_empty_xdp(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("tc")
int floor_empty(struct __sk_buff *skb)
{
	return TC_ACT_OK;
}

SEC("tc")
int floor_hash_lookup(struct __sk_buff *skb)
{
	struct frontend_key key = {};

	return bpf_map_lookup_elem(&hash, &key) ? TC_ACT_OK : TC_ACT_SHOT;
}

/* What any translation has to do: destination address and port of IPv4 TCP, both checksums brought up to date. */
SEC("tc")
int floor_rewrite(struct __sk_buff *skb)
{
	__u8 *data = (void *)(long)skb->data;
	__u8 *end = (void *)(long)skb->data_end;
	__u16 *words;
	__u32 sum;

	if (data + 54 > end)
		return TC_ACT_SHOT;
	words = (void *)data;
	sum = (__u16)~words[15] + (__u16)~words[16] + 0x0102u + 0x0304u;
	words[15] = 0x0102;
	words[16] = 0x0304;
	sum = (sum & 0xffff) + (sum >> 16);
	words[12] = ~((__u16)~words[12] + sum);
	sum += (__u16)~words[18] + 0x0506u;
	words[18] = 0x0506;
	sum = (sum & 0xffff) + (sum >> 16);
	words[25] = ~((__u16)~words[25] + sum);
	return TC_ACT_OK;
}

char __license[] SEC("license") = "Dual BSD/GPL";
