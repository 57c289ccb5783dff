/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* from_net at XDP, in front of the host's stack and of TC: packets of connections that only go on, both ways, through SNAT here and through the
 * tunnel in xdp_tunnel.h; those that open such a connection (xdp_create.h); what is refused without an answer; and what another node sent through
 * the tunnel for TC (opened.h). Everything else passes untouched: from_net at TC sees it as if there were no program here. So a packet is taken here
 * only where all is known before anything is written, and where it teaches a flow that is there nothing but that a packet came. */
#pragma once

#include "answered.h"
#include "fast.h"
#include "onward.h"
#include "opened.h"
#include "rewrite.h"
#include "route.h"
#include "shortcut.h"

#define XDP_WAY_PART 8 /* of a second: for how long a way is taken as the routing tables had it */
#define XDP_WAY_CONFIRMED \
	8 /* seconds: as often one packet of a flow goes by TC, which has the kernel ask a silent neighbour */

static __always_inline struct span xdp_span(const struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;

	return (struct span){ data, end, end - data };
}

/* A frame that may be taken here. */
struct xdp_frame {
	struct xdp_md *ctx;
	const struct xdp_device *device; /* that it came by */
	struct ethhdr *eth;
	__u32 length;
};

/* The frame is for this host: for_this_host at TC. */
static __always_inline bool xdp_is_ours(const struct xdp_device *device, const struct ethhdr *eth)
{
	const __u16 *to = (const __u16 *)eth->h_dest, *mac = (const __u16 *)device->mac;

	return device->takes && !((to[0] ^ mac[0]) | (to[1] ^ mac[1]) | (to[2] ^ mac[2]));
}

/* True if the checksum is complete, as far as can be told: a partial one is the sum of the pseudo header, left by a virtual device for
 * another one to complete. One complete checksum in 65,536 looks the same, and is left to TC. */
static __always_inline bool xdp_is_summed(const struct packet *packet, const struct headers *headers)
{
	return *headers->check != csum_fold(csum_pseudo(packet, packet->protocol, packet->l4_length));
}

/* True unless UDP's length differs from IP's: its checksum covers another length, and is left to TC. */
static __always_inline bool xdp_is_whole(const struct packet *packet, const struct headers *headers)
{
	return packet->protocol == IPPROTO_TCP || bpf_ntohs(headers->ports[2]) == packet->l4_length;
}

/* at: as in struct xdp_way. */
static __always_inline struct xdp_way *xdp_way_of(__u32 at)
{
	__u32 slot = (at & XDP_WAY_BACK ? ~at : at) & xdp_way_mask;

	return bpf_map_lookup_elem(&xdp_ways, &slot);
}

/* Of the flow's last way: another eighth second begins, and with it the time when a packet is to go by TC. */
static __always_inline bool xdp_way_confirms(const struct xdp_way *way, __u32 now)
{
	__u32 time = XDP_WAY_CONFIRMED * jiffies_per_second;

	return now / time != way->when / time;
}

/* A packet that goes on, and what is known of it. No pointers: it is handed to functions that the verifier knows apart. */
struct xdp_step {
	struct onward on;
	__u32 at;    /* number of the flow's entry, and XDP_WAY_BACK: as in struct xdp_way */
	__u32 word;  /* of the entry */
	__u32 epoch; /* of the device that the packet came by */
	__u32 node;  /* not 0: it goes to that node, in the tunnel, and on.to says nothing */
};

/* Where it leaves for, for the routing tables. False: there is no way. */
static __always_inline bool xdp_describe(struct bpf_fib_lookup *fib, __u32 ifindex, const struct packet *packet,
					 const struct xdp_step *step)
{
	if (step->node)
		return tunnel_describe_to(fib, ifindex, step->node, packet->family);
	onward_describe(fib, ifindex, packet, &step->on.to, 0);
	return true;
}

/* What the routing tables say of the packet as it will be, for way. Not 0: it may leave so from here. A function of its own for the sake of
 * the stack. */
__noinline int xdp_way_route(struct xdp_md *ctx, const struct packet *packet, const struct xdp_step *step,
			     struct xdp_way *way)
{
	const struct xdp_device *device;
	struct bpf_fib_lookup fib = {};
	__u32 mac = 0;

