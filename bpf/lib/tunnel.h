/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The tunnel between nodes: packets of clients off the node go through it to a backend's node as they came, and the answers come back.
 * Geneve (RFC 8926) in UDP, without Ethernet headers inside. What both ends know of it, and the way in. */
#pragma once

#include "answer.h"
#include "policy.h"
#include "route.h"
#include "settings.h"
#include "work.h"

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

#define TUNNEL_COOKIE_TYPE 0x82 /* critical, of the same class: in front of the backend's option */

/* What nodes share: who sends from a node's address without it is none. */
struct tunnel_cookie {
	__be16 class;
	__u8 type;
	__u8 words;     /* behind this one */
	__u32 value[2]; /* not 0 but in hellos: the options of a header are four bytes each */
};
_Static_assert(sizeof(struct tunnel_cookie) == 12, "no gaps");

static __always_inline __u32 tunnel_option_size(__u8 family)
{
	return family == 4 ? 12 : 24;
}

/* What is in front of a packet without options. */
static __always_inline __u32 tunnel_size(__u8 family)
{
	return ip_header_size(family) + sizeof(struct udphdr) + sizeof(struct geneve);
}

/* The same with the cookie, which every packet has or none. */
static __always_inline __u32 tunnel_headers_size(__u8 family, __u64 cookie)
{
	return tunnel_size(family) + (cookie ? sizeof(struct tunnel_cookie) : 0);
}

