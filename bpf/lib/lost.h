/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connections that are lost: their backend is no endpoint any more, and is silent. The client sends the same bytes again and again, for a
 * quarter of an hour; here it gets a reset. A backend that sends anything to a client by this node, though it is gone, loses no connection. */
#pragma once

#include "health.h"
#include "translate.h"

#define TCP_LENGTH_OFFSET 12 /* of the byte of a TCP header whose high half is its length in words */

/* Not 0: the packet's receiver acknowledges it, as it has bytes or a FIN. Not one byte alone: receivers acknowledge that of a keepalive, and of
 * a probe of a window that is closed, and the sender sends it again nevertheless. */
static __always_inline bool lost_asks(const struct packet *packet, __u8 header)
{
	return !(packet->tcp_flags & (TCP_SYN | TCP_RST)) && packet->fragment == FRAGMENT_NONE &&
	       (packet->tcp_flags & TCP_FIN || packet->l4_length > header + 1);
}

struct lost_count {
	__u32 backend;
	__u32 packets;
};

/* Not 0: there is no such processor. */
static long lost_add(__u32 processor, void *context)
{
	struct lost_count *count = context;
	const struct backend_counter *counter =
		bpf_map_lookup_percpu_elem(&backend_counters, &count->backend, processor);

	if (!counter)
		return 1;
	count->packets += *(volatile const __u64 *)&counter->packets_from;
	return 0;
}

#define LOST_COPIES 4 /* Linux has sent that many 1.4 seconds after the first one, on a quick way */

#define PROCESSORS_MAX 8192

/* Packets that a backend has sent, low 32 bits. */
static __always_inline __u32 lost_heard(__u32 backend)
{
	struct lost_count count = { .backend = backend };

	bpf_loop(PROCESSORS_MAX, lost_add, &count, 0);
	return count.packets;
}

static __always_inline struct lost_packet *lost_slot(__u32 key)
{
	__u32 index = key >> 1 & (LOST_SLOTS - 1);

	return bpf_map_lookup_elem(&lost_packets, &index);
}

/* Says last whose it is: a connection that finds its own finds all of it, unless another one comes between. */
static __always_inline void lost_note(struct lost_packet *slot, __u32 key, __u32 sequence, __u32 heard, __u32 now)
{
	if (trace_on)
		return;
	*(volatile __u32 *)&slot->flow = 0;
	flow_barrier();
	slot->sequence = sequence;
	slot->time = now;
	slot->heard = heard;
	slot->copies = 1;
	flow_barrier();
	*(volatile __u32 *)&slot->flow = key;
}

/* The packet was here so often, for so long, and the backend has sent nothing since then, to no client that comes by this node. So often, as
 * on a slow way a client waits for a second before it sends it again, and one that is lost behind this node is no evidence. */
static __always_inline bool lost_silent(const struct flow *flow, __u32 sequence)
{
	__u32 key = syn_flow(flow);
	__u32 heard = lost_heard(flow->backend);
	struct lost_packet *slot = lost_slot(key);
	__u32 now = flow_now();

	if (!slot)
		return false;
	if (*(volatile __u32 *)&slot->flow == key && slot->sequence == sequence && slot->heard == heard) {
		__u32 copies = slot->copies + 1;

		if (!trace_on)
			slot->copies = copies;
		return copies >= LOST_COPIES &&
		       health_age(slot->time, now) >= jiffies_per_second * lost_milliseconds / 1000;
	}
	lost_note(slot, key, sequence, heard, now);
	return false;
}

/* Not 0: the connection is lost. A function of its own for the sake of the stack. */
__noinline int lost_find(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	const struct flow *flow;
	__u32 sequence;
	__u8 header;

	if (!packet || !found ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, seq), &sequence, sizeof(sequence)) ||
	    bpf_skb_load_bytes(skb, packet->l4 + TCP_LENGTH_OFFSET, &header, sizeof(header)) ||
	    !lost_asks(packet, (header >> 4) * 4))
		return false;
	flow = found_flow(found);
	return flow && lost_silent(flow, sequence) && flow_word(flow) == found->word;
}

/* Ends both entries of a connection that is lost. Id of its service port. */
static __always_inline __u32 lost_end(const struct found *found)
{
	struct flow *flow = found_flow(found);

	if (!flow)
		return 0;
	trace_flow(flow);
	if (!trace_on) {
		flow_note(flow, flow_now(), SEEN_RESET);
		flow_note_twin(flow, SEEN_RESET, false);
	}
	return flow->service;
}