	if (!packet || !step || !way || !xdp_describe(&fib, ctx->ingress_ifindex, packet, step) ||
	    bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return false;
	device = xdp_device_of(fib.ifindex);
	for (int i = 0; i < ETH_ALEN; i++)
		mac |= fib.dmac[i];
	if (!mac || !(fib.ifindex == ctx->ingress_ifindex || (device && device->sends)))
		return false;
	__builtin_memcpy(way->macs, fib.dmac, ETH_ALEN);
	__builtin_memcpy(way->macs + ETH_ALEN, fib.smac, ETH_ALEN);
	way->mtu = fib.mtu_result;
	way->ifindex = fib.ifindex;
	return true;
}

/* Has the way know the second entry of the flow whose entry has the number. Not 0: there is that, or need be none. A function of its own for
 * the sake of the stack. */
__noinline int xdp_way_twin(struct xdp_way *way, __u32 at)
{
	const struct settings *settings = settings_get();
	const struct flow *flow = flow_entry(at & ~XDP_WAY_BACK), *other;
	int twin;

	if (!settings || !way || !flow)
		return false;
	if (!flow_has_twin(flow))
		return true;
	twin = flow_twin_at(settings, flow);
	other = twin < 0 ? NULL : flow_entry(twin);
	if (!other)
		return false;
	way->twin = twin;
	way->twin_word = flow_word(other);
	return true;
}

/* Asks for the way of a packet. Not 0: it has one. A function of its own so that the verifier goes through it once. */
__noinline int xdp_way_ask(struct xdp_md *ctx, const struct packet *packet, const struct xdp_step *step)
{
	struct xdp_way *way;
	__u32 now = flow_now();
	bool confirms;

	if (!packet || !step)
		return false;
	way = xdp_way_of(step->at);
	if (!way)
		return false;
	confirms = way->at == step->at && way->word == step->word && xdp_way_confirms(way, now);
	way->at = FLOW_NONE;
	way->ifindex = 0;
	if (!xdp_way_twin(way, step->at))
		return false;
	xdp_way_route(ctx, packet, step, way);
	way->from = ctx->ingress_ifindex;
	way->epoch = step->epoch;
	way->when = now;
	way->word = step->word;
	way->at = step->at;
	return way->ifindex && !confirms;
}

/* Where the packet leaves, NULL: that is TC's to find. */
static __always_inline const struct xdp_way *xdp_way_find(struct xdp_md *ctx, const struct packet *packet,
							  const struct xdp_step *step, __u32 now)
{
	const struct xdp_way *way = xdp_way_of(step->at);

	if (!way)
		return NULL;
	if (way->at == step->at && way->word == step->word && way->epoch == step->epoch &&
	    way->from == ctx->ingress_ifindex && now - way->when < jiffies_per_second / XDP_WAY_PART + 1)
		return way->ifindex ? way : NULL;
	return xdp_way_ask(ctx, packet, step) ? way : NULL;
}

/* The second entry, if the packet teaches it nothing either. */
static __always_inline struct flow *xdp_twin(const struct xdp_way *way, __u32 add)
{
	struct flow *twin = flow_entry(way->twin);

	return twin && flow_word(twin) == way->twin_word && flow_knows(twin, add) ? twin : NULL;
}

static __always_inline void xdp_rewrite(const struct packet *packet, const struct headers *headers,
					const struct rewrite *to)
{
	__u64 addresses = rewrite_addresses_sum(packet, to, CHANGE_ALL);
	__u64 ports = rewrite_ports_sum(packet, to, CHANGE_ALL);

	rewrite_l3(headers, to, CHANGE_ALL, addresses);
	rewrite_ports(headers->ports, to, CHANGE_ALL);
	rewrite_check(headers->check, packet->protocol, SUMMED_NONE, addresses, ports);
	hops_take(headers);
}

/* eth: the header of the frame as it leaves. */
static __always_inline int xdp_send(const struct xdp_frame *frame, struct ethhdr *eth, const struct xdp_way *way)
{
	__builtin_memcpy(eth, way->macs, sizeof(way->macs));
	if (way->ifindex == frame->ctx->ingress_ifindex && !(frame->device->takes & XDP_TAKES_REDIRECT))
		return XDP_TX;
	return bpf_redirect(way->ifindex, 0);
}

/* XDP_PASS: nothing was written. */
static __always_inline int xdp_translate(const struct xdp_frame *frame, const struct packet *packet,
					 const struct headers *headers, struct flow *flow, const struct xdp_step *step,
					 enum verdict verdict)
{
	__u32 now = flow_now();
	const struct xdp_way *way;
	struct flow *twin;

