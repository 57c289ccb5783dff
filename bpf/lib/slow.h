/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The slow path: every packet that the fast path leaves, whatever it is; ICMP and ICMPv6 in programs of their own. */
#pragma once

#include "answer.h"
#include "create.h"
#include "health.h"
#include "host.h"
#include "icmp.h"
#include "packet.h"
#include "policy.h"
#include "settings.h"
#include "snat.h"
#include "translate.h"

/* Connections that are lost: their backend is no endpoint any more, and is silent. The client sends the same bytes again and again, for a
 * quarter of an hour; here it gets a reset. A backend that sends anything to a client by this node, though it is gone, loses no connection. */

#define TCP_LENGTH_OFFSET 12 /* of the byte of a TCP header whose high half is its length in words */

/* Not 0: the packet's receiver acknowledges it, as it has bytes or a FIN. Not one byte alone: receivers acknowledge that of a keepalive, and of
 * a probe of a window that is closed, and the sender sends it again nevertheless. */
static __always_inline bool lost_asks(const struct packet *packet, __u8 header)
{
	return !(packet->tcp_flags & (TCP_SYN | TCP_RST)) && packet->fragment == FRAGMENT_NONE &&
	       (packet->tcp_flags & TCP_FIN || packet->l4_length > header + 1);
}

struct lost_count {
	__u32 backend;
	__u32 packets;
};

/* Not 0: there is no such processor. */
static long lost_add(__u32 processor, void *context)
{
	struct lost_count *count = context;
	const struct backend_counter *counter =
		bpf_map_lookup_percpu_elem(&backend_counters, &count->backend, processor);

	if (!counter)
		return 1;
	count->packets += *(volatile const __u64 *)&counter->packets_from;
	return 0;
}

#define LOST_COPIES 4 /* Linux has sent that many 1.4 seconds after the first one, on a quick way */

#define PROCESSORS_MAX 8192

/* Packets that a backend has sent, low 32 bits. */
static __always_inline __u32 lost_heard(__u32 backend)
{
	struct lost_count count = { .backend = backend };

	bpf_loop(PROCESSORS_MAX, lost_add, &count, 0);
	return count.packets;
}

static __always_inline struct lost_packet *lost_slot(__u32 key)
{
	__u32 index = key >> 1 & (LOST_SLOTS - 1);

	return bpf_map_lookup_elem(&lost_packets, &index);
}

/* Says last whose it is: a connection that finds its own finds all of it, unless another one comes between. */
static __always_inline void lost_note(struct lost_packet *slot, __u32 key, __u32 sequence, __u32 heard, __u32 now)
{
	if (trace_on)
		return;
	*(volatile __u32 *)&slot->flow = 0;
	flow_barrier();
	slot->sequence = sequence;
	slot->time = now;
	slot->heard = heard;
	slot->copies = 1;
	flow_barrier();
	*(volatile __u32 *)&slot->flow = key;
}

/* The packet was here so often, for so long, and the backend has sent nothing since then, to no client that comes by this node. So often, as
 * on a slow way a client waits for a second before it sends it again, and one that is lost behind this node is no evidence. */
static __always_inline bool lost_silent(const struct flow *flow, __u32 sequence)
{
	__u32 key = syn_flow(flow);
	__u32 heard = lost_heard(flow->backend);
	struct lost_packet *slot = lost_slot(key);
	__u32 now = flow_now();

	if (!slot)
		return false;
	if (*(volatile __u32 *)&slot->flow == key && slot->sequence == sequence && slot->heard == heard) {
		__u32 copies = slot->copies + 1;

		if (!trace_on)
			slot->copies = copies;
		return copies >= LOST_COPIES &&
		       health_age(slot->time, now) >= jiffies_per_second * lost_milliseconds / 1000;
	}
	lost_note(slot, key, sequence, heard, now);
	return false;
}

/* Not 0: the connection is lost. A function of its own for the sake of the stack. */
__noinline int lost_find(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	const struct flow *flow;
	__u32 sequence;
	__u8 header;

	if (!packet || !found ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, seq), &sequence, sizeof(sequence)) ||
	    bpf_skb_load_bytes(skb, packet->l4 + TCP_LENGTH_OFFSET, &header, sizeof(header)) ||
	    !lost_asks(packet, (header >> 4) * 4))
		return false;
	flow = found_flow(found);
	return flow && lost_silent(flow, sequence) && flow_word(flow) == found->word;
}

