/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The shortest way out, if the settings ask for it: what the host's stack would only forward goes to a pod of this node, or to the next
 * hop, by itself. Whatever a router does more to a packet than to count its TTL down is left to the stack: options, fragments,
 * ICMP errors, neighbours that are not known, packets for the host itself. */
#pragma once

#include <linux/if_packet.h>

#include "fast.h"
#include "observe.h"
#include "route.h"
#include "work.h"

enum way_out {
	OUT_STACK = 0,
	OUT_POD, /* into the namespace of a pod, past to_pod: what that would have done is done */
	OUT_NEIGHBOUR,
};

#define SHORTCUT_FRONT_SHIFT 8

/* Packets towards a backend, and what may be an answer of one: whose source is a backend. */
static __always_inline bool shortcut_wanted(const struct packet *packet, enum verdict verdict)
{
	const struct settings *settings = settings_get();

	if (!shortcut_there || !link_header || trace_on || !settings || !settings->shortcut)
		return false;
	if (verdict == VERDICT_PASS_NOT_SERVICE)
		return known_backend(&packet->source, packet->source_port, settings->seed);
	return verdict >= VERDICT_TRANSLATE_ESTABLISHED && verdict <= VERDICT_TRANSLATE_RETRY &&
	       verdict != VERDICT_TRANSLATE_REPLY;
}

/* Has the program shortcut send a packet that may leave past the stack; returns with any other. Without that program the stack delivers it. front:
 * how many bytes it had in front when it came. */
static __always_inline void shortcut_try_without(struct __sk_buff *skb, const struct packet *packet, enum hook hook,
						 enum verdict verdict, __u32 front)
{
	if (!shortcut_wanted(packet, verdict))
		return;
	handed(skb)->shortcut.verdict = verdict;
	handed(skb)->shortcut.hook = hook | front << SHORTCUT_FRONT_SHIFT;
	bpf_tail_call(skb, &programs, PROGRAM_SHORTCUT);
}

/* The same of a packet that came as it is. */
static __always_inline void shortcut_try(struct __sk_buff *skb, const struct packet *packet, enum hook hook,
					 enum verdict verdict)
{
	shortcut_try_without(skb, packet, hook, verdict, 0);
}

/* The agent that said so may be gone: then the settings are mended here, as the beats of hours later would look like its last. */
static __always_inline bool shortcut_in_force(const struct settings *settings)
{
	__u16 now;

	if (flows_are_counted(settings)) /* at the client's door */
		return false;
	if (settings->shortcut != SHORTCUT_WHILE_BEATING)
		return settings->shortcut == SHORTCUT_ON;
	now = bpf_ktime_get_ns() >> SHORTCUT_BEAT_SHIFT;
	if ((__u16)(now - settings->shortcut_beat) <= SHORTCUT_BEATS_MISSED)
		return true;
	*(volatile __u8 *)&settings->shortcut = SHORTCUT_OFF;
	return false;
}

/* An address that routers forward: none of a loopback, multicast, link-local or unspecified one. Of IPv6, 2000::/3 to fdff::. */
static __always_inline bool is_forwarded(const struct address *address, __u8 family)
{
	__u8 first = family == 4 ? address->bytes[12] : address->bytes[0];

	if (family == 4)
		return first && first != 127 && first < 224 && !(first == 169 && address->bytes[13] == 254);
	return first >= 0x20 && first < 0xfe;
}

static __always_inline __u8 hops_left(const struct headers *headers)
{
	if (headers->ip4)
		return headers->ip4->ttl;
	return headers->ip6 ? headers->ip6->hop_limit : 0;
}

/* Takes one from the TTL. */
static __always_inline void hops_take(const struct headers *headers)
{
	struct iphdr *ip4 = headers->ip4;
	struct ipv6hdr *ip6 = headers->ip6;

	if (ip4) {
		ip4->ttl--;
		ip4->check = csum_after(ip4->check, csum_change_port(bpf_htons(0x100), 0));
	} else if (ip6) {
		ip6->hop_limit--;
	}
}

/* DSCP and ECN. */
static __always_inline __u8 headers_class(const struct headers *headers)
{
	const __u8 *six = (const __u8 *)headers->ip6;

	if (headers->ip4)
		return headers->ip4->tos;
	return six ? six[0] << 4 | six[1] >> 4 : 0;
}

/* hops_take, and skb->csum follows. */
static __always_inline void shortcut_age(struct __sk_buff *skb, const struct headers *headers)
{
	hops_take(headers);
	if (headers->ip6) {
		enum summed summed = packet_summed(skb);

		if (summed == SUMMED_COMPLETE || summed == SUMMED_UNKNOWN)
			csum_complete(skb, csum_change_port(bpf_htons(1), 0));
	}
}

static __always_inline void shortcut_class(struct bpf_fib_lookup *fib, const struct headers *headers)
{
	if (headers->ip4)
		fib->tos = headers->ip4->tos & 0x1c; /* IPTOS_RT_MASK */
	else if (headers->ip6)
		fib->flowinfo = *(__be32 *)headers->ip6 & bpf_htonl(0x0fffffff); /* IPV6_FLOWINFO_MASK */
}

/* The way as the routing tables have it now; the next hop is in fib. Not taken: a next hop whose address is not known or that has none, a
 * device with too small an MTU, the way back. */
