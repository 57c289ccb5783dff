/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The parser of the slow path: options, extension headers, packets whose headers are not linear, and fragments. */
#pragma once

#include "config.h"
#include "maps.h"
#include "packet.h"

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

static __always_inline enum verdict parse_full_l4(struct __sk_buff *skb, struct packet *packet)
{
	bool whole = true;

	if (packet->fragment == FRAGMENT_LATER)
		return VERDICT_CONTINUE;
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
	return VERDICT_CONTINUE;
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
	return parse_full_l4(skb, packet);
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
	return parse_full_l4(skb, packet);
}

/* VERDICT_CONTINUE: the packet is described, perhaps as malformed behind its addresses.
 * A function of its own so that the verifier goes through it once. */
__noinline int parse_full(struct __sk_buff *skb, struct packet *packet)
{
	if (!packet)
		return VERDICT_PASS_MALFORMED;
	if (skb->vlan_present)
		return VERDICT_PASS_NOT_IP;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return parse_full4(skb, packet);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return parse_full6(skb, packet);
	return VERDICT_PASS_NOT_IP;
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

/* The packet has ports, or is a later fragment whose first may have had some. */
static __always_inline bool may_have_ports(const struct packet *packet)
{
	return has_ports(packet->protocol) || (packet->fragment == FRAGMENT_LATER && is_extension(packet->protocol));
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

/* Gives a later fragment the ports of its first. Not 0: done. Of what follows an IPv6 fragment header, later fragments name but the
 * first: behind destination options is the protocol that the first one found. A function of its own for the sake of the stack. */
__noinline int fragment_recall(struct packet *packet)
{
	if (!packet)
		return false;
	if (has_ports(packet->protocol))
		return fragment_recall_as(packet, packet->protocol);
	return is_extension(packet->protocol) &&
	       (fragment_recall_as(packet, IPPROTO_UDP) || fragment_recall_as(packet, IPPROTO_TCP) ||
		fragment_recall_as(packet, IPPROTO_SCTP));
}
