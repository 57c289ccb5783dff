/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors: those of others are translated by the flow of the packet that they quote, so that path MTU discovery works through services;
 * those of this node answer a packet that was translated and cannot go on. */
#pragma once

#include "answer.h"
#include "packet.h"
#include "translate.h"

/* Errors of others. */

#define ICMP_HEADER 8

/* An ICMP error and the packet in it. */
struct icmp {
	struct packet outer;
	struct packet answer; /* like a packet that answers the quoted one: source and destination exchanged */
	struct rewrite to;    /* what answer is translated to */
	union {
		struct reply match;      /* the connection of the quoted packet, in either direction */
		struct flow_query query; /* before it is known */
	};
	__u16 quote;    /* offset of the quoted IP header */
	__u16 l4_check; /* offset of the quoted checksum, 0 when the quote ends before it or it has none */
	bool back;      /* goes back to the pod that sent it (hairpin) */
};

static __always_inline bool is_icmp_error(const struct packet *packet, __u8 type)
{
	if (packet->family == 4)
		return type == 3 || type == 4 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

/* Reads what the ICMP message still has at offset: the frame may be longer. */
static __always_inline bool quote_load(struct __sk_buff *skb, const struct icmp *icmp, __u32 offset, void *to,
				       __u32 size)
{
	if (offset + size > icmp->outer.l4 + icmp->outer.l4_length)
		return false;
	return bpf_skb_load_bytes(skb, offset, to, size) == 0;
}

static __always_inline bool quote_parse4(struct __sk_buff *skb, struct icmp *icmp)
{
	struct packet *answer = &icmp->answer;
	struct iphdr ip;

	if (!quote_load(skb, icmp, icmp->quote, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return false;
	answer->protocol = ip.protocol;
	answer->l4 = icmp->quote + ip.ihl * 4;
	address_from4(&answer->source, ip.daddr);
	address_from4(&answer->destination, ip.saddr);
	return !(ip.frag_off & bpf_htons(IP_FRAGMENT_OFFSET));
}

static __always_inline bool quote_parse6(struct __sk_buff *skb, struct icmp *icmp)
{
	struct packet *answer = &icmp->answer;
	struct ipv6hdr ip;

	if (!quote_load(skb, icmp, icmp->quote, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	answer->protocol = ip.nexthdr;
	answer->l4 = icmp->quote + sizeof(ip);
	address_from6(&answer->source, &ip.daddr);
	address_from6(&answer->destination, &ip.saddr);
	return parse_extensions(skb, answer) == VERDICT_CONTINUE && answer->fragment != FRAGMENT_LATER;
}

static __always_inline void quote_find_check(struct __sk_buff *skb, struct icmp *icmp)
{
	__u32 at = l4_check_offset(icmp->answer.protocol);
	__u16 check;

	icmp->l4_check = 0;
	if (!at || !quote_load(skb, icmp, icmp->answer.l4 + at, &check, sizeof(check)))
		return;
	if (check || icmp->answer.protocol != IPPROTO_UDP)
		icmp->l4_check = icmp->answer.l4 + at;
}

/* False: nothing that could have a flow. */
static __always_inline bool quote_parse(struct __sk_buff *skb, struct icmp *icmp)
{
	struct packet *answer = &icmp->answer;
	__be16 ports[2];

	answer->family = icmp->outer.family;
	icmp->quote = icmp->outer.l4 + ICMP_HEADER;
	if (!(answer->family == 4 ? quote_parse4(skb, icmp) : quote_parse6(skb, icmp)))
		return false;
	if (!has_ports(answer->protocol) || !quote_load(skb, icmp, answer->l4, ports, sizeof(ports)))
		return false;
	answer->source_port = ports[1];
	answer->destination_port = ports[0];
	quote_find_check(skb, icmp);
	return true;
}

static __always_inline bool store_addresses(struct __sk_buff *skb, __u32 ip, __u8 family, const struct address *source,
					    const struct address *destination)
{
	__be32 short_pair[2] = { address_to4(source), address_to4(destination) };
	struct address pair[2] = { *source, *destination };

	if (family == 4)
		return answer_store(skb, ip + offsetof(struct iphdr, saddr), short_pair, sizeof(short_pair));
	return answer_store(skb, ip + offsetof(struct ipv6hdr, saddr), pair, sizeof(pair));
}

static __always_inline __u64 icmp_negative(__u64 change)
{
	return (__u16)~csum_fold(change);
}

/* Writes addresses, ports and checksums of the quoted packet. change: what that adds to the sum of the quote. */
static __always_inline bool quote_rewrite(struct __sk_buff *skb, const struct icmp *icmp, __u64 *change)
{
	const struct packet *answer = &icmp->answer;
	__be16 ports[2] = { icmp->to.destination_port, icmp->to.source_port };
	__u64 addresses = rewrite_addresses_sum(answer, &icmp->to, CHANGE_ALL);
	__u64 of_ports = rewrite_ports_sum(answer, &icmp->to, CHANGE_ALL);

	/* an IPv4 header sums up as before: its own checksum takes the change back */
	*change = of_ports + (answer->family == 6 ? addresses : 0);
	if (!store_addresses(skb, icmp->quote, answer->family, &icmp->to.destination, &icmp->to.source))
		return false;
	if (answer->family == 4 && !store_check(skb, icmp->quote + offsetof(struct iphdr, check), addresses))
		return false;
	if (!answer_store(skb, answer->l4, ports, sizeof(ports)))
		return false;
	if (!icmp->l4_check)
		return true;
	*change += icmp_negative(addresses + of_ports);
	return store_check_or(skb, icmp->l4_check, addresses + of_ports, answer->protocol == IPPROTO_UDP ? 0xffff : 0);
}

/* The outer addresses change where they are the quoted connection's own: routers keep theirs. With SNAT neither side may know
 * the other's routers, and would take their addresses for forged. */
static __always_inline void outer_target(const struct icmp *icmp, struct rewrite *to)
{
	const struct packet *outer = &icmp->outer;
	const struct packet *answer = &icmp->answer;

	if (icmp->match.flow.flags & (FLOW_SNAT | FLOW_CARRIED)) {
		*to = icmp->to;
		return;
	}
	to->source = address_equal(&outer->source, &answer->source) ? icmp->to.source : outer->source;
	to->destination =
		address_equal(&outer->destination, &answer->destination) ? icmp->to.destination : outer->destination;
}

/* A function of its own so that the verifier goes through it once. */
__noinline int icmp_rewrite(struct __sk_buff *skb, const struct icmp *icmp)
{
	struct rewrite to = {};
	__u64 change;
	__u64 addresses;

	if (!icmp || !quote_rewrite(skb, icmp, &change))
		return VERDICT_DROP_REWRITE;
	outer_target(icmp, &to);
	addresses = rewrite_addresses_sum(&icmp->outer, &to, CHANGE_SOURCE | CHANGE_DESTINATION);
	if (icmp->outer.family == 6)
		change += addresses;
	if (!store_check(skb, icmp->outer.l4 + 2, change) ||
	    !store_addresses(skb, link_header, icmp->outer.family, &to.source, &to.destination))
		return VERDICT_DROP_REWRITE;
	if (icmp->outer.family == 4 && !store_check(skb, link_header + offsetof(struct iphdr, check), addresses))
		return VERDICT_DROP_REWRITE;
	return VERDICT_TRANSLATE_ICMP;
}

/* The quoted packet came from a server, as the client saw it; the error goes to that server. Of an entry that has expired, or has
 * lost the other one, the server may know the port as another connection's. */
static __always_inline bool icmp_find_forward(struct __sk_buff *skb, struct icmp *icmp, const struct settings *settings)
{
	const struct packet *answer = &icmp->answer;
	struct found found = {};
	struct flow *live;

	if (!forward_find(skb, &found, answer, &icmp->query) || !(found.usable | found.lost))
		return false;
	live = found_flow(&found);
	if (!live)
		return false;
	icmp->match.flow = *live;
	flow_barrier();
	return flow_word(live) == found.word && forward_target(&icmp->to, settings, &icmp->match.flow, answer);
}

/* The quoted packet went to a server, as that saw it; the error goes to the client. */
static __always_inline bool icmp_find_reply(struct icmp *icmp, const struct settings *settings)
{
	struct packet *answer = &icmp->answer;
	struct address destination = answer->destination;

	if (is_hairpin_address(settings, answer->family, &destination))
		answer->destination = answer->source;
	reply_find(&icmp->match, settings, answer, QUERY_REPLY);
	answer->destination = destination;
	if (!icmp->match.at)
		return false;
	reply_target(&icmp->to, &icmp->match.flow, answer);
	return true;
}

/* The quoted packet left this node, by SNAT (QUERY_SNAT_REPLY) or with the client's address (QUERY_REPLY); the error goes to the client. */
static __always_inline bool icmp_find_sent(struct icmp *icmp, const struct settings *settings,
					   enum flow_query_kind kind)
{
	const struct packet *answer = &icmp->answer;

	reply_find(&icmp->match, settings, answer, kind);
	if (!icmp->match.at)
		return false;
	reply_target(&icmp->to, &icmp->match.flow, answer);
	return true;
}

static __always_inline bool icmp_find_snat(struct icmp *icmp, const struct settings *settings)
{
	return icmp_find_sent(icmp, settings, QUERY_SNAT_REPLY);
}

/* How an error leaves that was translated. */
static __always_inline enum next icmp_way(const struct flow *flow, enum hook hook)
{
	__u8 flags = flow->flags;

	if (hook == HOOK_FROM_NET && flags & FLOW_SNAT)
		return flow_of_host(flow) ? NEXT_FINISH : NEXT_ROUTE;
	if (tunnel_there && hook == HOOK_TO_NET && (flags & (FLOW_CARRIED | FLOW_DSR)) == FLOW_CARRIED)
		return NEXT_TUNNEL;
	return NEXT_FINISH;
}

/* hook: a constant. */
static __always_inline struct step icmp_translate(struct __sk_buff *skb, struct icmp *icmp, enum hook hook)
{
	__u8 swap = icmp->match.flow.flags & FLOW_HAIRPIN;
	enum verdict verdict;

	if (icmp->match.flow.flags == FLOW_DIRECT && icmp->match.flow.key_port == icmp->match.flow.twin_port)
		return step_finish(VERDICT_PASS_ICMP);
	trace_flow(&icmp->match.flow);
	if (icmp->match.flow.flags & FLOW_CARRY) /* the other node translates it */
		return (struct step){ hook == HOOK_FROM_NET ? NEXT_TUNNEL : NEXT_FINISH, VERDICT_TRANSLATE_ICMP };
	icmp->back = swap;
	if (swap && !(packet_pull(skb, ETH_HLEN) && swap_macs(skb)))
		return step_finish(VERDICT_DROP_REWRITE);
	verdict = icmp_rewrite(skb, icmp);
	if (verdict_is_drop(verdict))
		return step_finish(verdict);
	return (struct step){ icmp_way(&icmp->match.flow, hook), verdict };
}

/* Answers a packet that was translated and cannot go on: packet too big, or time exceeded, to its sender and about what that
 * sent. The quoted packet stays where it is; what comes in front of it is put there. */

/* The error, but for its checksum. */
struct too_big {
	struct icmp_error header;
	__u32 size; /* of the quotation */
	bool partial;
};

/* Where the translated packet came from: the connection is looked for as a packet that answers it. */
static __always_inline bool too_big_original(struct __sk_buff *skb, struct icmp *icmp, const struct settings *settings,
					     enum way way)
{
	const struct packet *packet = &icmp->outer;

	icmp->answer = *packet;
	icmp->answer.source = packet->destination;
	icmp->answer.source_port = packet->destination_port;
	icmp->answer.destination = packet->source;
	icmp->answer.destination_port = packet->source_port;
	if (way == WAY_BACK || way == WAY_BACK_HOST)
		return icmp_find_forward(skb, icmp, settings);
	return icmp_find_sent(icmp, settings, way == WAY_NEAR ? QUERY_REPLY : QUERY_SNAT_REPLY);
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

/* RFC 1191 4, RFC 4443 3.1 to 3.3. */
static __always_inline void too_big_header(struct too_big *error, __u8 family, enum verdict verdict, __u16 mtu)
{
	bool four = family == 4;
	__u32 rest = verdict == VERDICT_REJECT_TOO_BIG ? bpf_htonl(mtu) : 0;

	if (verdict == VERDICT_REJECT_TOO_BIG) {
		error->header.type = four ? 3 : 2;
		error->header.code = four ? 4 : 0;
	} else if (verdict == VERDICT_REJECT_TIME_EXCEEDED) {
		error->header.type = four ? 11 : 3;
	} else { /* the port is unreachable */
		error->header.type = four ? 3 : 1;
		error->header.code = four ? 3 : 4;
	}
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

/* The error about a packet is for this host. */
static __always_inline bool way_comes_in(enum way way)
{
	return way == WAY_HOST || way == WAY_BACK_HOST;
}

/* Such an error: in an Ethernet header, for the device that the packet was to leave by. */
static __always_inline bool too_big_come_in(struct __sk_buff *skb, const __u8 *device)
{
	return !link_header || bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_dest), device, ETH_ALEN, 0) == 0;
}

/* Turns the packet into the ICMP error about it, which the caller routes, or has come in (way_comes_in). False: no error may be sent. */
static __always_inline bool too_big_answer(struct __sk_buff *skb, enum verdict verdict, __u16 mtu, enum way way)
{
	const struct settings *settings = settings_get();
	struct icmp icmp = { .outer.hook = HOOK_FROM_NET };
	__u8 device[ETH_ALEN] = {};

	if (way_comes_in(way) && link_header &&
	    bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_source), device, ETH_ALEN))
		return false;
	if (!settings || parse_full(skb, &icmp.outer) != VERDICT_CONTINUE || icmp.outer.malformed ||
	    !has_ports(icmp.outer.protocol) || icmp.outer.fragment == FRAGMENT_LATER)
		return false;
	if (way != WAY_CARRY && way != WAY_CARRIED && /* these are as their sender wrote them */
	    (!too_big_original(skb, &icmp, settings, way) || !too_big_restore(skb, &icmp)))
		return false;
	if (!answer_allowed(skb, &icmp.outer))
		return false;
	return too_big_build(skb, &icmp.outer, verdict, mtu) && (!way_comes_in(way) || too_big_come_in(skb, device));
}

/* Refusals (answer.h) of any packet. */

/* Port unreachable about a packet with options or extension headers: a checksum that the kernel still has to complete is behind them, so the
 * quotation stays where it is. */
static __always_inline bool reject_behind(struct __sk_buff *skb, const struct packet *packet, enum verdict verdict)
{
	__u8 macs[2 * ETH_ALEN] = {};

	if (link_header && bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
		return false;
	if (!too_big_build(skb, packet, verdict, 0))
		return false;
	return !link_header ||
	       (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_dest), macs + ETH_ALEN, ETH_ALEN, 0) == 0 &&
		bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_source), macs, ETH_ALEN, 0) == 0);
}

/* False: there is no answer to such a packet. */
static __always_inline bool reject_answer(struct __sk_buff *skb, enum verdict verdict)
{
	struct packet packet = {};

	if (parse_full(skb, &packet) != VERDICT_CONTINUE || packet.malformed || !answer_allowed(skb, &packet))
		return false;
	if (packet.protocol == IPPROTO_TCP)
		return reject_tcp(skb, &packet);
	if (packet.l4 == link_header + ip_header_size(packet.family))
		return reject_icmp(skb, &packet);
	return reject_behind(skb, &packet, verdict);
}
