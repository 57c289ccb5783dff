/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SYNs that are kept until their backend has answered, where a Service asks for that (RECORD_RETRY_REFUSED): a refusal becomes the SYN again, as if
 * its client had sent it a moment later, and that goes to the next backend as any SYN of a connection that was refused. */
#pragma once

#include "answer.h"
#include "flow.h"
#include "packet.h"
#include "rewrite.h"
#include "settings.h"
#include "work.h"

#define KEPT_SENT_MAX 3 /* with the client's own, four SYNs: as many as backends are tried */

/* What tells a connection by either of its entries, whatever its backend. Never 0. */
static __always_inline __u32 kept_hash(const struct address *client, const struct address *frontend, __be16 client_port,
				       __be16 frontend_port)
{
	__u64 x = client->longs[1] ^ client->longs[0] * 0x9e3779b97f4a7c15ULL;

	x ^= (frontend->longs[1] ^ frontend->longs[0] * 0x94d049bb133111ebULL) * 0xbf58476d1ce4e5b9ULL;
	x ^= ((__u64)client_port << 16 | frontend_port) * 0xd6e8feb86659fd93ULL ^ filter_seed();
	x *= 0xff51afd7ed558ccdULL;
	return x >> 32 | 1;
}

static __always_inline __u32 kept_flow(const struct flow *flow)
{
	__be16 port = flow->flags & FLOW_ALIAS ? flow->twin_port : flow->key_port;

	return kept_hash(&flow->client, &flow->frontend, port, flow->frontend_port);
}

static __always_inline struct kept_syn *kept_slot(__u32 flow)
{
	__u32 index = flow >> 1 & (KEPT_SYNS - 1);

	return bpf_map_lookup_elem(&kept_syns, &index);
}

/* A SYN alone, whose headers are of the usual kinds: others are refused as ever. */
static __always_inline bool kept_is_plain(const struct packet *packet)
{
	return is_plain_syn(packet) && packet->protocol == IPPROTO_TCP && packet->fragment == FRAGMENT_NONE &&
	       packet->l4 == link_header + ip_header_size(packet->family) &&
	       packet->l4_length >= sizeof(struct tcphdr) && packet->l4_length <= KEPT_TCP_ROOM;
}

/* length: of the TCP header, which has no bytes behind it. */
static __always_inline bool kept_read(struct __sk_buff *skb, struct kept_syn *kept, const struct packet *packet,
				      __u32 length)
{
	__u32 last = length - 1;

	if (link_header && bpf_skb_load_bytes(skb, 0, kept->mac, sizeof(kept->mac)))
		return false;
	if (packet->family == 4 ? bpf_skb_load_bytes(skb, link_header, kept->ip, sizeof(struct iphdr))
				: bpf_skb_load_bytes(skb, link_header, kept->ip, sizeof(struct ipv6hdr)))
		return false;
	__builtin_memset(kept->tcp, 0, sizeof(kept->tcp));
	/* the bounds that a helper wants come last: before Linux 6.8 the verifier learns nothing from size != 0 */
	asm volatile("" : "+r"(last));
	if (last >= KEPT_TCP_ROOM || bpf_skb_load_bytes(skb, packet->l4, kept->tcp, last + 1))
		return false;
	((struct tcphdr *)kept->tcp)->check = 0;
	return ((struct tcphdr *)kept->tcp)->doff * 4 == length;
}

/* Keeps a SYN that is not translated yet; once more the same one: how often it was sent stays. It says last whose it is. A function of its
 * own for the sake of the stack. */
__noinline int kept_note(struct __sk_buff *skb, const struct packet *packet)
{
	struct kept_syn *kept;
	__u32 flow, sequence;

	if (!packet || trace_on || !kept_is_plain(packet) ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, seq), &sequence, sizeof(sequence)))
		return false;
	flow = kept_hash(&packet->source, &packet->destination, packet->source_port, packet->destination_port);
	kept = kept_slot(flow);
	if (!kept)
		return false;
	if (kept->flow != flow || kept->sequence != sequence)
		kept->sent = 0;
	*(volatile __u32 *)&kept->flow = 0;
	flow_barrier();
	if (!kept_read(skb, kept, packet, packet->l4_length))
		return false;
	kept->sequence = sequence;
	kept->ifindex = skb->ifindex;
	kept->family = packet->family;
	kept->length = packet->l4_length;
	flow_barrier();
	*(volatile __u32 *)&kept->flow = flow;
	return true;
}

