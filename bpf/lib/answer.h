/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Parts of the packets that are answered to a sender. Built by helpers: speed does not matter here, and they keep
 * skb->csum right and reach bytes that are not linear. */
#pragma once

#include "csum.h"
#include "hairpin.h"
#include "packet.h"

#define ANSWER_TTL 64

static __always_inline __u32 ip_header_size(__u8 family)
{
	return family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* From the IP header on; skb->csum follows. */
static __always_inline bool answer_store(struct __sk_buff *skb, __u32 offset, const void *from, __u32 size)
{
	return bpf_skb_store_bytes(skb, offset, from, size, BPF_F_RECOMPUTE_CSUM) == 0;
}

static __always_inline __u64 csum_words(const __u32 *words, __u32 count)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < count; i++)
		sum += words[i];
	return sum;
}

static __always_inline __u64 csum_address(__u8 family, const struct address *address)
{
	return family == 4 ? address_to4(address) : csum_words((const __u32 *)address->words, 4);
}

/* Sum of the pseudo header of a packet from the receiver back to the sender. */
static __always_inline __u64 csum_pseudo(const struct packet *packet, __u8 protocol, __u32 length)
{
	return csum_address(packet->family, &packet->source) + csum_address(packet->family, &packet->destination) +
	       bpf_htons(protocol) + bpf_htonl(length);
}

static __always_inline bool answer_ip4(struct __sk_buff *skb, const struct packet *packet, __u8 protocol, __u32 length)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(ip) + length),
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.ttl = ANSWER_TTL,
		.protocol = protocol,
		.saddr = address_to4(&packet->destination),
		.daddr = address_to4(&packet->source),
	};

	ip.check = ~csum_fold(csum_words((__u32 *)&ip, sizeof(ip) / 4));
	return answer_store(skb, link_header, &ip, sizeof(ip));
}

static __always_inline bool answer_ip6(struct __sk_buff *skb, const struct packet *packet, __u8 protocol, __u32 length)
{
	struct ipv6hdr ip = {
		.version = 6,
		.payload_len = bpf_htons(length),
		.nexthdr = protocol,
		.hop_limit = ANSWER_TTL,
	};

	address_to6(&packet->destination, &ip.saddr);
	address_to6(&packet->source, &ip.daddr);
	return answer_store(skb, link_header, &ip, sizeof(ip));
}

/* The IP header of an answer to packet, without options, with length bytes behind it. */
static __always_inline bool answer_ip(struct __sk_buff *skb, const struct packet *packet, __u8 protocol, __u32 length)
{
	return packet->family == 4 ? answer_ip4(skb, packet, protocol, length)
				   : answer_ip6(skb, packet, protocol, length);
}

/* A sender that may be answered: one host (RFC 1122 3.2.2, RFC 4443 2.4 e). */
static __always_inline bool answer_allowed(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 first = packet->source.bytes[packet->family == 4 ? 12 : 0];
	__u8 mac = 0;

	if (packet->fragment == FRAGMENT_LATER || (link_header && bpf_skb_load_bytes(skb, 0, &mac, 1)) || mac & 1)
		return false;
	if (packet->family == 4)
		return first != 0 && first != 127 && first < 224;
	return first != 0xff && !address_zero(&packet->source);
}