/* Ends both entries of a connection that is lost. Id of its service port. */
static __always_inline __u32 lost_end(const struct found *found)
{
	struct flow *flow = found_flow(found);

	if (!flow)
		return 0;
	trace_flow(flow);
	if (!trace_on) {
		flow_note(flow, flow_now(), SEEN_RESET);
		flow_note_twin(flow, SEEN_RESET, false);
	}
	return flow->service;
}

/* The destination is a service's alone, or one that services will have: what no port says whose it is goes to nobody else. */
static __always_inline bool slow_refuses(const struct packet *packet)
{
	return refuse_unknown(&packet->destination) != VERDICT_CONTINUE;
}

/* Of a packet whose first fragment has no flow. */
static __always_inline enum verdict slow_later_fragment(struct __sk_buff *skb, const struct packet *packet)
{
	enum verdict verdict;

	if (!slow_refuses(packet))
		return VERDICT_PASS_FRAGMENT;
	verdict = leave(skb, packet);
	return verdict == VERDICT_CONTINUE ? VERDICT_DROP_FRAGMENT : verdict;
}

/* The packet was translated by work->in.flow, if the verdict says so. */
static __always_inline struct step slow_translated(const struct work *work, enum verdict verdict)
{
	if (work->in.flow.flags & FLOW_SNAT && verdict_is_translate(verdict))
		return (struct step){ NEXT_ROUTE, verdict };
	if (work->in.flow.flags & FLOW_CARRY && !trace_on && verdict_is_translate(verdict))
		return (struct step){ NEXT_TUNNEL, verdict };
	return step_finish(verdict);
}

/* Hands a packet that has no flow and opens no connection to the programs of the former tables, where there are such tables: its connection
 * may have begun there after it was carried over last. */
static __always_inline void slow_ask_former(struct __sk_buff *skb, const struct work *work, enum hook hook)
{
	if (!opens_connection(&work->packet) && !work->found.lost && !work->found.port)
		bpf_tail_call(skb, &programs, hook == HOOK_FROM_NET ? PROGRAM_FORMER : PROGRAM_FORMER_POD);
}

static __always_inline struct step slow_new_flow(struct __sk_buff *skb, struct work *work, enum hook hook)
{
	struct insertion *in = &work->in;
	struct step step = forward_create(skb, work, hook == HOOK_FROM_NET ? SIDE_EXTERNAL : SIDE_INTERNAL);

	if (step.next != NEXT_TRANSLATE)
		return step;
	if (!forward_target(&in->to, work->settings, &in->flow, &work->packet))
		return step_finish(VERDICT_DROP_NO_BACKEND);
	flow_count_first(work->settings, in, skb->len);
	return slow_translated(work, forward_rewrite(skb, &work->packet, &in->flow, &in->to, step.verdict));
}

/* The client of a connection that came through the tunnel comes by this node itself: answers leave from here. */
static __always_inline void slow_take_back(const struct work *work)
{
	struct flow *flow = found_flow(&work->found), *twin;

	if (!flow || !(flow->flags & FLOW_CARRIED) || flow_word(flow) != work->found.word)
		return;
	twin = flow_twin(work->settings, flow);
	if (twin)
		flow_uncarry(twin);
	flow_uncarry(flow);
}

/* The packet's connection goes to its backend by another way from now on, unless it does already (tunnel_turn). */
static __always_inline bool slow_came_back(struct __sk_buff *skb, const struct found *found)
{
	const struct flow *flow;

	if (!tunnel_there || !(handed(skb)->slow.lost & LOST_WAY))
		return false;
	flow = found_flow(found);
	return flow && flow->flags & FLOW_CARRY;
}

static __always_inline struct step slow_flow(struct __sk_buff *skb, struct work *work, enum hook hook)
{
	struct packet *packet = &work->packet;
	enum verdict verdict;

	if (!forward_find(skb, &work->found, packet, &work->query))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	if (work->found.asks && retry_is_due(skb, packet, &work->found))
		work->found.retry = 1;
	if (slow_came_back(skb, &work->found) || (work->found.retry && retry_choose(skb, packet, &work->found)))
		work->found.usable = 0;
	if (work->found.gone && lost_find(skb, packet, &work->found)) {
		work->service = lost_end(&work->found);
		return step_finish(VERDICT_REJECT_LOST);
	}
	if (work->found.usable) {
		if (tunnel_there && hook == HOOK_FROM_NET)
			slow_take_back(work);
		verdict = forward_established(skb, work->settings, packet, &work->found, &work->in.flow, &work->in.to);
		return verdict == VERDICT_CONTINUE ? step_again(VERDICT_DROP_FLOW_RACE)
						   : slow_translated(work, verdict);
	}
	if (packet->fragment == FRAGMENT_LATER)
		return step_finish(slow_later_fragment(skb, packet));
	if (handed(skb)->slow.lost & LOST_BACKEND)
		work->found.lost = 1;
	if (handed(skb)->slow.backend)
		work->found.port = 0; /* what is left of the flow is the last backend's */
	slow_ask_former(skb, work, hook);
	return slow_new_flow(skb, work, hook);
}

