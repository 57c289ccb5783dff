/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers a packet that was translated and cannot go on: packet too big, or time exceeded, to its sender and about what that
 * sent. The quoted packet stays where it is; what comes in front of it is put there. */
#pragma once

#include "answer.h"
#include "icmp.h"

/* The error, but for its checksum. */
struct too_big {
	struct icmp_error header;
	__u32 size; /* of the quotation */
	bool partial;
};

/* Where the translated packet came from: the connection is looked for as a packet that answers it. */
static __always_inline bool too_big_original(struct __sk_buff *skb, struct icmp *icmp, const struct settings *settings,
					     bool back)
{
	const struct packet *packet = &icmp->outer;

	icmp->answer = *packet;
	icmp->answer.source = packet->destination;
	icmp->answer.source_port = packet->destination_port;
	icmp->answer.destination = packet->source;
	icmp->answer.destination_port = packet->source_port;
	return back ? icmp_find_forward(skb, icmp, settings) : icmp_find_snat(icmp, settings);
}

/* Gives the packet back the addresses and ports that its sender wrote. */
static __always_inline bool too_big_restore(struct __sk_buff *skb, struct icmp *icmp)
{
	struct rewrite to = {
		.source = icmp->to.destination,
		.destination = icmp->to.source,
		.source_port = icmp->to.destination_port,
		.destination_port = icmp->to.source_port,
	};

	if (!packet_pull(skb, icmp->outer.l4 + l4_touched(&icmp->outer)) ||
	    rewrite_any(skb, &icmp->outer, &to) != VERDICT_CONTINUE)
		return false;
	icmp->outer.source = to.source;
	icmp->outer.destination = to.destination;
	return true;
}

/* Before Linux 6.2, without the kfunc: the kernel refuses to cut a packet before the end of a checksum that it has to complete.
 * Otherwise the quotation ends with the checksum. */
static __always_inline bool too_big_probe(struct __sk_buff *skb, const struct packet *packet, struct too_big *error)
{
	__u32 at = packet->l4 + l4_check_offset(packet->protocol);
	__u16 check;

	if (bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return false;
	error->partial = bpf_skb_change_tail(skb, at + 1, 0) != 0;
	if (error->partial)
		return true;
	error->size = at + sizeof(check) - link_header;
	return bpf_skb_change_tail(skb, at + sizeof(check), 0) == 0 && answer_store(skb, at, &check, sizeof(check));
}

/* What is quoted: so much that the answer is no larger than any way must carry. Another length makes the kernel forget the
 * card's sum: it would take what is put in front of the quotation for a part of the Ethernet header. */
static __always_inline bool too_big_cut(struct __sk_buff *skb, const struct packet *packet, struct too_big *error)
{
	__u32 max = packet->family == 4 ? QUOTE_MAX4 : QUOTE_MAX6;
	enum summed summed = packet_summed(skb);

	error->size = packet->l4 - link_header + packet->l4_length;
	if (error->size > max)
		error->size = max;
	error->partial = summed == SUMMED_PARTIAL;
	if (summed == SUMMED_UNKNOWN && l4_check_offset(packet->protocol) && !too_big_probe(skb, packet, error))
		return false;
	return bpf_skb_change_tail(skb, link_header + error->size + 1, 0) == 0 &&
	       bpf_skb_change_tail(skb, link_header + error->size, 0) == 0;
}

/* Sum of the quotation as it leaves. The checksum that the kernel still has to complete makes all from the transport header on sum up
 * to the negative of what is in its place now. */
static __always_inline bool too_big_sum(struct __sk_buff *skb, const struct packet *packet, const struct too_big *error,
					__u64 *sum)
{
	__u32 at = packet->l4 + l4_check_offset(packet->protocol);
	__u16 pseudo = 0;

	if (!error->partial)
		return quote_sum(skb, error->size, sum);
	if (bpf_skb_load_bytes(skb, at, &pseudo, sizeof(pseudo)) || !quote_sum(skb, packet->l4 - link_header, sum))
		return false;
	*sum += (__u16)~pseudo;
	return true;
}

/* Room for the new headers, which also take the place of the old Ethernet header. */
static __always_inline bool too_big_open(struct __sk_buff *skb, __u32 room)
{
	__be16 kind = skb->protocol;

	if (bpf_skb_change_head(skb, room, 0))
		return false;
	return !link_header || bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &kind, sizeof(kind), 0) == 0;
}

/* A function of its own for the sake of the stack. */
__noinline int too_big_write(struct __sk_buff *skb, const struct packet *packet, struct too_big *error, __u64 sum)
{
	__u8 protocol;
	__u32 length;

	if (!packet || !error)
		return false;
	protocol = packet->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMP6;
	length = sizeof(error->header) + error->size;
	if (packet->family == 6)
		sum += csum_pseudo(packet, protocol, length);
	error->header.check = ~csum_fold(sum + csum_words((const __u32 *)&error->header, sizeof(error->header) / 4));
	return answer_ip(skb, packet, protocol, length) &&
	       answer_store(skb, link_header + ip_header_size(packet->family), &error->header, sizeof(error->header));
}

/* RFC 1191 4, RFC 4443 3.2 and 3.3. */
static __always_inline void too_big_header(struct too_big *error, __u8 family, enum verdict verdict, __u16 mtu)
{
	bool four = family == 4;
	__u32 rest = verdict == VERDICT_REJECT_TOO_BIG ? bpf_htonl(mtu) : 0;

	if (verdict == VERDICT_REJECT_TOO_BIG)
		error->header.type = four ? 3 : 2;
	else
		error->header.type = four ? 11 : 3;
	error->header.code = four && verdict == VERDICT_REJECT_TOO_BIG ? 4 : 0;
	error->header.unused = rest;
	error->header.unused_low = rest >> 16;
}

/* A function of its own for the sake of the stack. */
__noinline int too_big_build(struct __sk_buff *skb, const struct packet *packet, __u32 verdict, __u32 mtu)
{
	struct too_big error = {};
	__u64 sum = 0;

	if (!packet)
		return false;
	too_big_header(&error, packet->family, verdict, mtu);
	return too_big_cut(skb, packet, &error) && too_big_sum(skb, packet, &error, &sum) &&
	       too_big_open(skb, ip_header_size(packet->family) + sizeof(error.header)) &&
	       too_big_write(skb, packet, &error, sum);
}

/* Turns the packet into the ICMP error about it, which the caller routes. False: no error may be sent. */
static __always_inline bool too_big_answer(struct __sk_buff *skb, enum verdict verdict, __u16 mtu, enum way way)
{
	const struct settings *settings = settings_get();
	struct icmp icmp = { .outer.hook = HOOK_FROM_NET };

	if (!settings || parse_full(skb, &icmp.outer) != VERDICT_CONTINUE || icmp.outer.malformed ||
	    !has_ports(icmp.outer.protocol) || icmp.outer.fragment == FRAGMENT_LATER)
		return false;
	if (way != WAY_CARRY && way != WAY_CARRIED && /* these are as their sender wrote them */
	    (!too_big_original(skb, &icmp, settings, way == WAY_BACK) || !too_big_restore(skb, &icmp)))
		return false;
	if (!answer_allowed(skb, &icmp.outer))
		return false;
	return too_big_build(skb, &icmp.outer, verdict, mtu);
}
