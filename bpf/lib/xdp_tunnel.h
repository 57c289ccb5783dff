/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The tunnel at XDP: packets of clients whose connection goes on enter it, and the answers leave it for the client. As in xdp.h, a packet is taken
 * only where all is known before anything is written. Both are programs of their own, for the sake of the stack, and parse again. */
#pragma once

#include "opened.h"
#include "tunnel.h"
#include "xdp.h"

/* What the programs below know of a packet. */
struct xdp_carriage {
	struct wrap wrap; /* with the packet; of one that leaves the tunnel, no more */
	struct xdp_step step;
	struct flow_query query;
};
_Static_assert(sizeof(struct xdp_carriage) <= sizeof(struct xdp_work), "there is room");

static __always_inline struct xdp_carriage *xdp_carriage_get(void)
{
	__u32 zero = 0;
	struct xdp_carriage *carriage = tunnel_there ? bpf_map_lookup_elem(&xdp_works, &zero) : NULL;

	if (carriage)
		__builtin_memset(carriage, 0, sizeof(*carriage));
	return carriage;
}

/* protocol: of what is behind the Ethernet header. */
static __always_inline bool xdp_parse(const struct xdp_frame *frame, __be16 protocol, struct packet *packet,
				      struct headers *headers)
{
	struct span span = xdp_span(frame->ctx);

	if (protocol == bpf_htons(ETH_P_IP))
		return parse_plain4(&span, ETH_HLEN, packet, headers);
	return protocol == bpf_htons(ETH_P_IPV6) && parse_plain6(&span, ETH_HLEN, packet, headers);
}

/* False: it is none that from_net_xdp takes. */
static __always_inline bool xdp_begin(struct xdp_md *ctx, struct xdp_frame *frame)
{
	struct span span = xdp_span(ctx);

	frame->ctx = ctx;
	frame->device = xdp_device_of(ctx->ingress_ifindex);
	frame->eth = span_at(&span, 0, sizeof(*frame->eth));
	frame->length = span.length;
	return frame->device && frame->eth;
}

static __always_inline bool xdp_fits(const struct packet *packet, __u32 size, const struct xdp_way *way)
{
	return packet->l4 - ETH_HLEN + packet->l4_length + size <= way->mtu;
}

/* A client's packet: wrap_packet for one of a connection that goes on. */

/* What the packet in wrap, whose class that says, gets in front of it as one of the flow to the node that has the number. False: there is no way. */
static __always_inline bool xdp_wrap_describe(struct xdp_carriage *carriage, const struct flow *flow, __u16 number,
					      const struct tunnel_node *node)
{
	struct wrap *wrap = &carriage->wrap;
	const struct packet *packet = &wrap->route.packet;
	const struct tunnel_end *tunnel = tunnel_get();

	if (!node || !tunnel || !tunnel->port)
		return false;
	carriage->step.node = number;
	carriage->step.on.backend = flow->backend;
	wrap->kind = wrap_kind(tail_kind(flow, packet), node);
	wrap->family = tunnel_family(tunnel, node, packet->family);
	wrap->cookie = tunnel->cookie;
	wrap->option = tunnel_option_size(packet->family);
	wrap->length = packet->l4 - ETH_HLEN + packet->l4_length;
	return wrap->family;
}

/* The node that the flow of the packet in wrap goes to. NULL: that is TC's to find out. */
static __always_inline const struct tunnel_node *xdp_wrap_flow(struct xdp_carriage *carriage,
							       const struct settings *settings)
{
	struct wrap *wrap = &carriage->wrap;
	struct xdp_step *step = &carriage->step;
	const struct packet *packet = &wrap->route.packet;
	const struct tunnel_node *node;
	const struct backend *backend;
	struct flow_ends ends;
	struct flow *flow;

	flow_ends_forward(&ends, packet);
	flow = fast_find_number(&carriage->query, &ends, settings, QUERY_FORWARD, &step->at);
	if (!flow)
		return NULL;
	step->word = carriage->query.word;
	step->on.add = seen_from_client(packet, flow->seen);
	backend = packet->tcp_flags & TCP_SYN ? NULL : onward_carried(flow, step->on.add);
	node = backend ? tunnel_node_get(backend->node) : NULL;
	if (!node || (packet->protocol == IPPROTO_UDP && !(backend_serves_always(backend) && node->carries)))
		return NULL;
	return xdp_wrap_describe(carriage, flow, backend->node, node) ? node : NULL;
}

