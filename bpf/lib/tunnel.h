/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The tunnel between nodes: packets of clients off the node go through it to a backend's node as they came, and the answers come back.
 * Geneve (RFC 8926) in UDP, without Ethernet headers inside. What both ends know of it. */
#pragma once

#include "answer.h"
#include "policy.h"
#include "route.h"
#include "settings.h"

/* What the field for the number of a virtual network says. */
enum tunnel_kind {
	TUNNEL_FORWARD = 1, /* from a client: the inner destination is the frontend */
	TUNNEL_REPLY = 2,   /* to a client: the inner source is the frontend */
	TUNNEL_HELLO = 3,   /* of an agent: does the node take packets? */
	TUNNEL_ANSWER = 4,  /* it does; of the programs */
	TUNNEL_KNOWN = 128, /* in skb->cb: the other node has the connection, and needs no option */
};

struct geneve {
	__u8 words; /* of options, 4 bytes each; the version, 0, above them */
	__u8 flags;
	__be16 protocol; /* of what is inside, as in an Ethernet header */
	__be32 kind;     /* enum tunnel_kind, in the upper 24 bits */
};

#define GENEVE_OAM      0x80 /* of the flags: for the node itself */
#define GENEVE_CRITICAL 0x40 /* of the flags: there is a critical option */

#define TUNNEL_OPTION_CLASS 0xff01 /* of the experimental ones */
#define TUNNEL_OPTION_TYPE  0x81   /* critical: who does not know it drops the packet */

/* The backend. Of an IPv4 one, the first word of address alone. */
struct tunnel_option {
	__be16 class;
	__u8 type;
	__u8 words; /* behind this one */
	__be16 port;
	__be16 zero;
	__be32 address[4];
};

static __always_inline __u32 tunnel_option_size(__u8 family)
{
	return family == 4 ? 12 : 24;
}

/* What is in front of a packet without an option. */
static __always_inline __u32 tunnel_size(__u8 family)
{
	return ip_header_size(family) + sizeof(struct udphdr) + sizeof(struct geneve);
}

static __always_inline __be16 tunnel_protocol(__u8 family)
{
	return bpf_htons(family == 4 ? ETH_P_IP : ETH_P_IPV6);
}

static __always_inline const struct tunnel_end *tunnel_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&tunnel, &zero);
}

static __always_inline const struct tunnel_node *tunnel_node_get(__u16 number)
{
	__u32 key = number;

	return bpf_map_lookup_elem(&tunnel_nodes, &key);
}

/* Number of the node that has an address, 0: none has. A function of its own for the sake of the stack. */
__noinline int tunnel_node_at(const struct address *address)
{
	struct address own;
	const __u32 *number;

	if (!address)
		return 0;
	own = *address; /* the stack, as kernels before 6.2 take no argument's memory for a map's key */
	number = bpf_map_lookup_elem(&tunnel_addresses, &own);
	return number ? *number : 0;
}

/* Family of the outer headers of a packet to a node: that of the packet where both nodes have one, else the other one. 0: there is no way. */
static __always_inline __u8 tunnel_family(const struct tunnel_end *tunnel, const struct tunnel_node *node, __u8 family)
{
	bool four = !address_zero(&tunnel->own4) && !address_zero(&node->address4);
	bool six = !address_zero(&tunnel->own6) && !address_zero(&node->address6);

	if (family == 4 ? four : six)
		return family;
	if (four)
		return 4;
	return six ? 6 : 0;
}

static __always_inline const struct address *tunnel_from(const struct tunnel_end *tunnel, __u8 family)
{
	return family == 4 ? &tunnel->own4 : &tunnel->own6;
}

static __always_inline const struct address *tunnel_to(const struct tunnel_node *node, __u8 family)
{
	return family == 4 ? &node->address4 : &node->address6;
}

/* Of the connection, the same in both directions, so that routers which spread the load by ports keep it together. */
static __always_inline __be16 tunnel_source_port(const struct packet *packet)
{
	__u64 x = packet->source.longs[0] ^ packet->destination.longs[0];

	x = (x ^ packet->source_port ^ packet->destination_port ^ packet->protocol) * HASH_A;
	x ^= packet->source.longs[1] ^ packet->destination.longs[1];
	x *= HASH_B;
	return bpf_htons(0x8000 | x >> 49);
}