static __always_inline enum way_out shortcut_route(struct __sk_buff *skb, const struct packet *packet,
						   const struct headers *headers, struct bpf_fib_lookup *fib)
{
	const struct device *device;
	__u32 ifindex, mac = 0;

	fib_describe(fib, skb->ifindex, packet, &packet->source, &packet->destination, route_length(skb, packet));
	shortcut_class(fib, headers);
	if (bpf_fib_lookup(skb, fib, sizeof(*fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return OUT_STACK;
	for (int i = 0; i < ETH_ALEN; i++)
		mac |= fib->dmac[i];
	ifindex = fib->ifindex;
	if (!mac || ifindex == skb->ifindex)
		return OUT_STACK;
	device = bpf_map_lookup_elem(&devices, &ifindex);
	return device && device->pod ? OUT_POD : OUT_NEIGHBOUR;
}

/* What to_pod makes of an answer. */
struct shortcut_answer {
	struct flow *flow; /* NULL: the packet is none */
	__u32 word;
	__u32 backend;
	struct rewrite to;
};

/* False: to_pod has to see the packet. A packet that answers no flow could still be an answer to the pod that it goes to. */
static __always_inline bool shortcut_answers(struct shortcut_answer *answer, const struct settings *settings,
					     const struct packet *packet)
{
	struct flow *flow = answer->flow;

	if (!flow)
		return !known_backend(&packet->source, packet->source_port, settings->seed);
	if (!flow_is_plain(flow))
		return false;
	answer->backend = flow->backend;
	answer->to.source = flow->frontend;
	answer->to.source_port = flow->frontend_port;
	return flow_use(flow, answer->word, seen_from_server(packet, flow->seen));
}

/* The Ethernet header as the host would write it. The mark was the host's. */
static __always_inline bool shortcut_address(struct __sk_buff *skb, const struct bpf_fib_lookup *fib)
{
	struct ethhdr *eth = packet_at(skb, 0, sizeof(*eth));

	if (!eth)
		return false;
	__builtin_memcpy(eth->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib->smac, ETH_ALEN);
	skb->mark = 0;
	return true;
}

/* Into the pod. The rewrite comes last: it may move the packet. */
static __always_inline enum way_out shortcut_enter(struct __sk_buff *skb, const struct settings *settings,
						   const struct packet *packet, const struct headers *headers,
						   struct shortcut_answer *answer, const struct bpf_fib_lookup *fib)
{
	if (!shortcut_answers(answer, settings, packet) || !shortcut_address(skb, fib))
		return OUT_STACK;
	shortcut_age(skb, headers);
	if (answer->flow) {
		rewrite_headers(skb, packet, headers, &answer->to, CHANGE_SOURCE | CHANGE_SOURCE_PORT);
		count_from_backend(answer->backend, skb->len);
	}
	return OUT_POD;
}

/* The flow that a packet answers, or none. False: it answers none, and is no translated one either. */
static __always_inline bool shortcut_flow(struct shortcut_answer *answer, const struct settings *settings,
					  const struct packet *packet, enum verdict verdict)
{
	struct flow_query query = {};
	struct flow_ends ends;

	if (verdict != VERDICT_PASS_NOT_SERVICE)
		return true;
	flow_ends_reply(&ends, packet);
	answer->flow = fast_find(&query, &ends, settings, QUERY_REPLY);
	answer->word = query.word;
	return answer->flow && !(answer->flow->flags & FLOW_DIRECT);
}

/* packet: parsed. */
static __always_inline enum way_out shortcut_plain(struct __sk_buff *skb, const struct packet *packet,
						   const struct headers *headers, enum verdict verdict,
						   struct bpf_fib_lookup *fib)
{
	const struct settings *settings = settings_get();
	struct shortcut_answer answer = {};
	enum way_out out;

	if (!settings || !shortcut_in_force(settings) || hops_left(headers) <= 1 ||
	    !is_forwarded(&packet->source, packet->family) || !is_forwarded(&packet->destination, packet->family) ||
	    is_snat_source(settings, &packet->source)) /* the host's own: forged */
		return OUT_STACK;
	if (!shortcut_flow(&answer, settings, packet, verdict))
		return OUT_STACK;
	out = shortcut_route(skb, packet, headers, fib);
	if (out == OUT_POD)
		return shortcut_enter(skb, settings, packet, headers, &answer, fib);
	if (out == OUT_NEIGHBOUR)
		shortcut_age(skb, headers);
	return out;
}

/* The way of a packet that may leave past the stack; fib has the next hop. A pod behind a bridge sends to the bridge's address, not
 * to that of the device here: only the bridge knows what it does with that. */
static __always_inline enum way_out shortcut_take(struct __sk_buff *skb, enum hook hook, enum verdict verdict,
						  struct bpf_fib_lookup *fib)
{
	struct packet packet = { .hook = hook };
	struct span span = span_of(skb);
	struct headers headers;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return OUT_STACK;
	if (skb->protocol == bpf_htons(ETH_P_IP) && parse_plain4(&span, ETH_HLEN, &packet, &headers))
		return shortcut_plain(skb, &packet, &headers, verdict, fib);
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && parse_plain6(&span, ETH_HLEN, &packet, &headers))
		return shortcut_plain(skb, &packet, &headers, verdict, fib);
	return OUT_STACK;
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
