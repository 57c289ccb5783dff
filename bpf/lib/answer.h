/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets that are answered to their sender: echo replies, TCP RST, port unreachable. Built by helpers: speed does not matter here,
 * and they keep skb->csum right and reach bytes that are not linear. */
#pragma once

#include "maps.h"
#include "packet.h"
#include "rewrite.h"

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

/* Adds a change to the checksum at offset. zero: what stands for a sum of zero (UDP: 0xffff, as 0 is none). */
static __always_inline bool store_check_or(struct __sk_buff *skb, __u32 offset, __u64 change, __u16 zero)
{
	__u16 check;

	if (bpf_skb_load_bytes(skb, offset, &check, sizeof(check)))
		return false;
	check = csum_after(check, change);
	if (!check)
		check = zero;
	return answer_store(skb, offset, &check, sizeof(check));
}

static __always_inline bool store_check(struct __sk_buff *skb, __u32 offset, __u64 change)
{
	return store_check_or(skb, offset, change, 0);
}

/* Writes two bytes of the IP header in the place of from; in IPv4 its checksum follows. */
static __always_inline bool store_ip_word(struct __sk_buff *skb, __u8 family, __u32 offset, __be16 from, __be16 to)
{
	return answer_store(skb, offset, &to, sizeof(to)) &&
	       (family == 6 ||
		store_check(skb, link_header + offsetof(struct iphdr, check), csum_change_port(from, to)));
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
	__u8 mac = 0;

	if (packet->fragment == FRAGMENT_LATER || (link_header && bpf_skb_load_bytes(skb, 0, &mac, 1)) || mac & 1)
		return false;
	return is_hosts(&packet->source, packet->family);
}

/* RFC 4443 2.4 f, and the same for IPv4: a token bucket of each processor. A reset is no ICMP, and no larger than what it answers. */
static __always_inline bool icmp_error_allowed(void)
{
	const __u64 full = (__u64)icmp_errors_per_second * jiffies_per_second;
	__u32 zero = 0;
	struct icmp_budget *budget = bpf_map_lookup_elem(&icmp_budgets, &zero);
	__u32 now = bpf_jiffies64();
	__u32 quiet;

	if (!budget || trace_on) /* an explanation spends nothing */
		return budget;
	quiet = now - budget->filled;
	if (quiet > jiffies_per_second)
		quiet = jiffies_per_second;
	budget->filled = now;
	budget->credit += (__u64)quiet * icmp_errors_per_second;
	if (budget->credit > full)
		budget->credit = full;
	if (budget->credit < jiffies_per_second)
		return false;
	budget->credit -= jiffies_per_second;
	return true;
}

/* Echo replies, of service addresses. */

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

/* What is left of the request's way is not the answer's (RFC 1122 3.2.1.7). */
static __always_inline bool echo_hops(struct __sk_buff *skb, __u8 family)
{
	bool four = family == 4;
	__u32 at = link_header + (four ? offsetof(struct iphdr, ttl) : offsetof(struct ipv6hdr, nexthdr));
	__u16 from, to;

	if (bpf_skb_load_bytes(skb, at, &from, sizeof(from)))
		return false;
	to = four ? (from & bpf_htons(0xff)) | bpf_htons(ANSWER_TTL << 8)
		  : (from & bpf_htons(0xff00)) | bpf_htons(ANSWER_TTL);
	return store_ip_word(skb, family, at, from, to);
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
	if (!echo_hops(skb, packet->family) || !(packet->family == 4 ? echo_ip4(skb, packet) : echo_ip6(skb, packet)))
		return false;
	return packet_pull(skb, ETH_HLEN) && swap_macs(skb);
}

/* Refusals: TCP RST, ICMP or ICMPv6 port unreachable for the rest. The packet becomes its answer. */

#define QUOTE_CHUNK      32
#define QUOTE_MAX4       (576 - sizeof(struct iphdr) - 8)    /* RFC 1812 4.3.2.3 */
#define QUOTE_MAX6       (1280 - sizeof(struct ipv6hdr) - 8) /* RFC 4443 2.4 c */
#define QUOTE_CHUNKS_MAX ((int)((QUOTE_MAX6 + QUOTE_CHUNK - 1) / QUOTE_CHUNK))

/* Header of an ICMP or ICMPv6 error. */
struct icmp_error {
	__u8 type;
	__u8 code;
	__u16 check;
	__u16 unused;
	__u16 unused_low; /* where a device would put the checksum of a UDP packet that is none any more */
};

static __always_inline __u32 tcp_sequence_length(const struct tcphdr *tcp, const struct packet *packet)
{
	return packet->l4_length - tcp->doff * 4 + tcp->syn + tcp->fin;
}

/* RFC 9293 3.5.2. */
static __always_inline void reject_tcp_header(struct tcphdr *answer, const struct tcphdr *tcp,
					      const struct packet *packet)
{
	answer->source = tcp->dest;
	answer->dest = tcp->source;
	answer->doff = sizeof(*answer) / 4;
	answer->rst = 1;
	if (tcp->ack) {
		answer->seq = tcp->ack_seq;
		return;
	}
	answer->ack = 1;
	answer->ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + tcp_sequence_length(tcp, packet));
}

/* The kernel refuses to cut a packet before the end of a checksum that it has to complete. What is cut off is written anew. */
static __always_inline bool reject_tcp_partial(struct __sk_buff *skb, const struct packet *packet)
{
	enum summed summed = packet_summed(skb);

	if (summed == SUMMED_UNKNOWN)
		return bpf_skb_change_tail(skb, packet->l4 + offsetof(struct tcphdr, check) + 1, 0) != 0;
	return summed == SUMMED_PARTIAL;
}