/* A datagram to another node, for the routing tables. length: of the IP packet with all headers, 0 for whatever length. */
static __always_inline void tunnel_describe_way(struct bpf_fib_lookup *fib, const struct tunnel_end *tunnel,
						const struct tunnel_node *node, __u8 family, __u32 length)
{
	fib->l4_protocol = IPPROTO_UDP;
	fib->dport = tunnel->port;
	fib->tot_len = length;
	if (family == 4) {
		fib->family = AF_INET;
		fib->ipv4_src = address_to4(&tunnel->own4);
		fib->ipv4_dst = address_to4(&node->address4);
		return;
	}
	fib->family = AF_INET6;
	address_to6(&tunnel->own6, (struct in6_addr *)fib->ipv6_src);
	address_to6(&node->address6, (struct in6_addr *)fib->ipv6_dst);
}

/* The family of outer headers for a packet of this one to the node, 0: there is no way. */
static __always_inline __u8 tunnel_outer(__u16 number, __u8 family)
{
	const struct tunnel_end *tunnel = tunnel_get();
	const struct tunnel_node *node = tunnel_node_get(number);

	return tunnel && node && tunnel->port ? tunnel_family(tunnel, node, family) : 0;
}

#define TUNNEL_LENGTH_ANY 0xffff /* longer than any MTU: the answer to such a packet names it */

