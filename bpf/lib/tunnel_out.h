/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Into the tunnel: a client's packet to the backend's node, or an answer to the node that the client came by. */
#pragma once

#include "answer.h"
#include "tunnel.h"
#include "work.h"

/* What a packet gets in front of it. */
struct wrap {
	struct route route; /* of the outer packet; its packet is the inner one */
	__u32 length;       /* of the inner packet */
	__u16 option;       /* bytes of it, 0: none */
	__u8 family;        /* of the outer headers */
	__u8 kind;          /* enum tunnel_kind */
	__u8 class;         /* DSCP and ECN of the inner packet, copied (RFC 6040 4.1, normal mode) */
	__u8 pad[3];
};

struct wrap4 {
	struct iphdr ip;
	struct udphdr udp;
	struct geneve geneve;
};
_Static_assert(sizeof(struct wrap4) == 36, "no gaps");

struct wrap6 {
	struct ipv6hdr ip;
	struct udphdr udp;
	struct geneve geneve;
};
_Static_assert(sizeof(struct wrap6) == 56, "no gaps");

static __always_inline bool wrap_class(struct __sk_buff *skb, struct wrap *wrap)
{
	__u8 pair[2];

	if (bpf_skb_load_bytes(skb, link_header, pair, sizeof(pair)))
		return false;
	wrap->class = wrap->route.packet.family == 4 ? pair[1] : pair[0] << 4 | pair[1] >> 4;
	return true;
}

/* What is behind the outer IP header, UDP's header and all. A packet that is still to be cut may be longer than the field: who cuts it
 * writes others. */
static __always_inline __u16 wrap_length(const struct wrap *wrap, __u32 headers)
{
	__u32 length = headers + wrap->option + wrap->length;

	return length > 0xffff ? 0xffff : length;
}

static __always_inline void wrap_inner(const struct wrap *wrap, struct udphdr *udp, struct geneve *geneve)
{
	const struct packet *packet = &wrap->route.packet;
	const struct tunnel_end *tunnel = tunnel_get();

	udp->source = tunnel_source_port(packet);
	udp->dest = tunnel ? tunnel->port : 0;
	geneve->words = wrap->option / 4;
	geneve->flags = wrap->option ? GENEVE_CRITICAL : 0;
	geneve->protocol = tunnel_protocol(packet->family);
	geneve->kind = bpf_htonl((__u32)wrap->kind << 8);
}

static __always_inline bool wrap_store4(struct __sk_buff *skb, const struct wrap *wrap, const struct tunnel_end *tunnel,
					const struct tunnel_node *node)
{
	struct wrap4 outer = {
		.ip = {
			.version = 4,
			.ihl = 5,
			.tos = wrap->class,
			.frag_off = bpf_htons(IP_DONT_FRAGMENT),
			.ttl = ANSWER_TTL,
			.protocol = IPPROTO_UDP,
			.saddr = address_to4(&tunnel->own4),
			.daddr = address_to4(&node->address4),
		},
	};

	outer.ip.tot_len = bpf_htons(wrap_length(wrap, sizeof(outer)));
	outer.ip.check = ~csum_fold(csum_words((__u32 *)&outer.ip, sizeof(outer.ip) / 4));
	outer.udp.len = bpf_htons(wrap_length(wrap, sizeof(outer)) - sizeof(outer.ip));
	wrap_inner(wrap, &outer.udp, &outer.geneve);
	return answer_store(skb, link_header, &outer, sizeof(outer));
}

static __always_inline bool wrap_store6(struct __sk_buff *skb, const struct wrap *wrap, const struct tunnel_end *tunnel,
					const struct tunnel_node *node)
{
	struct wrap6 outer = {
		.ip = {
			.version = 6,
			.priority = wrap->class >> 4,
			.flow_lbl = { wrap->class << 4 },
			.nexthdr = IPPROTO_UDP,
			.hop_limit = ANSWER_TTL,
		},
	};

	address_to6(&tunnel->own6, &outer.ip.saddr);
	address_to6(&node->address6, &outer.ip.daddr);
	outer.ip.payload_len = bpf_htons(wrap_length(wrap, sizeof(outer) - sizeof(outer.ip)));
	outer.udp.len = outer.ip.payload_len;
	wrap_inner(wrap, &outer.udp, &outer.geneve);
	return answer_store(skb, link_header, &outer, sizeof(outer));
}

static __always_inline bool wrap_store_option(struct __sk_buff *skb, const struct wrap *wrap, __u32 id)
{
	const struct backend *backend = backend_get(id);
	__u32 at = link_header + tunnel_size(wrap->family);
	struct tunnel_option option = {
		.class = bpf_htons(TUNNEL_OPTION_CLASS),
		.type = TUNNEL_OPTION_TYPE,
		.words = wrap->option / 4 - 1,
	};

	if (!backend)
		return false;
	option.port = backend->port;
	if (wrap->option == tunnel_option_size(4)) {
		option.address[0] = address_to4(&backend->address);
		return answer_store(skb, at, &option, tunnel_option_size(4));
	}
	address_to6(&backend->address, (struct in6_addr *)option.address);
	return answer_store(skb, at, &option, tunnel_option_size(6));
}

/* A function of its own for the sake of the stack. */
__noinline int wrap_store(struct __sk_buff *skb, const struct wrap *wrap, __u32 backend, __u32 number)
{
	const struct tunnel_end *tunnel = tunnel_get();
	const struct tunnel_node *node = tunnel_node_get(number);
	__be16 protocol;

	if (!wrap || !tunnel || !node)
		return false;
	protocol = tunnel_protocol(wrap->family);
	if (link_header && bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol), 0))
		return false;
	if (!(wrap->family == 4 ? wrap_store4(skb, wrap, tunnel, node) : wrap_store6(skb, wrap, tunnel, node)))
		return false;
	return !wrap->option || wrap_store_option(skb, wrap, backend);
}