/* Of what may be a reply to SNAT: the program for these has to look at it for the sake of the host's own connections. */
static __always_inline bool slow_of_host(const struct packet *packet)
{
	return packet->protocol == IPPROTO_TCP && (answers_syn(packet) || host_has_left(packet));
}

static __always_inline struct step slow_ports(struct __sk_buff *skb, struct work *work, enum hook hook)
{
	struct packet *packet = &work->packet;
	bool hairpin =
		hook == HOOK_FROM_POD && is_hairpin_address(work->settings, packet->family, &packet->destination);
	bool portless = packet->fragment == FRAGMENT_LATER && !fragment_recall(packet);
	bool reply = (hook == HOOK_FROM_NET || host_there(work->settings)) && !packet->malformed && !portless &&
		     may_be_snat_reply(work->settings, packet) && snat_source_index(&packet->destination);
	bool of_service;

	if (reply && (snat_has(&work->query, packet) || (host_there(work->settings) && slow_of_host(packet))))
		return step_to(NEXT_REPLY);
	if (!known_destination(&packet->destination, packet->destination_port, work->settings->seed) && !hairpin &&
	    !service_cidr_has(&packet->destination)) {
		if (reply)
			return step_unknown_reply();
		return step_finish(packet->fragment == FRAGMENT_LATER ? VERDICT_PASS_FRAGMENT
								      : VERDICT_PASS_NOT_SERVICE);
	}
	if (packet->malformed || portless) {
		of_service = slow_refuses(packet);
		if (packet->malformed)
			return step_finish(of_service ? VERDICT_DROP_MALFORMED : VERDICT_PASS_MALFORMED);
		return step_finish(of_service ? VERDICT_DROP_FRAGMENT : VERDICT_PASS_FRAGMENT);
	}
	return hairpin ? step_to(NEXT_HAIRPIN) : slow_flow(skb, work, hook);
}

/* A protocol that no service has. */
static __always_inline enum verdict slow_other(const struct packet *packet)
{
	enum verdict verdict = refuse_unknown(&packet->destination);

	if (packet->malformed)
		return verdict == VERDICT_CONTINUE ? VERDICT_PASS_MALFORMED : VERDICT_DROP_MALFORMED;
	return verdict == VERDICT_CONTINUE ? VERDICT_PASS_PROTOCOL : verdict;
}

/* Of the packet as it came, for what is routed: one that came back through the tunnel came with what was in front of it. */
static __always_inline __u32 slow_length(struct __sk_buff *skb)
{
	const struct tunnel_packet *in = handed(skb)->slow.lost & LOST_WAY ? tunnel_packet_get() : NULL;
	__u32 length = skb->len;

	asm volatile("" : "+r"(length)); /* one load of either is what the verifier does not take */
	return in ? in->length : length;
}

/* hook: a constant, the door of a client. */
static __always_inline struct step slow_forward(struct __sk_buff *skb, struct work *work, enum hook hook)
{
	enum verdict verdict;

	work->settings = settings_get();
	if (!work->settings || work->settings->disabled)
		return step_finish(VERDICT_PASS_DISABLED);
	work->packet.hook = hook;
	verdict = parse_full(skb, &work->packet);
	if (verdict != VERDICT_CONTINUE)
		return step_finish(verdict);
	if (is_icmp(work->packet.protocol, work->packet.family))
		return step_to(NEXT_ICMP);
	return may_have_ports(&work->packet) ? slow_ports(skb, work, hook) : step_finish(slow_other(&work->packet));
}

/* Packets to the hairpin address; the packet is no fragment without ports any more. */
static __always_inline struct step slow_hairpin(struct __sk_buff *skb)
{
	const struct settings *settings = settings_get();
	struct packet packet = { .hook = HOOK_FROM_POD };
	enum verdict verdict;

	if (!settings)
		return step_finish(VERDICT_PASS_DISABLED);
	verdict = parse_full(skb, &packet);
	if (verdict != VERDICT_CONTINUE)
		return step_finish(verdict);
	if (packet.fragment == FRAGMENT_LATER && !fragment_recall(&packet))
		return step_finish(VERDICT_PASS_FRAGMENT);
	return reply_hairpin(skb, settings, &packet);
}

