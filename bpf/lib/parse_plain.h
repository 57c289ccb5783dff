/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The parser of the fast path: TCP and UDP right behind an IP header without options. All offsets are constants: start, that of
 * the IP header, is one at every call. */
#pragma once

#include "packet.h"

static __always_inline bool parse_plain_tcp(struct __sk_buff *skb, struct packet *packet, struct headers *headers)
{
	struct tcphdr *tcp = packet_at(skb, packet->l4, sizeof(*tcp));

	if (!tcp || tcp->doff < 5 || (__u32)tcp->doff * 4 > packet->l4_length)
		return false;
	packet->source_port = tcp->source;
	packet->destination_port = tcp->dest;
	packet->tcp_flags = ((__u8 *)tcp)[13];
	headers->ports = &tcp->source;
	headers->check = &tcp->check;
	return true;
}

static __always_inline bool parse_plain_udp(struct __sk_buff *skb, struct packet *packet, struct headers *headers)
{
	struct udphdr *udp = packet_at(skb, packet->l4, sizeof(*udp));

	if (!udp || bpf_ntohs(udp->len) < sizeof(*udp) || bpf_ntohs(udp->len) > packet->l4_length)
		return false;
	packet->source_port = udp->source;
	packet->destination_port = udp->dest;
	packet->tcp_flags = 0;
	headers->ports = &udp->source;
	headers->check = &udp->check;
	return true;
}

static __always_inline bool parse_plain_l4(struct __sk_buff *skb, struct packet *packet, struct headers *headers)
{
	packet->fragment = FRAGMENT_NONE;
	if (packet->protocol == IPPROTO_TCP)
		return parse_plain_tcp(skb, packet, headers);
	if (packet->protocol == IPPROTO_UDP)
		return parse_plain_udp(skb, packet, headers);
	return false;
}

/* False: not plain, or not linear, or contradictory; the slow path looks closer. */
static __always_inline bool parse_plain4(struct __sk_buff *skb, __u32 start, struct packet *packet,
					 struct headers *headers)
{
	struct iphdr *ip = packet_at(skb, start, sizeof(*ip));
	__u32 total;

	if (!ip || *(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
		return false;
	total = bpf_ntohs(ip->tot_len);
	if (total < sizeof(*ip) || total + start > skb->len)
		return false;
	headers->ip4 = ip;
	headers->ip6 = NULL;
	packet->family = 4;
	packet->protocol = ip->protocol;
	packet->l4 = start + sizeof(*ip);
	packet->l4_length = total - sizeof(*ip);
	address_from4(&packet->source, ip->saddr);
	address_from4(&packet->destination, ip->daddr);
	return parse_plain_l4(skb, packet, headers);
}

static __always_inline bool parse_plain6(struct __sk_buff *skb, __u32 start, struct packet *packet,
					 struct headers *headers)
{
	struct ipv6hdr *ip = packet_at(skb, start, sizeof(*ip));

	if (!ip || ip->version != 6)
		return false;
	packet->l4_length = bpf_ntohs(ip->payload_len);
	if (packet->l4_length + start + sizeof(*ip) > skb->len)
		return false;
	headers->ip4 = NULL;
	headers->ip6 = ip;
	packet->family = 6;
	packet->protocol = ip->nexthdr;
	packet->l4 = start + sizeof(*ip);
	address_from6(&packet->source, &ip->saddr);
	address_from6(&packet->destination, &ip->daddr);
	return parse_plain_l4(skb, packet, headers);
}
