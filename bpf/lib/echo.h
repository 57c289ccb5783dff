/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers an echo request to a service address. */
#pragma once

#include "answer.h"
#include "frontend.h"

#define ICMP_ECHO_REPLY    0
#define ICMP_ECHO_REQUEST  8
#define ICMP6_ECHO_REQUEST 128
#define ICMP6_ECHO_REPLY   129

static __always_inline bool is_echo_request(const struct packet *packet, __u8 type)
{
	return type == (packet->family == 4 ? ICMP_ECHO_REQUEST : ICMP6_ECHO_REQUEST);
}

/* Turns the type over. Exchanging the addresses changes no sum. */
static __always_inline bool echo_header(struct __sk_buff *skb, const struct packet *packet)
{
	__u16 from;
	__u16 to = bpf_htons((packet->family == 4 ? ICMP_ECHO_REPLY : ICMP6_ECHO_REPLY) << 8);
	__u16 check;

	if (bpf_skb_load_bytes(skb, packet->l4, &from, 2) || bpf_skb_load_bytes(skb, packet->l4 + 2, &check, 2))
		return false;
	if (packet_summed(skb) != SUMMED_PARTIAL)
		check = csum_after(check, csum_change_port(from, to));
	return answer_store(skb, packet->l4, &to, 2) && answer_store(skb, packet->l4 + 2, &check, 2);
}

/* Options of an IPv4 header and extension headers go back as they came. */
static __always_inline bool echo_ip4(struct __sk_buff *skb, const struct packet *packet)
{
	__be32 addresses[2] = { address_to4(&packet->destination), address_to4(&packet->source) };

	return answer_store(skb, link_header + offsetof(struct iphdr, saddr), addresses, sizeof(addresses));
}

static __always_inline bool echo_ip6(struct __sk_buff *skb, const struct packet *packet)
{
	struct address addresses[2] = { packet->destination, packet->source };

	return answer_store(skb, link_header + offsetof(struct ipv6hdr, saddr), addresses, sizeof(addresses));
}

static __always_inline bool echo_answer(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 end = packet->l4 + packet->l4_length;

	if (!answer_allowed(skb, packet) || !echo_header(skb, packet))
		return false;
	/* padding is nobody's business */
	if (skb->len > end && bpf_skb_change_tail(skb, end, 0))
		return false;
	if (!(packet->family == 4 ? echo_ip4(skb, packet) : echo_ip6(skb, packet)))
		return false;
	return packet_pull(skb, ETH_HLEN) && swap_macs(skb);
}
