/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a packet says about itself, access to its bytes, and the two parsers: that of the fast path, and that of the slow path. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

#include "config.h"
#include "maps.h"
#include "types.h"

#define IPPROTO_ICMP6      58
#define IP_MORE_FRAGMENTS  0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
#define IP_DONT_FRAGMENT   0x4000

#define OFFSET_MAX    511 /* nothing that is looked at starts farther from the start of the frame */
#define L4_OFFSET_MAX (OFFSET_MAX - offsetof(struct tcphdr, check)) /* of a transport header */

enum tcp_flag {
	TCP_FIN = 1,
	TCP_SYN = 2,
	TCP_RST = 4,
	TCP_ACK = 16,
};

enum fragment {
	FRAGMENT_NONE = 0,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* has no transport header; ports come from the map fragments */
};

/* Offsets count from the start of the frame: from the Ethernet header where there is one. */
struct packet {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u16 l4;          /* offset of the transport header */
	__u8 protocol;     /* IANA number of the transport */
	__u8 family;       /* 4 or 6 */
	__u8 fragment;     /* enum fragment */
	__u8 tcp_flags;    /* enum tcp_flag */
	__u8 hook;         /* enum hook */
	__u8 malformed;    /* addresses are right, what follows them is not */
	__u32 l4_length;   /* bytes of transport header and payload, as the IP header says */
	__u32 fragment_id; /* of fragments alone */
};

/* Where the parts of a packet that a rewrite changes are. The verifier keeps what it knows of them while the program
 * calls nothing that could move the packet. One pointer for both IP headers would not do: before Linux 6.4 the verifier
 * forgets which size of it goes with which family. */
struct headers {
	struct iphdr *ip4;   /* NULL: IPv6 */
	struct ipv6hdr *ip6; /* NULL: IPv4 */
	__be16 *ports;       /* source and destination; NULL: later fragment */
	__u16 *check;        /* of the transport header; NULL: none that knows the addresses (SCTP) */
};

static __always_inline void address_from4(struct address *address, __be32 ip)
{
	address->longs[0] = 0;
	/* ::ffff:a.b.c.d, little-endian */
	address->longs[1] = ((__u64)ip << 32) | 0xffff0000;
}

/* ip may be unaligned to eight bytes: it is read by words. */
static __always_inline void address_from6(struct address *address, const struct in6_addr *ip)
{
	const __be32 *words = ip->in6_u.u6_addr32;

	address->longs[0] = ((__u64)words[1] << 32) | words[0];
	address->longs[1] = ((__u64)words[3] << 32) | words[2];
}

static __always_inline __be32 address_to4(const struct address *address)
{
	return address->longs[1] >> 32;
}

static __always_inline __u8 address_family(const struct address *address)
{
	return address->longs[0] == 0 && (__u32)address->longs[1] == 0xffff0000 ? 4 : 6;
}

static __always_inline void address_to6(const struct address *address, struct in6_addr *ip)
{
	__be32 *words = ip->in6_u.u6_addr32;

	words[0] = address->longs[0];
	words[1] = address->longs[0] >> 32;
	words[2] = address->longs[1];
	words[3] = address->longs[1] >> 32;
}

static __always_inline bool address_equal(const struct address *a, const struct address *b)
{
	return a->longs[1] == b->longs[1] && a->longs[0] == b->longs[0];
}

static __always_inline bool address_zero(const struct address *address)
{
	return !(address->longs[0] | address->longs[1]);
}

/* The bytes at offset, or NULL when they are not in the linear part of the packet. The mask is for the verifier:
 * it follows offsets that have a bound. */
static __always_inline void *packet_at(struct __sk_buff *skb, __u32 offset, __u32 size)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	void *at = data + (offset & OFFSET_MAX);

	return at + size > end ? NULL : at;
}

#define VLAN_ID_MASK 0x0fff

/* The frame is a virtual network's, of which the stack has a device or nothing. A tag without a number (IEEE 802.1Q: a priority tag) says how
 * urgent the frame is and nothing else: the stack takes it off. */
static __always_inline bool is_tagged(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & VLAN_ID_MASK;
}

/* What a parser reads: the bytes of a frame that are there at once. */
struct span {
	void *data;
	void *end;
	__u32 length; /* of the whole frame */
};

static __always_inline struct span span_of(const struct __sk_buff *skb)
{
	return (struct span){ (void *)(long)skb->data, (void *)(long)skb->data_end, skb->len };
}