	if (hops_left(headers) <= 1 || !xdp_is_whole(packet, headers) || !xdp_is_summed(packet, headers))
		return XDP_PASS;
	way = xdp_way_find(frame->ctx, packet, step, now);
	if (!way || packet->l4 - ETH_HLEN + packet->l4_length > way->mtu)
		return XDP_PASS;
	twin = xdp_twin(way, step->on.add);
	flow_barrier();
	if (!twin || flow_word(flow) != step->word)
		return XDP_PASS;
	flow_touch(flow, now);
	flow_touch(twin, now);
	xdp_rewrite(packet, headers, &step->on.to);
	if (verdict == VERDICT_TRANSLATE_REPLY)
		count_from_backend(step->on.backend, frame->length);
	else
		count_to_backend(step->on.backend, frame->length);
	count_verdict(HOOK_XDP, verdict, frame->length);
	return xdp_send(frame, frame->eth, way);
}

/* What becomes of a packet that opens a connection, with the id of the service port: why it is dropped, VERDICT_TRANSLATE_BALANCE, or
 * VERDICT_CONTINUE where it is answered, most probably goes to a backend of this node, or is nobody's. As create_by_record and create_unknown
 * decide. A function of its own so that the verifier goes through it once. */
__noinline int xdp_judge(struct xdp_md *ctx, const struct packet *packet, __u32 *service)
{
	const struct record *record;

	if (!packet || !service)
		return VERDICT_CONTINUE;
	record = frontend_of(packet);
	if (!record || record->flags & RECORD_ADDRESS) {
		int verdict = refuse_unknown(&packet->destination);

		return verdict == VERDICT_DROP_UNALLOCATED ? verdict : VERDICT_CONTINUE;
	}
	if (answered_may_be(record, packet) && answered_xdp(ctx, packet))
		return VERDICT_CONTINUE;
	*service = record->service;
	if (!source_allowed(record, &packet->source))
		return VERDICT_DROP_SOURCE_RANGE;
	switch (record->sides[SIDE_EXTERNAL].action) {
	case ACTION_DROP:
		return VERDICT_DROP_NO_LOCAL_ENDPOINTS;
	case ACTION_BALANCE:
		return record->sides[SIDE_EXTERNAL].tier_names[0] == TIER_NODE ? VERDICT_CONTINUE
									       : VERDICT_TRANSLATE_BALANCE;
	default:
		return VERDICT_CONTINUE;
	}
}

static __always_inline int xdp_drop(const struct xdp_frame *frame, const struct packet *packet, __u32 service,
				    enum verdict verdict)
{
	struct event *event;