/* How large a packet of the family may be that goes to the node, 0: not known. A function of its own for the sake of the stack. */
__noinline int tunnel_room(struct __sk_buff *skb, __u32 number, __u32 family)
{
	const struct tunnel_end *tunnel = tunnel_get();
	const struct tunnel_node *node = tunnel_node_get(number);
	__u8 outer = tunnel_outer(number, family);
	struct bpf_fib_lookup fib = { .ifindex = skb->ifindex };

	if (!tunnel || !node || !outer)
		return 0;
	tunnel_describe_way(&fib, tunnel, node, outer, TUNNEL_LENGTH_ANY);
	if (bpf_fib_lookup(skb, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_FRAG_NEEDED ||
	    fib.mtu_result < tunnel_size(outer))
		return 0;
	return fib.mtu_result - tunnel_size(outer);
}

#define TCP_OPTIONS_MAX 40
#define TCP_OPTION_END  0
#define TCP_OPTION_NOP  1
#define TCP_OPTION_MSS  2

/* Offset of the value of a SYN's maximum segment size, 0: it has none. A function of its own so that the verifier goes through it once. */
__noinline int tunnel_find_mss(struct __sk_buff *skb, __u32 l4)
{
	__u8 pair[2]; /* kind and length of an option */
	__u8 offset;
	__u32 at = sizeof(struct tcphdr);

	if (l4 > L4_OFFSET_MAX || bpf_skb_load_bytes(skb, l4 + 12, &offset, sizeof(offset)))
		return 0;
	for (int i = 0; i < TCP_OPTIONS_MAX && at + 4 <= (__u32)(offset >> 4) * 4; i++) {
		if (bpf_skb_load_bytes(skb, l4 + at, pair, sizeof(pair)) || pair[0] == TCP_OPTION_END)
			return 0;
		if (pair[0] == TCP_OPTION_MSS)
			return pair[1] == 4 ? l4 + at + 2 : 0;
		if (pair[0] == TCP_OPTION_NOP)
			at++;
		else if (pair[1] < 2)
			return 0;
		else
			at += pair[1];
	}
	return 0;
}

/* Has the other side of a TCP connection send segments in packets of room bytes at most. Its SYN said more, perhaps. A function of its own
 * for the sake of the stack. */
__noinline int tunnel_clamp(struct __sk_buff *skb, const struct packet *packet, __u32 room)
{
	__u32 headers, at;
	__be16 from, to;
	__u16 change;

	if (!packet || !room || packet->protocol != IPPROTO_TCP || !(packet->tcp_flags & TCP_SYN))
		return 0;
	headers = ip_header_size(packet->family) + sizeof(struct tcphdr);
	at = tunnel_find_mss(skb, packet->l4);
	if (!at || room <= headers || bpf_skb_load_bytes(skb, at, &from, sizeof(from)) ||
	    bpf_ntohs(from) <= room - headers)
		return 0;
	to = bpf_htons(room - headers);
	change = csum_fold(csum_change_port(from, to));
	if ((at - packet->l4) & 1)
		change = change << 8 | change >> 8;
	/* a partial checksum stays as it is, and a sum of the whole packet as well */
	bpf_l4_csum_replace(skb, packet->l4 + offsetof(struct tcphdr, check), 0, change, 0);
	return bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Which connections take the tunnel. */

#define TUNNEL_MTU_LEAST6 1280 /* RFC 8200 5: no sender can be told to make smaller ones */

/* A packet that another node would parse at once: a first fragment may not fit, and options would be nobody's business there. */
static __always_inline bool tunnel_is_plain(const struct packet *packet)
{
	return packet->fragment == FRAGMENT_NONE && packet->l4 == link_header + ip_header_size(packet->family) &&
	       (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP);
}

/* The node takes packets. A function of its own for the sake of the stack. */
__noinline int tunnel_takes(struct __sk_buff *skb, __u32 backend, __u32 family)
{
	const struct backend *to = backend_get(backend);
	const struct tunnel_node *node;
	__u32 room;

	if (!to || to->tier == TIER_NODE || !to->node)
		return false;
	node = tunnel_node_get(to->node);
	if (!node || !node->carries)
		return false;
	room = tunnel_room(skb, to->node, family);
	return family == 4 ? room > 0 : room >= TUNNEL_MTU_LEAST6 + tunnel_option_size(6);
}

static __always_inline bool tunnel_carries(struct __sk_buff *skb, const struct packet *packet,
					   const struct record *record, const struct choice *choice)
{
	return tunnel_there && link_header && record->flags & RECORD_CARRY && tunnel_is_plain(packet) &&
	       !address_equal(&choice->address, &packet->source) && /* a pod that reaches itself by another node */
	       !tunnel_node_at(&packet->source) &&                  /* its own node would take it for forged */
	       tunnel_takes(skb, choice->backend, packet->family);
}

/* Who may send to a node's tunnel: nodes, and no pod and no Service in their name. */

static __always_inline bool tunnel_has_port(__be16 port, __u8 protocol)
{
	const struct tunnel_end *tunnel = tunnel_get();

	return tunnel && tunnel->port && protocol == IPPROTO_UDP && port == tunnel->port;
}

/* A backend that is a node's tunnel: whoever made its EndpointSlice would have this node send there for them. */
static __always_inline bool tunnel_is_backend(const struct choice *choice, __u8 protocol)
{
	return tunnel_there && tunnel_has_port(choice->port, protocol) && tunnel_node_at(&choice->address);
}

static __always_inline bool tunnel_may_be(const struct packet *packet, enum verdict verdict)
{
	return tunnel_there &&
	       (verdict == VERDICT_PASS_NOT_SERVICE || verdict == VERDICT_PASS_UNKNOWN_REPLY ||
		verdict == VERDICT_PASS_DIRECT) &&
	       packet->fragment != FRAGMENT_LATER && tunnel_has_port(packet->destination_port, packet->protocol);
}

/* Of what a pod sends. */
static __always_inline enum verdict tunnel_guard(const struct packet *packet, enum verdict verdict)
{
	return tunnel_may_be(packet, verdict) && tunnel_node_at(&packet->destination) ? VERDICT_DROP_TUNNEL_SOURCE
										      : verdict;
}

/* Whether the packet is to this node's address of the tunnel. It reads the address again: to keep it in memory would cost every packet some
 * nanoseconds, without a tunnel, too; a function of its own in a program of the fast path would cost more. */
static __always_inline bool tunnel_is_own(struct __sk_buff *skb)
{
	const struct tunnel_end *tunnel = tunnel_get();
	struct address to = {};
	__be32 ip;

	if (!tunnel)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return !bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + offsetof(struct ipv6hdr, daddr), &to,
					   sizeof(to)) &&
		       address_equal(&tunnel->own6, &to);
	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + offsetof(struct iphdr, daddr), &ip, sizeof(ip)))
		return false;
	address_from4(&to, ip);
	return address_equal(&tunnel->own4, &to);
}

/* To this node's tunnel. */
static __always_inline bool tunnel_is_here(struct __sk_buff *skb, const struct packet *packet, enum verdict verdict)
{
	return link_header && tunnel_may_be(packet, verdict) && tunnel_is_own(skb);
}