/* packet_at of a span. */
static __always_inline void *span_at(const struct span *span, __u32 offset, __u32 size)
{
	void *at = span->data + (offset & OFFSET_MAX);

	return at + size > span->end ? NULL : at;
}

/* Makes the first size bytes linear and writable. Costs a helper call only where they are not linear yet. */
static __always_inline bool packet_pull(struct __sk_buff *skb, __u32 size)
{
	if ((void *)(long)skb->data + size <= (void *)(long)skb->data_end)
		return true;
	return bpf_skb_pull_data(skb, size) == 0;
}

/* An address that one host may have, as the kernel sees it: packets from others it drops (martians). From 240.0.0.0 on they are as good as
 * others to Linux. */
static __always_inline bool is_hosts(const struct address *address, __u8 family)
{
	__u8 first = family == 4 ? address->bytes[12] : address->bytes[0];

	if (family == 4)
		return first && first != 127 && (first & 0xf0) != 0xe0 && address->words[3] != 0xffffffff;
	return first != 0xff && (address->longs[0] || address->longs[1] & ~bpf_cpu_to_be64(1));
}

/* Whose client the sender of a packet that is translated forward is. */
static __always_inline enum side_index packet_side(const struct packet *packet)
{
	return packet->hook == HOOK_FROM_NET ? SIDE_EXTERNAL : SIDE_INTERNAL;
}

