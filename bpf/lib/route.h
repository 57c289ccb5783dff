/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Questions to the kernel's routing tables, and a translated packet's way on to its destination, as a router sends it, past the host's
 * stack: that would take an address of its own for a forged source, and neither netfilter nor connection tracking know the connection. */
#pragma once

#include "answer.h"
#include "packet.h"
#include "settings.h"

#define AF_INET  2
#define AF_INET6 10

#define LOOPBACK_IFINDEX 1 /* in every network namespace */

/* A way from source to destination for a packet that came by the device. length: of the largest IP packet that goes that way,
 * 0 for whatever length. */
static __always_inline void fib_describe(struct bpf_fib_lookup *fib, __u32 ifindex, const struct packet *packet,
					 const struct address *source, const struct address *destination, __u32 length)
{
	fib->ifindex = ifindex;
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

/* What the routing tables said. */
struct route {
	struct packet packet;
	struct bpf_redir_neigh next; /* nh_family 0: the kernel finds the next hop itself */
	__u32 ifindex;
	__u16 mtu;
	bool stack; /* only the host's stack can send it */
};

/* Size of the largest IP packet that leaves: of a packet that is still to be cut, of one segment with its headers. */
static __always_inline __u32 route_length(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 headers = packet->l4 - link_header;
	__u8 offset = 0;

	if (!skb->gso_size)
		return headers + packet->l4_length;
	if (packet->protocol != IPPROTO_TCP)
		return headers + sizeof(struct udphdr) + skb->gso_size;
	if (bpf_skb_load_bytes(skb, packet->l4 + 12, &offset, sizeof(offset)))
		return headers + sizeof(struct tcphdr) + skb->gso_size;
	return headers + (offset >> 4) * 4 + skb->gso_size;
}

/* A device without Ethernet addresses has no neighbours but, perhaps, one with none: what a tunnel needs to know beside the
 * device, the kernel finds out itself. */
static __always_inline void route_next(struct route *route, const struct bpf_fib_lookup *fib, long answer)
{
	__u64 mac = 0;

	__builtin_memcpy(&mac, fib->dmac, sizeof(fib->dmac));
	route->ifindex = fib->ifindex;
	if (answer != BPF_FIB_LKUP_RET_SUCCESS || !mac)
		return;
	route->next.nh_family = fib->family;
	if (fib->family == AF_INET)
		route->next.ipv4_nh = fib->ipv4_dst;
	else
		__builtin_memcpy(route->next.ipv6_nh, fib->ipv6_dst, sizeof(fib->ipv6_dst));
}

/* VERDICT_CONTINUE: route tells. */
static __always_inline enum verdict route_find(struct __sk_buff *skb, struct route *route)
{
	struct packet *packet = &route->packet;
	struct bpf_fib_lookup fib = {};
	long answer;

	fib_describe(&fib, skb->ifindex, packet, &packet->source, &packet->destination, route_length(skb, packet));
	answer = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		route->mtu = fib.mtu_result;
		return VERDICT_REJECT_TOO_BIG;
	}
	if (answer == BPF_FIB_LKUP_RET_UNSUPP_LWT) {
		route->stack = true;
		return VERDICT_CONTINUE;
	}
	if (!fib_found(answer))
		return fib_verdict(answer);
	route_next(route, &fib, answer);
	return VERDICT_CONTINUE;
}

/* False: the packet ends here. */
static __always_inline bool route_lives(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 at =
		link_header + (packet->family == 4 ? offsetof(struct iphdr, ttl) : offsetof(struct ipv6hdr, hop_limit));
	__u8 left = 0;

	return bpf_skb_load_bytes(skb, at, &left, sizeof(left)) == 0 && left > 1;
}

/* Takes one from the TTL: the upper half of a word whose other half is the protocol. */
static __always_inline bool route_age4(struct __sk_buff *skb)
{
	__u32 at = link_header + offsetof(struct iphdr, ttl);
	__be16 words[2]; /* TTL and protocol, checksum */
	__be16 older;

	if (bpf_skb_load_bytes(skb, at, words, sizeof(words)))
		return false;
	older = bpf_htons(bpf_ntohs(words[0]) - 0x100);
	words[1] = csum_after(words[1], csum_change_port(words[0], older));
	words[0] = older;
	return answer_store(skb, at, words, sizeof(words));
}

static __always_inline bool route_age6(struct __sk_buff *skb)
{
	__u32 at = link_header + offsetof(struct ipv6hdr, nexthdr);
	__u8 pair[2]; /* next header, hop limit; two bytes, as the sum of the packet is taken by words */

	if (bpf_skb_load_bytes(skb, at, pair, sizeof(pair)))
		return false;
	pair[1]--;
	return answer_store(skb, at, pair, sizeof(pair));
}

/* A packet of a device without Ethernet header gets an empty one, which the kernel expects and takes off. */
static __always_inline bool route_head(struct __sk_buff *skb)
{
	return link_header || bpf_skb_change_head(skb, ETH_HLEN, 0) == 0;
}

/* VERDICT_CONTINUE: it may leave as route says. own: it is of a socket of this host, and not forwarded. */
static __always_inline enum verdict route_packet(struct __sk_buff *skb, struct route *route, bool own)
{
	enum verdict verdict;

	route->stack = !route_lookup;
	if (route->stack)
		return VERDICT_CONTINUE;
	if (parse_full(skb, &route->packet) != VERDICT_CONTINUE || route->packet.malformed)
		return VERDICT_DROP_REWRITE;
	if (!own && !route_lives(skb, &route->packet))
		return VERDICT_REJECT_TIME_EXCEEDED;
	verdict = route_find(skb, route);
	if (verdict != VERDICT_CONTINUE || route->stack)
		return verdict;
	if (own)
		return route_head(skb) ? VERDICT_CONTINUE : VERDICT_DROP_REWRITE;
	if (!(route->packet.family == 4 ? route_age4(skb) : route_age6(skb)) || !route_head(skb))
		return VERDICT_DROP_REWRITE;
	return VERDICT_CONTINUE;
}

static __always_inline int route_send(struct route *route)
{
	if (route->next.nh_family)
		return bpf_redirect_neigh(route->ifindex, &route->next, sizeof(route->next), 0);
	return bpf_redirect_neigh(route->ifindex, NULL, 0, 0);
}