/* The answer keeps a partial checksum at the same offset, for the kernel to complete. */
static __always_inline __u16 reject_tcp_check(struct __sk_buff *skb, const struct tcphdr *answer,
					      const struct packet *packet)
{
	__u64 sum = csum_pseudo(packet, IPPROTO_TCP, sizeof(*answer));

	if (reject_tcp_partial(skb, packet))
		return csum_fold(sum);
	return ~csum_fold(sum + csum_words((const __u32 *)answer, sizeof(*answer) / 4));
}

/* Takes options and extension headers out, which the answer has none of: a partial checksum moves up with its header. */
static __always_inline bool reject_tcp_plain(struct __sk_buff *skb, struct packet *packet)
{
	__u32 l4 = link_header + ip_header_size(packet->family);
	__s32 more = packet->l4 - l4;

	packet->l4 = l4;
	return !more || bpf_skb_adjust_room(skb, -more, BPF_ADJ_ROOM_NET, 0) == 0;
}

static __always_inline bool reject_tcp(struct __sk_buff *skb, struct packet *packet)
{
	__u32 l4 = link_header + ip_header_size(packet->family);
	struct tcphdr answer = {};
	struct tcphdr tcp;

	if (bpf_skb_load_bytes(skb, packet->l4, &tcp, sizeof(tcp)) || tcp.rst || !reject_tcp_plain(skb, packet))
		return false;
	reject_tcp_header(&answer, &tcp, packet);
	answer.check = reject_tcp_check(skb, &answer, packet);
	return bpf_skb_change_tail(skb, l4 + sizeof(answer), 0) == 0 &&
	       answer_ip(skb, packet, IPPROTO_TCP, sizeof(answer)) && answer_store(skb, l4, &answer, sizeof(answer)) &&
	       swap_macs(skb);
}

/* Moves one chunk of the quoted packet, which has size bytes, up by room bytes and adds its sum; at: where it begins, which may be behind
 * the end; room 0: it adds the sum alone. Not 0: done. A function of its own so that the verifier goes through it once. */
__noinline int quote_chunk(struct __sk_buff *skb, __u32 at, __u32 size, __u32 room, __u64 *sum)
{
	__u32 chunk[QUOTE_CHUNK / 4] = {};
	__u32 last = size - at - 1;

	if (!sum)
		return false;
	if (at >= size)
		return true;
	if (last >= QUOTE_CHUNK)
		last = QUOTE_CHUNK - 1;
	/* the bounds that a helper wants come last: before Linux 6.8 the verifier learns nothing from size != 0 */
	asm volatile("" : "+r"(last));
	if (last >= QUOTE_CHUNK)
		return false;
	at += link_header;
	if (bpf_skb_load_bytes(skb, at, chunk, last + 1) || (room && !answer_store(skb, at + room, chunk, last + 1)))
		return false;
	*sum += csum_words(chunk, QUOTE_CHUNK / 4);
	return true;
}

/* Moves the quoted packet, size bytes of it, up by room bytes: its end first. */
static __always_inline bool quote_move(struct __sk_buff *skb, __u32 size, __u32 room, __u64 *sum)
{
	for (int i = QUOTE_CHUNKS_MAX - 1; i >= 0; i--) {
		if (!quote_chunk(skb, i * QUOTE_CHUNK, size, room, sum))
			return false;
	}
	return true;
}

/* The sum of size bytes from the IP header on. */
static __always_inline bool quote_sum(struct __sk_buff *skb, __u32 size, __u64 *sum)
{
	for (__u32 i = 0; i < QUOTE_CHUNKS_MAX; i++) {
		if (!quote_chunk(skb, i * QUOTE_CHUNK, size, 0, sum))
			return false;
	}
	return true;
}

/* The kernel may complete a UDP checksum inside this ICMP answer, in unused_low. The pseudo header's sum is stored there, so that
 * completing it changes nothing. */
static __always_inline void reject_icmp_header(struct __sk_buff *skb, struct icmp_error *icmp,
					       const struct packet *packet, __u32 size, __u64 sum)
{
	__u64 pseudo = packet->family == 4 ? 0 : csum_pseudo(packet, IPPROTO_ICMP6, sizeof(*icmp) + size);

	icmp->type = packet->family == 4 ? 3 : 1;
	icmp->code = packet->family == 4 ? 3 : 4;
	if (packet_summed(skb) >= SUMMED_PARTIAL) /* or unknown */
		icmp->unused_low = csum_fold(pseudo);
	icmp->check = ~csum_fold(sum + pseudo + csum_words((const __u32 *)icmp, sizeof(*icmp) / 4));
}

static __always_inline bool reject_icmp(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 header = ip_header_size(packet->family);
	__u32 max = packet->family == 4 ? QUOTE_MAX4 : QUOTE_MAX6;
	__u32 size = packet->l4 - link_header + packet->l4_length;
	__u32 room = header + sizeof(struct icmp_error);
	struct icmp_error icmp = {};
	__u64 sum = 0;

	if (size > max)
		size = max;
	if (bpf_skb_change_tail(skb, link_header + size, 0) || bpf_skb_change_tail(skb, link_header + room + size, 0))
		return false;
	if (!quote_move(skb, size, room, &sum))
		return false;
	reject_icmp_header(skb, &icmp, packet, size, sum);
	return answer_ip(skb, packet, packet->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMP6, sizeof(icmp) + size) &&
	       answer_store(skb, link_header + header, &icmp, sizeof(icmp)) && swap_macs(skb);
}