static __always_inline struct step slow_reply(struct __sk_buff *skb, enum hook hook)
{
	const struct settings *settings = settings_get();
	struct packet packet = { .hook = hook };
	enum verdict verdict;

	if (!settings || settings->disabled)
		return step_finish(VERDICT_PASS_DISABLED);
	verdict = parse_full(skb, &packet);
	if (verdict != VERDICT_CONTINUE)
		return step_finish(verdict);
	if (is_icmp(packet.protocol, packet.family))
		return step_to(NEXT_ICMP);
	return reply_slow(skb, settings, &packet);
}

/* ICMP and ICMPv6 of both directions. */

/* VERDICT_CONTINUE: type is set, the packet is whole. */
static __always_inline enum verdict icmp_parse(struct __sk_buff *skb, struct icmp *icmp, __u8 *type)
{
	enum verdict verdict = parse_full(skb, &icmp->outer);

	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (icmp->outer.fragment == FRAGMENT_LATER)
		return VERDICT_PASS_FRAGMENT;
	if (icmp->outer.malformed || bpf_skb_load_bytes(skb, icmp->outer.l4, type, 1))
		return VERDICT_PASS_MALFORMED;
	return VERDICT_CONTINUE;
}

/* An error from the client's side about a packet that came from a server. A pod may also be the server of a hairpin flow; from
 * the network also comes what routers say about packets that left by SNAT. */
static __always_inline struct step icmp_error_forward(struct __sk_buff *skb, struct icmp *icmp,
						      const struct settings *settings, enum hook hook)
{
	bool hairpin;

	if (!quote_parse(skb, icmp))
		return step_finish(VERDICT_PASS_ICMP);
	hairpin = hook == HOOK_FROM_POD && is_hairpin_address(settings, icmp->answer.family, &icmp->answer.destination);
	if (hook == HOOK_FROM_NET && bpf_ntohs(icmp->answer.destination_port) >= SNAT_PORT_FIRST &&
	    icmp_find_snat(icmp, settings))
		return icmp_translate(skb, icmp, hook);
	if (!(hairpin ? icmp_find_reply(icmp, settings) : icmp_find_forward(skb, icmp, settings)))
		return step_finish(VERDICT_PASS_ICMP);
	return icmp_translate(skb, icmp, hook);
}

static __always_inline enum verdict icmp_echo(struct __sk_buff *skb, struct icmp *icmp)
{
	const struct packet *packet = &icmp->outer;

	if (!known_frontend(&packet->destination, filter_seed()) || !frontend_find_address(&packet->destination))
		return service_cidr_has(&packet->destination) && !node_drains() ? VERDICT_DROP_UNALLOCATED
										: VERDICT_PASS_ICMP;
	if (node_drains())
		return VERDICT_PASS_DRAINING;
	if (packet->fragment != FRAGMENT_NONE)
		return slow_refuses(packet) ? VERDICT_DROP_FRAGMENT : VERDICT_PASS_FRAGMENT;
	icmp->back = echo_answer(skb, packet);
	return VERDICT_REJECT_ECHO;
}

/* hook: a constant, the door of a client. */
static __always_inline struct step icmp_forward(struct __sk_buff *skb, struct icmp *icmp, enum hook hook)
{
	const struct settings *settings = settings_get();
	enum verdict verdict;
	__u8 type = 0;

	if (!settings)
		return step_finish(VERDICT_PASS_DISABLED);
	verdict = icmp_parse(skb, icmp, &type);
	if (verdict == VERDICT_PASS_FRAGMENT && slow_refuses(&icmp->outer))
		return step_finish(VERDICT_DROP_FRAGMENT);
	if (verdict != VERDICT_CONTINUE)
		return step_finish(verdict);
	if (is_echo_request(&icmp->outer, type))
		return step_finish(icmp_echo(skb, icmp));
	return is_icmp_error(&icmp->outer, type) ? icmp_error_forward(skb, icmp, settings, hook)
						 : step_finish(VERDICT_PASS_ICMP);
}

/* hook: a constant, the door of a client from the other side. */
static __always_inline struct step icmp_reply(struct __sk_buff *skb, struct icmp *icmp, enum hook hook)
{
	const struct settings *settings = settings_get();
	enum verdict verdict;
	__u8 type = 0;

	if (!settings)
		return step_finish(VERDICT_PASS_DISABLED);
	verdict = icmp_parse(skb, icmp, &type);
	if (verdict != VERDICT_CONTINUE)
		return step_finish(verdict);
	if (!is_icmp_error(&icmp->outer, type) || !quote_parse(skb, icmp) || !icmp_find_reply(icmp, settings))
		return step_finish(VERDICT_PASS_ICMP);
	return icmp_translate(skb, icmp, hook);
}