/* Takes one from the TTL of the packet behind so many bytes. */
static __always_inline bool xdp_age(const struct span *span, __u32 size, __u8 family)
{
	struct headers headers = {};

	if (family == 4)
		headers.ip4 = span_at(span, ETH_HLEN + size, sizeof(*headers.ip4));
	else
		headers.ip6 = span_at(span, ETH_HLEN + size, sizeof(*headers.ip6));
	hops_take(&headers);
	return headers.ip4 || headers.ip6;
}

/* Writes what is in front, for which there is room now. */
static __always_inline int xdp_wrap_send(const struct xdp_frame *frame, const struct xdp_carriage *carriage,
					 const struct tunnel_node *node, const struct xdp_way *way,
					 enum verdict verdict)
{
	const struct wrap *wrap = &carriage->wrap;
	__u32 backend = carriage->step.on.backend;
	struct ethhdr *eth;
	struct span span;

	if (wrap_store_xdp(frame->ctx, wrap, backend, node)) {
		span = xdp_span(frame->ctx);
		eth = span_at(&span, 0, sizeof(*eth));
		if (eth && xdp_age(&span, wrap_size(wrap), wrap->family)) {
			eth->h_proto = tunnel_protocol(wrap->family);
			count_to_backend(backend, frame->length);
			count_verdict(HOOK_XDP, verdict, frame->length);
			return xdp_send(frame, eth, way);
		}
	}
	count_verdict(HOOK_XDP, VERDICT_DROP_REWRITE, frame->length);
	return XDP_DROP;
}

/* XDP_PASS: nothing was written. */
static __always_inline int xdp_wrap(struct xdp_md *ctx)
{
	struct xdp_carriage *carriage = xdp_carriage_get();
	const struct settings *settings = settings_get();
	const struct tunnel_node *node;
	const struct xdp_way *way;
	struct xdp_frame frame;
	struct headers headers;
	struct packet *packet;
	struct flow *flow;
	__u32 now, size;

	if (!carriage || !settings || !xdp_begin(ctx, &frame))
		return XDP_PASS;
	packet = &carriage->wrap.route.packet;
	if (!xdp_parse(&frame, frame.eth->h_proto, packet, &headers) || hops_left(&headers) <= 1 ||
	    !xdp_is_whole(packet, &headers) || !xdp_is_summed(packet, &headers))
		return XDP_PASS;
	carriage->step.epoch = frame.device->epoch;
	carriage->wrap.class = headers_class(&headers);
	node = xdp_wrap_flow(carriage, settings);
	if (!node)
		return XDP_PASS;
	now = flow_now();
	size = wrap_size(&carriage->wrap);
	way = xdp_way_find(ctx, packet, &carriage->step, now);
	flow = flow_entry(carriage->step.at);
	if (!way || !flow || !xdp_fits(packet, size, way))
		return XDP_PASS;
	flow_barrier();
	if (flow_word(flow) != carriage->step.word || bpf_xdp_adjust_head(ctx, -(int)size))
		return XDP_PASS;
	flow_touch(flow, now);
	return xdp_wrap_send(&frame, carriage, node, way, VERDICT_TRANSLATE_ESTABLISHED);
}

/* An answer: tunnel_answer and route_packet for one of a connection that goes on. */

/* The flow that the packet answers. NULL: that is TC's to find out. */
static __always_inline struct flow *xdp_answered(struct xdp_carriage *carriage, const struct settings *settings,
						 __u16 node)
{
	const struct packet *packet = &carriage->wrap.route.packet;
	struct xdp_step *step = &carriage->step;
	const struct backend *backend;
	struct flow_ends ends;
	struct flow *flow;

	flow_ends_reply(&ends, packet);
	flow = fast_find_number(&carriage->query, &ends, settings, QUERY_FORWARD, &step->at);
	if (!flow || packet->tcp_flags & TCP_SYN)
		return NULL;
	step->at |= XDP_WAY_BACK;
	step->word = carriage->query.word;
	step->on.add = seen_from_server(packet, flow->seen);
	step->on.backend = flow->backend;
	step->on.to.source = packet->source;
	step->on.to.source_port = packet->source_port;
	step->on.to.destination = packet->destination;
	step->on.to.destination_port = packet->destination_port;
	backend = onward_carried(flow, step->on.add);
	return backend && backend->node == node ? flow : NULL;
}