	if (service)
		count_refused(service, verdict);
	event = event_begin(verdict);
	if (event) {
		event_fill(event, frame->ctx->ingress_ifindex, packet, verdict);
		event->hook = HOOK_XDP;
		bpf_ringbuf_submit(event, 0);
	}
	count_verdict(HOOK_XDP, verdict, frame->length);
	return XDP_DROP;
}

/* The packet opens a connection, whose flow, if it has one, is nowhere but where its client says, and is not the kernel's NAT's. */
static __always_inline bool xdp_opens_flow(const struct packet *packet, const struct settings *settings)
{
	return opens_connection(packet) && !settings->yield && !settings->draining && !flow_any_spilled();
}

/* Of a datagram's destination. */
static __always_inline __u8 *xdp_refusal_of(const struct packet *packet, const struct settings *settings)
{
	struct xdp_refusals *refusals;
	__u32 zero = 0;
	__u64 hash;

	if (packet->protocol != IPPROTO_UDP)
		return NULL;
	hash = flow_hash(&packet->destination, packet->destination_port, IPPROTO_UDP, settings->seed);
	refusals = bpf_map_lookup_elem(&xdp_refusals, &zero);
	return refusals ? &refusals->last[hash >> 56] : NULL;
}

/* Notes whether a datagram without a flow was dropped; written when that changes. */
static __always_inline void xdp_note_refusal(const struct packet *packet, const struct settings *settings, bool refused)
{
	__u8 *last = xdp_refusal_of(packet, settings);

	if (last && *(volatile __u8 *)last != refused)
		*(volatile __u8 *)last = refused;
}

static __always_inline bool xdp_was_refused(const struct packet *packet, const struct settings *settings)
{
	const __u8 *last = xdp_refusal_of(packet, settings);

	return last && *(volatile const __u8 *)last;
}

/* Why a packet that opens a connection is dropped, if it has no flow, with the id of the service port; no drop: it is TC's. One that is to be
 * balanced goes to xdp_create, and does not come back. */
static __always_inline enum verdict xdp_refuses(const struct xdp_frame *frame, const struct packet *packet,
						const struct settings *settings, __u32 *service)
{
	enum verdict verdict =
		xdp_opens_flow(packet, settings) ? xdp_judge(frame->ctx, packet, service) : VERDICT_CONTINUE;

	xdp_note_refusal(packet, settings, verdict_is_drop(verdict));
	if (verdict == VERDICT_TRANSLATE_BALANCE)
		bpf_tail_call(frame->ctx, &xdp_programs, XDP_PROGRAM_CREATE);
	return verdict;
}

/* The flow of a packet that most probably has none: the tags are asked first. */
static __always_inline struct flow *xdp_find_rare(struct flow_query *query, const struct flow_ends *ends,
						  const struct settings *settings, __u32 *number)
{
	query->hash = flow_ends_hash(ends, settings->seed);
	return fast_search(query, ends, QUERY_FORWARD, number);
}

/* packet: parsed, its family a constant here. */
static __always_inline int xdp_decide(const struct xdp_frame *frame, const struct packet *packet,
				      const struct headers *headers)
{
	const struct settings *settings = settings_get();
	struct flow_query query = {};
	struct xdp_step step = { .epoch = frame->device->epoch };
	struct flow_ends ends;
	enum verdict verdict;
	struct flow *flow;
	__u32 service = 0;
	__u32 known;

	if (!settings || settings_slow(settings) || trace_on)
		return XDP_PASS;
	if (may_be_snat_reply(settings, packet)) {
		flow_ends_reply(&ends, packet);
		flow = fast_find_number(&query, &ends, settings, QUERY_SNAT_REPLY, &step.at);
		step.word = query.word;
		return flow && onward_reply(&step.on, packet, flow)
			       ? xdp_translate(frame, packet, headers, flow, &step, VERDICT_TRANSLATE_REPLY)
			       : XDP_PASS;
	}
	known = known_destination(&packet->destination, packet->destination_port, settings->seed);
	if (!known && opened_may_be(packet)) {
		bpf_tail_call(frame->ctx, &xdp_programs, XDP_PROGRAM_TUNNEL_IN);
		return XDP_PASS;
	}
	if (!(known & KNOWN_FRONTEND) && (known || !service_cidr_has(&packet->destination)))
		return XDP_PASS;
	flow_ends_forward(&ends, packet);
	if (packet->tcp_flags & TCP_SYN) {
		verdict = xdp_refuses(frame, packet, settings, &service);
		if (!verdict_is_drop(verdict) || xdp_find_rare(&query, &ends, settings, &step.at))
			return XDP_PASS;
		return xdp_drop(frame, packet, service, verdict);
	}
	flow = xdp_was_refused(packet, settings) ? xdp_find_rare(&query, &ends, settings, &step.at)
						 : fast_find_number(&query, &ends, settings, QUERY_FORWARD, &step.at);
	step.word = query.word;
	if (!flow) {
		verdict = xdp_refuses(frame, packet, settings, &service);
		return verdict_is_drop(verdict) ? xdp_drop(frame, packet, service, verdict) : XDP_PASS;
	}
	if (tunnel_there && flow->flags & FLOW_CARRY) {
		bpf_tail_call(frame->ctx, &xdp_programs, XDP_PROGRAM_TUNNEL_OUT);
		return XDP_PASS; /* to some verifiers nothing is known of the frame any more */
	}
	return onward_forward(&step.on, settings, packet, flow)
		       ? xdp_translate(frame, packet, headers, flow, &step, VERDICT_TRANSLATE_ESTABLISHED)
		       : XDP_PASS;
}

static __always_inline int xdp_from_net(struct xdp_md *ctx)
{
	const struct xdp_device *device = xdp_device_of(ctx->ingress_ifindex);
	struct packet packet = { .hook = HOOK_FROM_NET };
	struct span span = xdp_span(ctx);
	struct ethhdr *eth = span_at(&span, 0, sizeof(*eth));
	struct xdp_frame frame = { ctx, device, eth, span.length };
	struct headers headers;

	if (!eth || !device || !xdp_is_ours(device, eth))
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && parse_plain4(&span, ETH_HLEN, &packet, &headers))
		return xdp_decide(&frame, &packet, &headers);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6) && parse_plain6(&span, ETH_HLEN, &packet, &headers))
		return xdp_decide(&frame, &packet, &headers);
	return XDP_PASS;
}
