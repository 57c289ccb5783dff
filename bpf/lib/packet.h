/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a packet says about itself, access to its bytes, and the parser of the fast path. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>

#include "config.h"
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
	__u16 l4;        /* offset of the transport header */
	__u8 protocol;   /* IANA number of the transport */
	__u8 family;     /* 4 or 6 */
	__u8 fragment;   /* enum fragment */
	__u8 tcp_flags;  /* enum tcp_flag */
	__u8 hook;       /* enum hook */
	__u8 malformed;  /* addresses are right, what follows them is not */
	__u32 l4_length; /* bytes of transport header and payload, as the IP header says */
	__u32 fragment_id;
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

/* Whose client the sender of a packet that is translated forward is. */
static __always_inline enum side_index packet_side(const struct packet *packet)
{
	return packet->hook == HOOK_FROM_NET ? SIDE_EXTERNAL : SIDE_INTERNAL;
}

static __always_inline bool opens_connection(const struct packet *packet)
{
	return packet->protocol == IPPROTO_UDP || (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
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

/* The parser of the fast path: TCP and UDP right behind an IP header without options. All offsets are constants: start, that of
 * the IP header, is one at every call. */

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

	if (!ip || ip->version != 6)
		return false;
	packet->l4_length = bpf_ntohs(ip->payload_len);
	if (packet->l4_length + start + sizeof(*ip) > span->length)
		return false;
	headers->ip4 = NULL;
	headers->ip6 = ip;
	packet->family = 6;
	packet->protocol = ip->nexthdr;
	packet->l4 = start + sizeof(*ip);
	address_from6(&packet->source, &ip->saddr);
	address_from6(&packet->destination, &ip->daddr);
	return parse_plain_l4(span, packet, headers);
}