/* kept_flow of the SYN that a reset refuses, 0: none is kept, or it was sent often enough. A function of its own for the sake of the stack. */
__noinline int kept_refused(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct kept_syn *kept;
	__u32 key, acked;

	if (!packet || !flow || trace_on || flow->flags & ~(FLOW_ALIAS | FLOW_SNAT) ||
	    packet->fragment != FRAGMENT_NONE)
		return 0;
	key = kept_flow(flow);
	kept = kept_slot(key);
	if (!kept || *(volatile __u32 *)&kept->flow != key || kept->sent >= KEPT_SENT_MAX ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, ack_seq), &acked, sizeof(acked)) ||
	    bpf_ntohl(acked) != bpf_ntohl(kept->sequence) + 1)
		return 0;
	kept->sent++;
	return key;
}

/* The server's first answer is a reset. packet: of TCP. */
static __always_inline bool kept_asked(const struct packet *packet, const struct flow *flow)
{
	return packet->tcp_flags & TCP_RST && packet->protocol == IPPROTO_TCP && !(flow->seen & SEEN_REPLY);
}

static __always_inline struct step step_resend(struct __sk_buff *skb, __u32 flow, enum hook hook)
{
	handed(skb)->resend.flow = flow;
	handed(skb)->resend.hook = hook;
	return (struct step){ NEXT_RESEND, VERDICT_DROP_NO_PROGRAM };
}

/* The sum of the pseudo header of a kept SYN. */
static __always_inline __u64 kept_pseudo(const struct kept_syn *kept)
{
	__u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(kept->length);

	if (kept->family == 4)
		return sum + csum_words((const __u32 *)&((const struct iphdr *)kept->ip)->saddr, 2);
	return sum + csum_words((const __u32 *)&((const struct ipv6hdr *)kept->ip)->saddr, 8);
}

/* Bytes behind the TCP header are zero. */
static __always_inline __u16 kept_check(const struct kept_syn *kept, bool partial)
{
	__u64 sum = kept_pseudo(kept);

	if (partial)
		return csum_fold(sum);
	return ~csum_fold(sum + csum_words((const __u32 *)kept->tcp, KEPT_TCP_ROOM / 4));
}

/* Copies a SYN whose row nobody has written meanwhile. */
static __always_inline bool kept_copy(struct kept_syn *to, __u32 flow)
{
	struct kept_syn *kept = kept_slot(flow);

	if (!kept || *(volatile __u32 *)&kept->flow != flow)
		return false;
	flow_barrier();
	*to = *kept;
	flow_barrier();
	return *(volatile __u32 *)&kept->flow == flow;
}

static __always_inline bool kept_write(struct __sk_buff *skb, const struct kept_syn *kept)
{
	__u32 l4 = link_header + ip_header_size(kept->family);
	__u32 length = kept->length;
	__u32 last = length - 1;

	if (bpf_skb_change_tail(skb, l4 + length, 0) ||
	    !(kept->family == 4 ? answer_store(skb, link_header, kept->ip, sizeof(struct iphdr))
				: answer_store(skb, link_header, kept->ip, sizeof(struct ipv6hdr))))
		return false;
	asm volatile("" : "+r"(last));
	if (last >= KEPT_TCP_ROOM)
		return false;
	return answer_store(skb, l4, kept->tcp, last + 1) &&
	       (!link_header || bpf_skb_store_bytes(skb, 0, kept->mac, sizeof(kept->mac), 0) == 0);
}

/* Makes the kept SYN of a refusal. The device by which it came, 0: it cannot be made. */
static __always_inline __u32 kept_send(struct __sk_buff *skb, struct kept_syn *kept)
{
	struct packet packet = {};
	bool partial;

	if (!kept_copy(kept, handed(skb)->resend.flow) || parse_full(skb, &packet) != VERDICT_CONTINUE ||
	    packet.malformed || packet.family != kept->family ||
	    packet.l4 != link_header + ip_header_size(packet.family))
		return 0;
	partial = reject_tcp_partial(skb, &packet);
	((struct tcphdr *)kept->tcp)->check = kept_check(kept, partial);
	return kept_write(skb, kept) ? kept->ifindex : 0;
}
