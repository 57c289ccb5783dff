/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* New connections at XDP: a client's first packet to a backend on another node, through SNAT or the tunnel. The backend, the way, the port and the
 * entries are those of create.h; what that leaves to TC, and whatever has no room at the first try, passes, and TC begins anew. A program of its own,
 * for the sake of the stack, which parses again. */
#pragma once

#include "create.h"
#include "xdp_tunnel.h"

/* What the program knows of a packet, beside struct work. */
struct xdp_creation {
	struct xdp_carriage carriage; /* of SNAT, its step alone; of the tunnel, with the packet */
	struct xdp_way way;
	struct handed handed;
	__u8 affine; /* not 0: the client is to keep the backend */
	__u8 turns;  /* not 0: the backend was chosen by turn (handed.slow.tried) */
};
_Static_assert(sizeof(struct xdp_creation) <= sizeof(struct xdp_work), "there is room");

static __always_inline struct xdp_creation *xdp_creation_get(void)
{
	__u32 zero = 0;
	struct xdp_creation *creation = bpf_map_lookup_elem(&xdp_works, &zero);

	if (creation)
		__builtin_memset(creation, 0, sizeof(*creation));
	return creation;
}

static __always_inline struct entry_point point_xdp(struct xdp_md *ctx, struct xdp_creation *creation)
{
	return (struct entry_point){ ctx, &creation->handed, true };
}

/* A new connection to a neighbour went by TC a short while ago; else this one does. The oldest of those in the same place loses it. */
static __always_inline bool xdp_neighbour_known(__u32 key)
{
	__u32 first = (key >> 1) * XDP_NEIGHBOUR_WAYS & (XDP_NEIGHBOURS - 1), now = flow_now(), most = 0;
	struct xdp_neighbour *oldest = NULL;

	for (__u32 i = 0; i < XDP_NEIGHBOUR_WAYS; i++) {
		__u32 slot = first + i;
		struct xdp_neighbour *neighbour = bpf_map_lookup_elem(&xdp_neighbours, &slot);
		__u32 age = neighbour && neighbour->key ? now - neighbour->when : -1;

		if (!neighbour)
			return false;
		if (neighbour->key == key && age < XDP_WAY_CONFIRMED * jiffies_per_second)
			return true;
		if (neighbour->key == key)
			age = -1;
		if (!oldest || age > most) {
			oldest = neighbour;
			most = age;
		}
	}
	if (oldest) {
		oldest->key = key;
		oldest->when = now;
	}
	return false;
}

/* The kernel asks whether a silent neighbour is still there only if it is sent something by the stack: as often one new connection to each goes by
 * TC, as a packet of each connection does that lasts (xdp_way_confirms). A function of its own so that the verifier goes through it once. */
__noinline int xdp_neighbour_confirms(const struct xdp_way *way)
{
	const __u16 *mac;
	__u64 x;

	if (!way)
		return true;
	mac = (const __u16 *)way->macs;
	x = ((__u64)mac[0] << 32 | (__u32)mac[1] << 16 | mac[2]) * HASH_A;
	return !xdp_neighbour_known((x ^ (__u64)way->ifindex * HASH_B) >> 32 | 1);
}

/* Where the first packet of a flow leaves. False: that is TC's to find. */
static __always_inline bool xdp_create_route(struct xdp_md *ctx, struct xdp_creation *creation,
					     const struct packet *packet, const struct insertion *in,
					     const struct settings *settings)
{
	struct xdp_step *step = &creation->carriage.step;

	step->on.backend = in->flow.backend;
	step->on.to.source = *snat_address(settings, &in->flow);
	step->on.to.source_port = in->flow.twin_port;
	step->on.to.destination = in->to.destination;
	step->on.to.destination_port = in->to.destination_port;
	return xdp_way_route(ctx, packet, step, &creation->way);
}

/* Not 0: the flow goes a way that XDP takes, on which the packet fits; what goes through the tunnel has room in front of it then. A function of
 * its own for the sake of the stack. */
__noinline int xdp_create_prepare(struct xdp_md *ctx, struct xdp_creation *creation, const struct packet *packet,
				  const struct insertion *in)
{
	const struct settings *settings = settings_get();
	__u32 size = 0;
	__u16 node;

	if (!settings || !creation || !packet || !in)
		return false;
	if (in->flow.flags & FLOW_CARRY) {
		creation->carriage.wrap.route.packet = *packet;
		node = backend_node(in->flow.backend);
		if (!tunnel_there || in->flow.flags & ~(FLOW_CARRY | FLOW_DSR) ||
		    !xdp_wrap_describe(&creation->carriage, &in->flow, node, tunnel_node_get(node)))
			return false;
		size = wrap_size(&creation->carriage.wrap);
	} else if (in->flow.flags != FLOW_SNAT) {
		return false;
	}
	return xdp_create_route(ctx, creation, packet, in, settings) && xdp_fits(packet, size, &creation->way) &&
	       !xdp_neighbour_confirms(&creation->way) && !(size && bpf_xdp_adjust_head(ctx, -(int)size));
}

/* The backend is left out of new connections, or this one would try whether it answers. */
static __always_inline bool xdp_create_tries(const struct flow *flow)
{
	const struct backend_health *health = health_get(flow->backend);

	return health && health->generation == flow->generation && *(volatile const __u64 *)&health->until;
}