/* Asks the routing tables. VERDICT_CONTINUE: wrap->route tells. A function of its own so that the verifier goes through it once. */
__noinline int wrap_ask(struct __sk_buff *skb, struct wrap *wrap, __u32 number, __u32 length)
{
	const struct tunnel_end *tunnel = tunnel_get();
	const struct tunnel_node *node = tunnel_node_get(number);
	struct bpf_fib_lookup fib = { .ifindex = skb->ifindex };
	long answer;

	if (!wrap || !tunnel || !node)
		return VERDICT_DROP_NO_ROUTE;
	tunnel_describe_way(&fib, tunnel, node, wrap->family, length);
	answer = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		wrap->route.mtu = fib.mtu_result;
		return VERDICT_REJECT_TOO_BIG;
	}
	if (!fib_found(answer))
		return fib_verdict(answer);
	route_next(&wrap->route, &fib, answer);
	return VERDICT_CONTINUE;
}

/* Whether it fits, with the option or, where that may be left out, without. VERDICT_REJECT_TOO_BIG: route->mtu is for the inner packet. */
static __always_inline enum verdict wrap_route(struct __sk_buff *skb, struct wrap *wrap)
{
	__u32 inner = route_length(skb, &wrap->route.packet), size = tunnel_size(wrap->family);
	bool known = handed(skb)->tunnel.kind & TUNNEL_KNOWN;
	enum verdict verdict = wrap_ask(skb, wrap, handed(skb)->tunnel.node, inner + size + wrap->option);

	if (verdict != VERDICT_REJECT_TOO_BIG)
		return verdict;
	if (known && wrap->option && inner + size <= wrap->route.mtu) {
		wrap->option = 0;
		return wrap_ask(skb, wrap, handed(skb)->tunnel.node, 0);
	}
	wrap->route.mtu -= size + (known ? 0 : wrap->option);
	return VERDICT_REJECT_TOO_BIG;
}

/* The node where a client's packet comes by is the router that counts; that of the backend has counted an answer as it left the pod. */
static __always_inline enum verdict wrap_age(struct __sk_buff *skb, const struct wrap *wrap)
{
	if (wrap->kind != TUNNEL_FORWARD)
		return VERDICT_CONTINUE;
	return (wrap->route.packet.family == 4 ? route_age4(skb) : route_age6(skb)) ? VERDICT_CONTINUE
										    : VERDICT_DROP_REWRITE;
}

/* Room for what is in front. The kernel is told of it, so that it cuts what is to be cut; the size of a segment stays. An error that was made
 * here has its headers where the kernel does not look for them (too_big_open), and is of the node's family. */
static __always_inline bool wrap_open(struct __sk_buff *skb, const struct wrap *wrap, bool made)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u32 size = tunnel_size(wrap->family) + wrap->option;

	if (made)
		return wrap->family == wrap->route.packet.family && bpf_skb_change_head(skb, size, 0) == 0;
	flags |= wrap->family == 4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	return bpf_skb_adjust_room(skb, size, BPF_ADJ_ROOM_MAC, flags) == 0;
}

/* A client's packets carry the option, answers do not: what the server is told of the client's segments, and the client of the server's. */
static __always_inline void wrap_clamp(struct __sk_buff *skb, const struct wrap *wrap, __u16 node)
{
	const struct packet *packet = &wrap->route.packet;
	__u32 room;

	if (wrap->kind != TUNNEL_REPLY || packet->protocol != IPPROTO_TCP || !(packet->tcp_flags & TCP_SYN))
		return;
	room = tunnel_room(skb, node, packet->family);
	if (room > tunnel_option_size(packet->family))
		tunnel_clamp(skb, packet, room - tunnel_option_size(packet->family));
}

/* VERDICT_CONTINUE: it leaves as wrap->route says. */
static __always_inline enum verdict wrap_packet(struct __sk_buff *skb, struct wrap *wrap)
{
	struct packet *packet = &wrap->route.packet;
	__u16 node = handed(skb)->tunnel.node;
	enum verdict verdict;

	if (parse_full(skb, packet) != VERDICT_CONTINUE || packet->malformed || !wrap_class(skb, wrap))
		return VERDICT_DROP_REWRITE;
	wrap->kind = handed(skb)->tunnel.kind & ~TUNNEL_KNOWN;
	wrap->length = packet->l4 - link_header + packet->l4_length;
	wrap->family = tunnel_outer(node, packet->family);
	if (!wrap->family)
		return VERDICT_DROP_NO_ROUTE;
	if (wrap->kind == TUNNEL_FORWARD && handed(skb)->tunnel.backend)
		wrap->option = tunnel_option_size(packet->family);
	if (wrap->kind == TUNNEL_FORWARD && !route_lives(skb, packet))
		return VERDICT_REJECT_TIME_EXCEEDED;
	wrap_clamp(skb, wrap, node);
	verdict = wrap_route(skb, wrap);
	if (verdict == VERDICT_CONTINUE)
		verdict = wrap_age(skb, wrap);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (!wrap_open(skb, wrap, !verdict_is_translate(handed(skb)->tunnel.verdict)) ||
	    !wrap_store(skb, wrap, handed(skb)->tunnel.backend, node))
		return VERDICT_DROP_REWRITE;
	return VERDICT_CONTINUE;
}

/* Who is told that a packet cannot go on: the client, about what it sent; or the server, about its answer before that was translated. */
static __always_inline enum way wrap_way(const struct wrap *wrap)
{
	return wrap->kind == TUNNEL_FORWARD ? WAY_CARRY : WAY_BACK;
}