/* Of a packet's cookie, 0: it has none. */
static __always_inline bool tunnel_accepts(const struct tunnel_end *tunnel, __u64 cookie)
{
	return !tunnel->keyed || tunnel->accepted[0] == cookie || tunnel->accepted[1] == cookie;
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

/* Family of the outer headers of a packet to a node: that of the packet, as kernels before 6.3 cannot take one of the other family out.
 * 0: the nodes do not both have an address of it. */
static __always_inline __u8 tunnel_family(const struct tunnel_end *tunnel, const struct tunnel_node *node, __u8 family)
{
	bool four = !address_zero(&tunnel->own4) && !address_zero(&node->address4);
	bool six = !address_zero(&tunnel->own6) && !address_zero(&node->address6);

	return (family == 4 ? four : six) ? family : 0;
}

static __always_inline const struct address *tunnel_from(const struct tunnel_end *tunnel, __u8 family)
{
	return family == 4 ? &tunnel->own4 : &tunnel->own6;
}

static __always_inline const struct address *tunnel_to(const struct tunnel_node *node, __u8 family)
{
	return family == 4 ? &node->address4 : &node->address6;
}

/* Of the connection, the same in both directions, so that routers which spread the load by ports keep it together. Of a fragment the addresses
 * alone: later ones have no ports, nor always the protocol, and who overtakes the first is lost. */
static __always_inline __be16 tunnel_source_port(const struct packet *packet)
{
	__u64 x = packet->source.longs[0] ^ packet->destination.longs[0];

	if (packet->fragment == FRAGMENT_NONE)
		x ^= packet->source_port ^ packet->destination_port ^ packet->protocol;
	x *= HASH_A;
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

/* Not 0: the node still takes packets of the family out of the tunnel. A function of its own for the sake of the stack. */
__noinline int tunnel_goes_on(__u32 number, __u32 family)
{
	const struct tunnel_node *node = tunnel_node_get(number);

	return node && node->carries && tunnel_outer(number, family);
}

/* A datagram to the node with a packet of the family, of whatever length, for the routing tables. False: there is no way. */
static __always_inline bool tunnel_describe_to(struct bpf_fib_lookup *fib, __u32 ifindex, __u32 number, __u32 family)
{
	const struct tunnel_end *tunnel = tunnel_get();
	const struct tunnel_node *node = tunnel_node_get(number);
	__u8 outer = tunnel_outer(number, family);

	if (!tunnel || !node || !outer)
		return false;
	fib->ifindex = ifindex;
	tunnel_describe_way(fib, tunnel, node, outer, 0);
	return true;
}

#define TUNNEL_LENGTH_ANY 0xffff /* longer than any MTU: the answer to such a packet names it */

/* What the routing tables say of a datagram of so many bytes to the node, which has an address of the family. */
static __always_inline long tunnel_ask(void *ctx, struct bpf_fib_lookup *fib, __u32 ifindex, __u32 number, __u8 family,
				       __u32 length)
{
	const struct tunnel_end *tunnel = tunnel_get();
	const struct tunnel_node *node = tunnel_node_get(number);

	if (!tunnel || !node)
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = ifindex;
	tunnel_describe_way(fib, tunnel, node, family, length);
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
}

/* How large a packet of the family may be that goes to the node, 0: there is no way, or one whose route has headers of its own, which the kernel
 * puts in front of no packet of a program. That it says of packets alone that fit, and the MTU then where it knows the neighbour. ctx: of the
 * program, ifindex: of the device that the packet came by. */
static __always_inline int tunnel_room_of(void *ctx, __u32 ifindex, __u32 number, __u32 family)
{
	const struct tunnel_end *tunnel = tunnel_get();
	__u8 outer = tunnel_outer(number, family);
	struct bpf_fib_lookup fib;
	__u32 headers;
	long answer;

	if (!tunnel || !outer)
		return 0;
	headers = tunnel_headers_size(outer, tunnel->cookie);
	answer = tunnel_ask(ctx, &fib, ifindex, number, outer, 1);
	if (answer == BPF_FIB_LKUP_RET_NO_NEIGH)
		answer = tunnel_ask(ctx, &fib, ifindex, number, outer, TUNNEL_LENGTH_ANY);
	if ((answer != BPF_FIB_LKUP_RET_SUCCESS && answer != BPF_FIB_LKUP_RET_FRAG_NEEDED) || fib.mtu_result < headers)
		return 0;
	return fib.mtu_result - headers;
}

/* Functions of their own for the sake of the stack. */
__noinline int tunnel_room(struct __sk_buff *skb, __u32 number, __u32 family)
{
	return tunnel_room_of(skb, skb->ifindex, number, family);
}

__noinline int tunnel_room_xdp(struct xdp_md *ctx, __u32 number, __u32 family)
{
	return tunnel_room_of(ctx, ctx->ingress_ifindex, number, family);
}

/* Not 0: the backend's address is one of this host's own. A function of its own for the sake of the stack. */
__noinline int tunnel_is_host(struct __sk_buff *skb, const struct packet *packet, const struct address *backend)
{
	struct bpf_fib_lookup fib = {};

	if (!packet || !backend || !route_lookup)
		return false;
	fib_describe(&fib, skb->ifindex, packet, &packet->source, backend, 0);
	return bpf_fib_lookup(skb, &fib, sizeof(fib), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

#define TCP_HEADER_MAX  60
#define TCP_OPTIONS_MAX 40
#define TCP_OPTION_END  0
#define TCP_OPTION_NOP  1
#define TCP_OPTION_MSS  2

/* The option of TCP at an offset: the offset of the next one, or of the value of a maximum segment size, negative; 0: none comes after it. A
 * function of its own so that the verifier goes through it once. */
__noinline int tunnel_next_option(struct __sk_buff *skb, __u32 at)
{
	__u8 pair[2]; /* its kind and length */

	if (at > L4_OFFSET_MAX + TCP_HEADER_MAX || bpf_skb_load_bytes(skb, at, pair, sizeof(pair)) ||
	    pair[0] == TCP_OPTION_END)
		return 0;
	if (pair[0] == TCP_OPTION_NOP)
		return at + 1;
	if (pair[0] == TCP_OPTION_MSS)
		return pair[1] == 4 ? -(int)(at + 2) : 0;
	return pair[1] < 2 ? 0 : at + pair[1];
}

/* Offset of the value of a SYN's maximum segment size, 0: it has none. */
__noinline int tunnel_find_mss(struct __sk_buff *skb, __u32 l4)
{
	int at = l4 + sizeof(struct tcphdr), end;
	__u8 offset;

	if (l4 > L4_OFFSET_MAX || bpf_skb_load_bytes(skb, l4 + 12, &offset, sizeof(offset)))
		return 0;
	end = l4 + (__u32)(offset >> 4) * 4;
	for (int i = 0; i < TCP_OPTIONS_MAX && at > 0 && at + 4 <= end; i++)
		at = tunnel_next_option(skb, at);
	return at < 0 ? -at : 0;
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

/* NULL without a tunnel: the verifier passes over what its programs do then, which is a third of all that it would walk at a start. */
static __always_inline struct tunnel_packet *tunnel_packet_get(void)
{
	__u32 zero = 0;

	return tunnel_there ? bpf_map_lookup_elem(&tunnel_packets, &zero) : NULL;
}

/* Which connections take the tunnel. */

#define TUNNEL_MTU_LEAST6 1280 /* RFC 8200 5: no sender can be told to make smaller ones */

/* A packet that another node would parse at once: a first fragment may not fit, and options would be nobody's business there. */
static __always_inline bool tunnel_is_plain(const struct packet *packet)
{
	return packet->fragment == FRAGMENT_NONE && packet->l4 == link_header + ip_header_size(packet->family) &&
	       (packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP);
}

/* The flags of a flow through the tunnel to the backend's node, 0: it takes no packets. */
static __always_inline int tunnel_takes_of(struct entry_point point, __u32 backend, __u32 family)
{
	const struct backend *to = backend_get(backend);
	const struct tunnel_node *node;
	__u32 room;

	if (!to || to->tier == TIER_NODE || !to->node)
		return 0;
	node = tunnel_node_get(to->node);
	if (!node || !node->carries)
		return 0;
	room = point.xdp ? tunnel_room_xdp(point.ctx, to->node, family) : tunnel_room(point.ctx, to->node, family);
	if (family == 4 ? !room : room < TUNNEL_MTU_LEAST6 + tunnel_option_size(6))
		return 0;
	return node->direct ? FLOW_CARRY | FLOW_DSR : FLOW_CARRY;
}

/* Functions of their own for the sake of the stack. */
__noinline int tunnel_takes(struct __sk_buff *skb, __u32 backend, __u32 family)
{
	return tunnel_takes_of(point_tc(skb), backend, family);
}

__noinline int tunnel_takes_xdp(struct xdp_md *ctx, __u32 backend, __u32 family)
{
	return tunnel_takes_of((struct entry_point){ .ctx = ctx, .xdp = true }, backend, family);
}

/* The flags of a new flow whose packets take the tunnel, 0: they do not. */
static __always_inline __u8 tunnel_way(struct entry_point point, const struct packet *packet,
				       const struct record *record, const struct choice *choice)
{
	__u8 wanted = record->flags & RECORD_DSR ? FLOW_CARRY | FLOW_DSR : FLOW_CARRY;

	if (!tunnel_there || !link_header || !(record->flags & RECORD_CARRY) || !tunnel_is_plain(packet) ||
	    point.handed->slow.lost & LOST_WAY ||
	    address_equal(&choice->address, &packet->source) || /* a pod that reaches itself by another node */
	    tunnel_node_at(&packet->source))                    /* its own node would take it for forged */
		return 0;
	return wanted & (point.xdp ? tunnel_takes_xdp(point.ctx, choice->backend, packet->family)
				   : tunnel_takes(point.ctx, choice->backend, packet->family));
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

/* Headers are read from, and written to, the frame of a packet at TC (struct __sk_buff) or at XDP (struct xdp_md): one source, and two entry
 * points. */
struct frame {
	void *ctx;
	bool xdp; /* a constant at each entry point */
};

/* Not 0: it is not that long. */
static __always_inline long frame_load(struct frame frame, __u32 at, void *to, __u32 size)
{
	return frame.xdp ? bpf_xdp_load_bytes(frame.ctx, at, to, size) : bpf_skb_load_bytes(frame.ctx, at, to, size);
}

static __always_inline bool frame_store(struct frame frame, __u32 at, void *from, __u32 size)
{
	return frame.xdp ? bpf_xdp_store_bytes(frame.ctx, at, from, size) == 0
			 : answer_store(frame.ctx, at, from, size);
}

/* Into the tunnel: a client's packet to the backend's node, or an answer to the node that the client came by. */

/* What a packet gets in front of it. */
struct wrap {
	struct route route; /* of the outer packet; its packet is the inner one */
	__u64 cookie;       /* 0: none */
	__u32 length;       /* of the inner packet */
	__u16 option;       /* bytes of the backend's, 0: none */
	__u8 family;        /* of the outer headers */
	__u8 kind;          /* enum tunnel_kind */
	__u8 class;         /* DSCP and ECN of the inner packet, copied (RFC 6040 4.1, normal mode) */
	bool turns;         /* it goes back by the device that it came by, to who sent it there */
	__u8 pad[2];
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

/* On its way to a server. All else was a packet of this tunnel before: it names no backend, and has no router to count. */
static __always_inline bool wrap_is_forward(const struct wrap *wrap)
{
	return wrap->kind == TUNNEL_FORWARD || wrap->kind == TUNNEL_DIRECT;
}

/* Bytes in front of the inner packet. */
static __always_inline __u32 wrap_size(const struct wrap *wrap)
{
	return tunnel_headers_size(wrap->family, wrap->cookie) + wrap->option;
}

static __always_inline bool wrap_class(struct __sk_buff *skb, struct wrap *wrap)
{
	__u8 pair[2];

	if (bpf_skb_load_bytes(skb, link_header, pair, sizeof(pair)))
		return false;
	wrap->class = wrap->route.packet.family == 4 ? pair[1] : pair[0] << 4 | pair[1] >> 4;
	return true;
}

/* What is behind the first skipped bytes of what is in front. A packet that is still to be cut may be longer than the field: who cuts it
 * writes others. */
static __always_inline __u16 wrap_length(const struct wrap *wrap, __u32 skipped)
{
	__u32 length = wrap_size(wrap) - skipped + wrap->length;

	return length > 0xffff ? 0xffff : length;
}

static __always_inline void wrap_inner(const struct wrap *wrap, struct udphdr *udp, struct geneve *geneve)
{
	const struct packet *packet = &wrap->route.packet;
	const struct tunnel_end *tunnel = tunnel_get();

	udp->source = tunnel_source_port(packet);
	udp->dest = tunnel ? tunnel->port : 0;
	geneve->words = (wrap_size(wrap) - tunnel_size(wrap->family)) / 4;
	geneve->flags = geneve->words ? GENEVE_CRITICAL : 0;
	geneve->protocol = tunnel_protocol(packet->family);
	geneve->kind = bpf_htonl((__u32)wrap->kind << 8);
}

static __always_inline bool wrap_store4(struct frame frame, const struct wrap *wrap, const struct tunnel_end *tunnel,
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

	outer.ip.tot_len = bpf_htons(wrap_length(wrap, 0));
	outer.ip.check = ~csum_fold(csum_words((__u32 *)&outer.ip, sizeof(outer.ip) / 4));
	outer.udp.len = bpf_htons(wrap_length(wrap, sizeof(outer.ip)));
	wrap_inner(wrap, &outer.udp, &outer.geneve);
	return frame_store(frame, link_header, &outer, sizeof(outer));
}

static __always_inline bool wrap_store6(struct frame frame, const struct wrap *wrap, const struct tunnel_end *tunnel,
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
	outer.ip.payload_len = bpf_htons(wrap_length(wrap, sizeof(outer.ip)));
	outer.udp.len = outer.ip.payload_len;
	wrap_inner(wrap, &outer.udp, &outer.geneve);
	return frame_store(frame, link_header, &outer, sizeof(outer));
}

static __always_inline bool wrap_store_cookie(struct frame frame, const struct wrap *wrap)
{
	struct tunnel_cookie option = {
		.class = bpf_htons(TUNNEL_OPTION_CLASS),
		.type = TUNNEL_COOKIE_TYPE,
		.words = sizeof(option) / 4 - 1,
		.value = { wrap->cookie, wrap->cookie >> 32 },
	};

	return frame_store(frame, link_header + tunnel_size(wrap->family), &option, sizeof(option));
}

static __always_inline bool wrap_store_option(struct frame frame, const struct wrap *wrap, __u32 id)
{
	const struct backend *backend = backend_get(id);
	__u32 at = link_header + tunnel_headers_size(wrap->family, wrap->cookie);
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
		return frame_store(frame, at, &option, tunnel_option_size(4));
	}
	address_to6(&backend->address, (struct in6_addr *)option.address);
	return frame_store(frame, at, &option, tunnel_option_size(6));
}

/* Writes all that is in front but the Ethernet header. */
static __always_inline bool wrap_write(struct frame frame, const struct wrap *wrap, __u32 backend,
				       const struct tunnel_node *node)
{
	const struct tunnel_end *tunnel = tunnel_get();

	if (!wrap || !tunnel || !node)
		return false;
	if (!(wrap->family == 4 ? wrap_store4(frame, wrap, tunnel, node) : wrap_store6(frame, wrap, tunnel, node)))
		return false;
	if (wrap->cookie && !wrap_store_cookie(frame, wrap))
		return false;
	return !wrap->option || wrap_store_option(frame, wrap, backend);
}

/* A function of its own for the sake of the stack, as the next one. */
__noinline int wrap_store(struct __sk_buff *skb, const struct wrap *wrap, __u32 backend, __u32 number)
{
	__be16 protocol;

	if (!wrap)
		return false;
	protocol = tunnel_protocol(wrap->family);
	if (link_header && bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol), 0))
		return false;
	return wrap_write((struct frame){ skb, false }, wrap, backend, tunnel_node_get(number));
}

__noinline int wrap_store_xdp(struct xdp_md *ctx, const struct wrap *wrap, __u32 backend,
			      const struct tunnel_node *node)
{
	return wrap_write((struct frame){ ctx, true }, wrap, backend, node);
}

/* A packet that nobody takes here goes back as it came, as the answer to a hello does, where a route has headers of its own: the other node is to
 * hear of that. So does one that is too long for the route with them: it came with more in front. */
static __always_inline bool wrap_turns(const struct wrap *wrap, long answer)
{
	return wrap->kind == TUNNEL_UNKNOWN &&
	       (answer == BPF_FIB_LKUP_RET_UNSUPP_LWT || answer == BPF_FIB_LKUP_RET_FRAG_NEEDED);
}

/* Asks the routing tables. VERDICT_CONTINUE: wrap->route tells, or the packet turns. A function of its own so that the verifier goes through it once. */
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
	wrap->turns = wrap_turns(wrap, answer);
	if (wrap->turns)
		return VERDICT_CONTINUE;
	if (answer == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		wrap->route.mtu = fib.mtu_result;
		return VERDICT_REJECT_TOO_BIG;
	}
	if (!fib_found(answer))
		return fib_verdict(answer);
	route_next(&wrap->route, &fib, answer);
	return VERDICT_CONTINUE;
}

/* Whether it fits, with the backend's option or, where that may be left out, without. VERDICT_REJECT_TOO_BIG: route->mtu is for the inner packet. */
static __always_inline enum verdict wrap_route(struct __sk_buff *skb, struct wrap *wrap)
{
	__u32 inner = route_length(skb, &wrap->route.packet), size = tunnel_headers_size(wrap->family, wrap->cookie);
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
	if (!wrap_is_forward(wrap))
		return VERDICT_CONTINUE;
	return (wrap->route.packet.family == 4 ? route_age4(skb) : route_age6(skb)) ? VERDICT_CONTINUE
										    : VERDICT_DROP_REWRITE;
}

/* Room for what is in front. The kernel is told of it, so that it cuts what is to be cut; the size of a segment stays. An error that was made
 * here has its headers where the kernel does not look for them (too_big_open), and is of the node's family. */
static __always_inline bool wrap_open(struct __sk_buff *skb, const struct wrap *wrap, bool made)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u32 size = wrap_size(wrap);

	if (made)
		return wrap->family == wrap->route.packet.family && bpf_skb_change_head(skb, size, 0) == 0;
	flags |= wrap->family == 4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, size, BPF_ADJ_ROOM_MAC, flags) == 0)
		return true;
	/* over virtual devices a packet comes as the other node's kernel knew it: this one believes that it is in a tunnel still */
	return wrap->kind == TUNNEL_UNKNOWN &&
	       bpf_skb_adjust_room(skb, size, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) == 0;
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

/* A node that answers clients no more, as where an older agent came back, answers through the tunnel. */
static __always_inline __u8 wrap_kind(__u8 kind, const struct tunnel_node *node)
{
	return kind == TUNNEL_DIRECT && !(node && node->direct) ? TUNNEL_FORWARD : kind;
}

/* VERDICT_CONTINUE: it leaves as wrap->route says, or turns. */
static __always_inline enum verdict wrap_packet(struct __sk_buff *skb, struct wrap *wrap)
{
	struct packet *packet = &wrap->route.packet;
	const struct tunnel_end *tunnel = tunnel_get();
	__u16 node = handed(skb)->tunnel.node;
	enum verdict verdict;

	if (parse_full(skb, packet) != VERDICT_CONTINUE || packet->malformed || !wrap_class(skb, wrap))
		return VERDICT_DROP_REWRITE;
	wrap->kind = wrap_kind(handed(skb)->tunnel.kind & ~TUNNEL_KNOWN, tunnel_node_get(node));
	wrap->length = packet->l4 - link_header + packet->l4_length;
	wrap->family = tunnel_outer(node, packet->family);
	if (!tunnel || !wrap->family)
		return VERDICT_DROP_NO_ROUTE;
	wrap->cookie = tunnel->cookie;
	if (wrap_is_forward(wrap) && handed(skb)->tunnel.backend)
		wrap->option = tunnel_option_size(packet->family);
	if (wrap_is_forward(wrap) && !route_lives(skb, packet))
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
	if (wrap->turns)
		return packet_pull(skb, ETH_HLEN) && swap_macs(skb) ? VERDICT_CONTINUE : VERDICT_DROP_REWRITE;
	return route_head(skb) ? VERDICT_CONTINUE : VERDICT_DROP_REWRITE;
}

/* Who is told that a packet cannot go on: the client, about what it sent; or the server, about its answer before that was translated. */
static __always_inline enum way wrap_way(struct __sk_buff *skb, const struct wrap *wrap)
{
	const struct backend *backend;

	if (wrap->kind != TUNNEL_REPLY)
		return WAY_CARRY;
	backend = backend_get(handed(skb)->tunnel.backend);
	return backend && tunnel_is_host(skb, &wrap->route.packet, &backend->address) ? WAY_BACK_HOST : WAY_BACK;
}