/* Describes the flow that the packet opens. False: that is TC's to make. */
static __always_inline bool xdp_create_decide(struct xdp_md *ctx, struct xdp_creation *creation, struct work *work)
{
	struct entry_point point = point_xdp(ctx, creation);
	const struct record *record;
	struct step step;

	if (settings_slow(work->settings) || !xdp_opens_flow(&work->packet, work->settings) ||
	    forward_search(&work->query, &work->packet, work->settings) >= 0)
		return false;
	found_nothing(&work->found);
	record = frontend_of(&work->packet);
	if (!record || record->flags & RECORD_ADDRESS)
		return false;
	step = create_by_record(point, work, record, SIDE_EXTERNAL);
	creation->handed.slow.verdict = step.verdict;
	if (step.verdict != VERDICT_TRANSLATE_AFFINITY) {
		creation->affine = record->affinity != 0;
		creation->turns = pick_balance(record) & PICK_TURN;
	}
	return step.next == NEXT_CREATE && !xdp_create_tries(&work->in.flow) &&
	       create_source(point, work) == INSERT_DONE;
}

/* The client of a flow that there is now keeps its backend. A function of its own for the sake of the stack. */
__noinline int xdp_create_remember(const struct flow *flow)
{
	struct choice choice = {};

	if (!flow)
		return 0;
	choice.backend = flow->backend;
	choice.generation = flow->generation;
	return affinity_remember(&choice, &flow->client, flow->service);
}

/* The backend was chosen by a turn that is still the next one, and is taken; or by none. */
static __always_inline bool xdp_create_turn(const struct xdp_creation *creation, __u32 service)
{
	__u32 turn = creation->handed.slow.tried;

	return !creation->turns || turn_move(service, turn, turn + 1);
}

/* Takes back the room in front of a packet whose flow is not made, and where a turn was taken, that. A function of its own for the sake of the
 * stack. */
__noinline int xdp_create_undo(struct xdp_md *ctx, const struct xdp_creation *creation, __u32 service, __u32 turned)
{
	if (!creation)
		return XDP_ABORTED;
	if (turned)
		turn_move(service, creation->handed.slow.tried + 1, creation->handed.slow.tried);
	return creation->carriage.step.node && bpf_xdp_adjust_head(ctx, wrap_size(&creation->carriage.wrap))
		       ? XDP_ABORTED
		       : XDP_PASS;
}

/* Not 0: packet tells, and is one that XDP takes. A function of its own for the sake of the stack. */
__noinline int xdp_create_read(struct xdp_md *ctx, struct xdp_creation *creation, struct packet *packet)
{
	struct xdp_frame frame;
	struct headers headers;

	if (!creation || !packet || !xdp_begin(ctx, &frame) ||
	    !xdp_parse(&frame, frame.eth->h_proto, packet, &headers) || hops_left(&headers) <= 1 ||
	    !xdp_is_whole(packet, &headers) || !xdp_is_summed(packet, &headers))
		return false;
	packet->hook = HOOK_FROM_NET;
	creation->carriage.wrap.class = headers_class(&headers);
	return true;
}

/* Sends the packet that opened a flow through the tunnel. A function of its own for the sake of the stack, as the next one. */
__noinline int xdp_create_carry(struct xdp_md *ctx, const struct xdp_creation *creation)
{
	struct xdp_frame frame;

	if (!creation || !xdp_begin(ctx, &frame))
		return XDP_ABORTED;
	frame.length -= wrap_size(&creation->carriage.wrap);
	return xdp_wrap_send(&frame, &creation->carriage, tunnel_node_get(creation->carriage.step.node), &creation->way,
			     creation->handed.slow.verdict);
}

/* The same by SNAT. */
__noinline int xdp_create_translate(struct xdp_md *ctx, const struct xdp_creation *creation)
{
	struct packet packet = {};
	struct xdp_frame frame;
	struct headers headers;

	if (!creation || !xdp_begin(ctx, &frame) || !xdp_parse(&frame, frame.eth->h_proto, &packet, &headers))
		return XDP_ABORTED;
	xdp_rewrite(&packet, &headers, &creation->carriage.step.on.to);
	count_to_backend(creation->carriage.step.on.backend, frame.length);
	count_verdict(HOOK_XDP, creation->handed.slow.verdict, frame.length);
	return xdp_send(&frame, frame.eth, &creation->way);
}

/* XDP_PASS: the packet is as it was, and there is no flow. */
static __always_inline int xdp_open_flow(struct xdp_md *ctx)
{
	struct xdp_creation *creation = xdp_creation_get();
	struct work work = {};

	work.settings = settings_get();
	if (!creation || !work.settings || !xdp_create_read(ctx, creation, &work.packet) ||
	    !xdp_create_decide(ctx, creation, &work) || !xdp_create_prepare(ctx, creation, &work.packet, &work.in))
		return XDP_PASS;
	if (!xdp_create_turn(creation, work.service))
		return xdp_create_undo(ctx, creation, 0, false);
	if (create_new(point_xdp(ctx, creation), &work, creation->handed.slow.verdict).next != NEXT_TRANSLATE)
		return xdp_create_undo(ctx, creation, work.service, creation->turns);
	if (creation->affine)
		xdp_create_remember(&work.in.flow);
	return work.in.flow.flags & FLOW_CARRY ? xdp_create_carry(ctx, creation) : xdp_create_translate(ctx, creation);
}