static __always_inline bool opens_connection(const struct packet *packet)
{
	return packet->protocol == IPPROTO_UDP || (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Of a SYN: it is of a TCP socket of this host, which has sent it before. */
static __always_inline bool sends_again(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp = sk ? bpf_tcp_sock(sk) : NULL;

	return tcp && tcp->total_retrans;
}

/* Linux answers no SYN that has one of the others as well: nobody sends such for a connection. */
static __always_inline bool is_plain_syn(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) == TCP_SYN;
}

static __always_inline bool answers_syn(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
}

static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

static __always_inline bool is_icmp(__u8 protocol, __u8 family)
{
	return protocol == (family == 4 ? IPPROTO_ICMP : IPPROTO_ICMP6);
}

static __always_inline bool is_extension(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING || header == IPPROTO_DSTOPTS ||
	       header == IPPROTO_AH || header == IPPROTO_FRAGMENT;
}

/* The plain parser: TCP and UDP right behind an IP header without options. start, the offset of the IP header, is a constant to the verifier, in
 * the fast path to the compiler as well. */

static __always_inline bool parse_plain_tcp(const struct span *span, struct packet *packet, struct headers *headers)
{
	struct tcphdr *tcp = span_at(span, packet->l4, sizeof(*tcp));

	if (!tcp || tcp->doff < 5 || (__u32)tcp->doff * 4 > packet->l4_length)
		return false;
	packet->source_port = tcp->source;
	packet->destination_port = tcp->dest;
	packet->tcp_flags = ((__u8 *)tcp)[13];
	headers->ports = &tcp->source;
	headers->check = &tcp->check;
	return true;
}

static __always_inline bool parse_plain_udp(const struct span *span, struct packet *packet, struct headers *headers)
{
	struct udphdr *udp = span_at(span, packet->l4, sizeof(*udp));

	if (!udp || bpf_ntohs(udp->len) < sizeof(*udp) || bpf_ntohs(udp->len) > packet->l4_length)
		return false;
	packet->source_port = udp->source;
	packet->destination_port = udp->dest;
	packet->tcp_flags = 0;
	headers->ports = &udp->source;
	headers->check = &udp->check;
	return true;
}

/* A protocol without ports that needs no closer look. Extension headers of IPv6 may hide one that has some. */
static __always_inline bool is_portless(__u8 protocol, __u8 family)
{
	return !has_ports(protocol) && !is_icmp(protocol, family) && !(family == 6 && is_extension(protocol));
}

static __always_inline bool parse_plain_l4(const struct span *span, struct packet *packet, struct headers *headers)
{
	packet->fragment = FRAGMENT_NONE;
	if (packet->protocol == IPPROTO_TCP)
		return parse_plain_tcp(span, packet, headers);
	if (packet->protocol == IPPROTO_UDP)
		return parse_plain_udp(span, packet, headers);
	return false;
}

/* False: not plain, or not linear, or contradictory; the slow path looks closer. */
static __always_inline bool parse_plain4(const struct span *span, __u32 start, struct packet *packet,
					 struct headers *headers)
{
	struct iphdr *ip = span_at(span, start, sizeof(*ip));
	__u32 total;

	if (!ip || *(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return false;
	total = bpf_ntohs(ip->tot_len);
	if (total < sizeof(*ip) || total + start > span->length)
		return false;
	headers->ip4 = ip;
	headers->ip6 = NULL;
	packet->family = 4;
	packet->protocol = ip->protocol;
	packet->l4 = start + sizeof(*ip);
	packet->l4_length = total - sizeof(*ip);
	address_from4(&packet->source, ip->saddr);
	address_from4(&packet->destination, ip->daddr);
	return parse_plain_l4(span, packet, headers);
}

static __always_inline bool parse_plain6(const struct span *span, __u32 start, struct packet *packet,
					 struct headers *headers)
{
	struct ipv6hdr *ip = span_at(span, start, sizeof(*ip));
	__u32 length;

	if (!ip || ip->version != 6)
		return false;
	length = bpf_ntohs(ip->payload_len);
	if (length + start + sizeof(*ip) > span->length)
		return false;
	packet->l4_length = length;
	headers->ip4 = NULL;
	headers->ip6 = ip;
	packet->family = 6;
	packet->protocol = ip->nexthdr;
	packet->l4 = start + sizeof(*ip);
	address_from6(&packet->source, &ip->saddr);
	address_from6(&packet->destination, &ip->daddr);
	return parse_plain_l4(span, packet, headers);
}

/* The parser of the slow path: options, extension headers, packets whose headers are not linear, and fragments. */

#define EXTENSION_HEADERS_MAX  8
#define SCTP_HEADER            12
#define SCTP_INIT              1
#define SCTP_INIT_ACK          2
#define SCTP_ABORT             6
#define SCTP_SHUTDOWN_COMPLETE 14

/* Start of a hop-by-hop, routing, destination options or authentication header; of a fragment header up to length. */
struct extension {
	__u8 next;
	__u8 length;
	__u8 third;  /* routing type */
	__u8 fourth; /* routing: segments left */
};

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset; /* 13 bits of offset, 2 reserved, 1 more fragments */
	__u32 id;
};

static __always_inline bool parse_full_tcp(struct __sk_buff *skb, struct packet *packet)
{
	__u8 header[14];

	if (packet->l4_length < sizeof(struct tcphdr) || bpf_skb_load_bytes(skb, packet->l4, header, sizeof(header)))
		return false;
	packet->source_port = *(__be16 *)header;
	packet->destination_port = *(__be16 *)(header + 2);
	packet->tcp_flags = header[13];
	return (header[12] >> 4) >= 5 && (header[12] >> 4) * 4u <= packet->l4_length;
}

static __always_inline bool parse_full_udp(struct __sk_buff *skb, struct packet *packet)
{
	struct udphdr header;
	__u32 length;

	if (packet->l4_length < sizeof(header) || bpf_skb_load_bytes(skb, packet->l4, &header, sizeof(header)))
		return false;
	packet->source_port = header.source;
	packet->destination_port = header.dest;
	length = bpf_ntohs(header.len);
	return length >= sizeof(header) && (packet->fragment == FRAGMENT_FIRST || length <= packet->l4_length);
}

/* SCTP's first chunk in the words of TCP. */
static __always_inline __u8 parse_sctp_flags(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 chunk = 0;

	if (packet->l4_length > SCTP_HEADER && bpf_skb_load_bytes(skb, packet->l4 + SCTP_HEADER, &chunk, 1))
		return TCP_ACK;
	if (chunk == SCTP_INIT)
		return TCP_SYN;
	if (chunk == SCTP_INIT_ACK)
		return TCP_SYN | TCP_ACK;
	return chunk == SCTP_ABORT || chunk == SCTP_SHUTDOWN_COMPLETE ? TCP_RST : TCP_ACK;
}

static __always_inline bool parse_full_sctp(struct __sk_buff *skb, struct packet *packet)
{
	__be32 header[SCTP_HEADER / 4];

	if (packet->l4_length < sizeof(header) || bpf_skb_load_bytes(skb, packet->l4, header, sizeof(header)))
		return false;
	packet->source_port = header[0];
	packet->destination_port = header[0] >> 16;
	packet->tcp_flags = parse_sctp_flags(skb, packet);
	return true;
}

/* Of either family, so that the verifier goes through it once. */
static __always_inline void parse_full_l4(struct __sk_buff *skb, struct packet *packet)
{
	bool whole = true;

	if (packet->fragment == FRAGMENT_LATER || packet->malformed)
		return;
	if (packet->protocol == IPPROTO_TCP)
		whole = parse_full_tcp(skb, packet);
	else if (packet->protocol == IPPROTO_UDP)
		whole = parse_full_udp(skb, packet);
	else if (packet->protocol == IPPROTO_SCTP)
		whole = parse_full_sctp(skb, packet);
	else if (is_icmp(packet->protocol, packet->family))
		whole = packet->l4_length >= 8;
	if (!whole)
		packet->malformed = 1;
}

/* Length of an IP packet as its header says; 0 stands for more than 65535 in packets that are still to be segmented. */
static __always_inline __u32 parse_length(struct __sk_buff *skb, __u32 said, __u32 header)
{
	if (said == 0 && skb->gso_segs)
		return skb->len - link_header - header;
	return said;
}

static __always_inline enum verdict parse_full4(struct __sk_buff *skb, struct packet *packet)
{
	struct iphdr ip;
	__u32 header;
	__u32 total;

	if (bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return VERDICT_PASS_MALFORMED;
	header = ip.ihl * 4;
	total = parse_length(skb, bpf_ntohs(ip.tot_len), 0);
	packet->family = 4;
	packet->protocol = ip.protocol;
	packet->l4 = link_header + header;
	packet->fragment_id = ip.id;
	address_from4(&packet->source, ip.saddr);
	address_from4(&packet->destination, ip.daddr);
	if (ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET))
		packet->fragment = FRAGMENT_LATER;
	else if (ip.frag_off & bpf_htons(IP_MORE_FRAGMENTS))
		packet->fragment = FRAGMENT_FIRST;
	if (total < header || total + link_header > skb->len) {
		packet->malformed = 1;
		return VERDICT_CONTINUE;
	}
	packet->l4_length = total - header;
	return VERDICT_CONTINUE;
}

/* Steps over the fragment header at packet->l4. */
static __always_inline bool parse_fragment_header(struct __sk_buff *skb, struct packet *packet)
{
	struct fragment_header header;

	if (bpf_skb_load_bytes(skb, packet->l4, &header, sizeof(header)))
		return false;
	packet->protocol = header.next;
	packet->fragment_id = header.id;
	packet->l4 += sizeof(header);
	if (header.offset & bpf_htons(0xfff8))
		packet->fragment = FRAGMENT_LATER;
	else if (header.offset & bpf_htons(1))
		packet->fragment = FRAGMENT_FIRST;
	return true;
}

/* Steps over one extension header. A routing header with segments left means that the destination is only the
 * next stop: not for us. */
static __always_inline enum verdict parse_extension(struct __sk_buff *skb, struct packet *packet)
{
	struct extension header;
	__u8 kind = packet->protocol;

	if (kind == IPPROTO_FRAGMENT)
		return parse_fragment_header(skb, packet) ? VERDICT_CONTINUE : VERDICT_PASS_MALFORMED;
	if (bpf_skb_load_bytes(skb, packet->l4, &header, sizeof(header)))
		return VERDICT_PASS_MALFORMED;
	if (kind == IPPROTO_ROUTING && header.fourth)
		return VERDICT_PASS_PROTOCOL;
	packet->protocol = header.next;
	packet->l4 += kind == IPPROTO_AH ? (header.length + 2) * 4 : (header.length + 1) * 8;
	return VERDICT_CONTINUE;
}

static __always_inline enum verdict parse_extensions(struct __sk_buff *skb, struct packet *packet)
{
	for (int i = 0; i < EXTENSION_HEADERS_MAX; i++) {
		enum verdict verdict;

		if (packet->fragment == FRAGMENT_LATER || !is_extension(packet->protocol))
			return VERDICT_CONTINUE;
		verdict = parse_extension(skb, packet);
		if (verdict != VERDICT_CONTINUE)
			return verdict;
		if (packet->l4 > L4_OFFSET_MAX)
			return VERDICT_PASS_PROTOCOL;
	}
	return is_extension(packet->protocol) ? VERDICT_PASS_PROTOCOL : VERDICT_CONTINUE;
}

static __always_inline enum verdict parse_full6(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv6hdr ip;
	enum verdict verdict;
	__u32 end;

	if (bpf_skb_load_bytes(skb, link_header, &ip, sizeof(ip)) || ip.version != 6)
		return VERDICT_PASS_MALFORMED;
	end = link_header + sizeof(ip) + parse_length(skb, bpf_ntohs(ip.payload_len), sizeof(ip));
	packet->family = 6;
	packet->protocol = ip.nexthdr;
	packet->l4 = link_header + sizeof(ip);
	address_from6(&packet->source, &ip.saddr);
	address_from6(&packet->destination, &ip.daddr);
	if (end > skb->len) {
		packet->malformed = 1;
		return VERDICT_CONTINUE;
	}
	verdict = parse_extensions(skb, packet);
	if (verdict == VERDICT_PASS_MALFORMED)
		packet->malformed = 1;
	else if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (packet->l4 > end)
		packet->malformed = 1;
	if (packet->malformed)
		return VERDICT_CONTINUE;
	packet->l4_length = end - packet->l4;
	return VERDICT_CONTINUE;
}

/* True: the packet is plain, and described. Reads the linear part, without a helper. */
static __always_inline bool parse_plain(struct __sk_buff *skb, struct packet *packet)
{
	struct span span = span_of(skb);
	struct headers headers;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return parse_plain4(&span, link_header, packet, &headers);
	return skb->protocol == bpf_htons(ETH_P_IPV6) && parse_plain6(&span, link_header, packet, &headers);
}

/* VERDICT_CONTINUE: the packet is described, perhaps as malformed behind its addresses.
 * A function of its own so that the verifier goes through it once. */
__noinline int parse_full(struct __sk_buff *skb, struct packet *packet)
{
	enum verdict verdict = VERDICT_PASS_NOT_IP;

	if (!packet)
		return VERDICT_PASS_MALFORMED;
	if (is_tagged(skb))
		return verdict;
	if (parse_plain(skb, packet))
		return VERDICT_CONTINUE;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = parse_full4(skb, packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		verdict = parse_full6(skb, packet);
	if (verdict == VERDICT_CONTINUE)
		parse_full_l4(skb, packet);
	return verdict;
}

/* Later fragments have no ports: they follow the first, which leaves its ports in the map fragments. */

#define FRAGMENT_SECONDS 30 /* as long as the kernel waits for the rest of a packet */

static __always_inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->id = packet->fragment_id;
	key->protocol = packet->protocol;
	key->hook = packet->hook;
	key->pad[0] = 0;
	key->pad[1] = 0;
}

/* Of what follows an IPv6 fragment header, a later fragment names but the first: behind destination options is what the first fragment found. */
static __always_inline bool is_behind_extension(const struct packet *packet)
{
	return packet->fragment == FRAGMENT_LATER && packet->family == 6 && is_extension(packet->protocol);
}

/* The packet has ports, or is a later fragment whose first may have had some. */
static __always_inline bool may_have_ports(const struct packet *packet)
{
	return has_ports(packet->protocol) || is_behind_extension(packet);
}

/* Of a first fragment that is translated. The packet still as it came. A function of its own for the sake of the stack. */
__noinline int fragment_remember(const struct packet *packet)
{
	struct fragment_key key;
	struct fragment_value value;

	if (!packet || packet->fragment != FRAGMENT_FIRST)
		return 0;
	fragment_key_of(&key, packet);
	value.source_port = packet->source_port;
	value.destination_port = packet->destination_port;
	value.touched = bpf_jiffies64();
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
	return 0;
}

static __always_inline bool fragment_recall_as(struct packet *packet, __u8 protocol)
{
	struct fragment_key key;
	const struct fragment_value *value;

	fragment_key_of(&key, packet);
	key.protocol = protocol;
	value = bpf_map_lookup_elem(&fragments, &key);
	if (!value || (__u32)bpf_jiffies64() - value->touched > FRAGMENT_SECONDS * jiffies_per_second)
		return false;
	packet->source_port = value->source_port;
	packet->destination_port = value->destination_port;
	packet->protocol = protocol;
	packet->tcp_flags = TCP_ACK;
	return true;
}

/* Gives a later fragment the ports of its first. Not 0: done. A function of its own for the sake of the stack. */
__noinline int fragment_recall(struct packet *packet)
{
	if (!packet)
		return false;
	if (has_ports(packet->protocol))
		return fragment_recall_as(packet, packet->protocol);
	return is_behind_extension(packet) &&
	       (fragment_recall_as(packet, IPPROTO_UDP) || fragment_recall_as(packet, IPPROTO_TCP) ||
		fragment_recall_as(packet, IPPROTO_SCTP));
}