/* frame: without what was in front, protocol that of what is behind its Ethernet header, which is yet to be written; length: of the frame as it
 * came. XDP_PASS: nothing was written. */
static __always_inline int xdp_answer(const struct xdp_frame *frame, __be16 protocol, __u16 node, __u32 length)
{
	struct xdp_carriage *carriage = xdp_carriage_get();
	const struct settings *settings = settings_get();
	const struct xdp_way *way;
	struct headers headers;
	struct packet *packet;
	struct flow *flow;
	__u32 now;

	if (!carriage || !settings)
		return XDP_PASS;
	packet = &carriage->wrap.route.packet;
	if (!xdp_parse(frame, protocol, packet, &headers) || hops_left(&headers) <= 1 ||
	    !xdp_is_whole(packet, &headers) || !xdp_is_summed(packet, &headers))
		return XDP_PASS;
	carriage->step.epoch = frame->device->epoch;
	flow = xdp_answered(carriage, settings, node);
	if (!flow)
		return XDP_PASS;
	now = flow_now();
	way = xdp_way_find(frame->ctx, packet, &carriage->step, now);
	if (!way || !xdp_fits(packet, 0, way))
		return XDP_PASS;
	flow_barrier();
	if (flow_word(flow) != carriage->step.word)
		return XDP_PASS;
	flow_touch(flow, now);
	hops_take(&headers);
	frame->eth->h_proto = protocol;
	count_from_backend(carriage->step.on.backend, frame->length);
	count_verdict(HOOK_XDP, VERDICT_TRANSLATE_REPLY, length);
	return xdp_send(frame, frame->eth, way);
}

/* The same of the frame as it came, whose outer headers are those of a node. XDP_PASS: it is as it was. */
static __always_inline int xdp_unwrap(struct xdp_md *ctx, const struct tunnel_packet *in, __be16 protocol, __u32 length)
{
	struct xdp_frame frame;
	__u16 node = in->node;
	int size = in->length & 0xff;
	int action;

	if (!opened_is_bare(ctx) || bpf_xdp_adjust_head(ctx, size))
		return XDP_PASS;
	action = xdp_begin(ctx, &frame) ? xdp_answer(&frame, protocol, node, length) : XDP_PASS;
	/* what was taken away is there still, in front */
	return action == XDP_PASS && bpf_xdp_adjust_head(ctx, -size) ? XDP_ABORTED : action;
}

/* Not 0: what the frame has behind its Ethernet header, which is another node's: opened_read. A function of its own for the sake of the stack. */
__noinline int xdp_tunnel_read(struct xdp_md *ctx)
{
	struct packet packet = { .hook = HOOK_FROM_NET };
	struct xdp_frame frame;
	struct headers headers;
	__be16 protocol;

	if (!xdp_begin(ctx, &frame))
		return 0;
	protocol = frame.eth->h_proto;
	return xdp_parse(&frame, protocol, &packet, &headers) && opened_read(ctx, &packet) ? protocol : 0;
}

/* A packet to this node's tunnel. All but the answers that xdp_unwrap sends is TC's, without what is in front where the device has that done. */
static __always_inline int xdp_tunnel(struct xdp_md *ctx)
{
	const struct tunnel_packet *in = tunnel_packet_get();
	const struct xdp_device *device;
	__u32 length = xdp_span(ctx).length;
	__be16 protocol = in ? xdp_tunnel_read(ctx) : 0;
	int action = XDP_PASS;

	if (!in || !protocol)
		return XDP_PASS;
	if (in->kind == TUNNEL_REPLY)
		action = xdp_unwrap(ctx, in, protocol, length);
	if (action != XDP_PASS || !xdp_opens)
		return action;
	device = xdp_device_of(ctx->ingress_ifindex);
	if (device && device->takes & XDP_OPENS)
		opened_make(ctx);
	return XDP_PASS;
}
