/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SNAT: clients off the node whose server is on another node see it through an address and a port of this one:
 * the address that the node's own packets to that server would have. */
#pragma once

#include "conntrack.h"
#include "flow_insert.h"
#include "parse.h"
#include "reply.h"
#include "route.h"
#include "settings.h"
#include "work.h"

/* Index in sources, 0 none. */
static __always_inline __u32 snat_index(const struct settings *settings, const struct address *address)
{
	if (address_zero(address))
		return 0; /* what free elements hold */
	for (__u32 i = 1; i < SOURCES_MAX; i++) {
		if (address_equal(&settings->sources[i], address))
			return i;
	}
	return 0;
}

/* Not 0: SNAT may use this address. A function of its own so that the verifier goes through it once. */
__noinline int snat_source_index(const struct address *address)
{
	const struct settings *settings = settings_get();

	return settings && address ? snat_index(settings, address) : 0;
}

static __always_inline int snat_found(__u32 index)
{
	return index ? (int)index : -VERDICT_DROP_NO_SOURCE;
}

/* By the route, or as the device is told where that names no address that SNAT may use. 0: a device that is none of the
 * network's leads to pods of this node. Below 0: a verdict, negative. */
static __always_inline int snat_by_route(const struct settings *settings, const struct bpf_fib_lookup *fib, __u8 family)
{
	__u32 ifindex = fib->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct address address = {};
	__u32 index = 0;

	if (!device)
		return 0;
	if (fib_source) {
		if (family == 4)
			address_from4(&address, fib->ipv4_src);
		else
			address_from6(&address, (const struct in6_addr *)fib->ipv6_src);
		index = snat_index(settings, &address);
	}
	if (!index)
		index = family == 4 ? device->source4 : device->source6;
	return snat_found(index);
}

/* Index in sources; 0: the server is on this node after all; below 0: a verdict, negative. A function of its own so that
 * the verifier goes through it once. */
__noinline int snat_source(struct __sk_buff *skb, const struct packet *packet, const struct address *server)
{
	const struct settings *settings = settings_get();
	struct bpf_fib_lookup fib = {};
	long answer;

	if (!settings || !packet || !server)
		return -VERDICT_DROP_NO_SOURCE;
	if (!route_lookup)
		return snat_found(snat_index(settings, packet->family == 4 ? &settings->node4 : &settings->node6));
	fib_describe(&fib, skb, packet, &packet->source, server, 0);
	answer = bpf_fib_lookup(skb, &fib, sizeof(fib), fib_source ? BPF_FIB_LOOKUP_SRC : 0);
	if (fib_found(answer))
		return snat_by_route(settings, &fib, packet->family);
	/* The kernel does not tell its own addresses from those that it has no route to: the stack knows, and answers. */
	if (answer == BPF_FIB_LKUP_RET_NOT_FWDED || snat_index(settings, server))
		return 0;
	return -fib_verdict(answer);
}

/* The port that the server sees. */

/* Ports of the range that one run of the slow path looks at; it begins anew TRIES_MAX times. A range of so many ports is used
 * to its last one, of a larger one a hundredth may be left when the first connection finds none. Without a limit, a
 * flood towards a server whose ports are all taken would cost far more than it does. */
#define SNAT_PORTS_TRIED 32

#define SNAT_STRIDES 8

/* Larger than any range and prime: each steps through all of it. */
static const __u32 snat_strides[SNAT_STRIDES] = { 65537, 72019, 79031, 86501, 95003, 104003, 113011, 124001 };

/* Candidates among which a connection that was forgotten in part looks for the port that its server knows: few, as whoever sends
 * a packet of no connection has them looked at. */
#define SNAT_PORTS_OWN 8

/* Worst first. */
enum snat_port {
	SNAT_PORT_TAKEN = 0,
	SNAT_PORT_FREE,
	SNAT_PORT_OWN, /* an earlier life of the connection left its second entry there */
};

/* A connection has the port towards the server, as far as can be seen before it is claimed. */
static __always_inline bool snat_has_port(const struct flow *flow, const struct insertion *in, __be16 port)
{
	return flow_wire_port(flow) == port && (flow_word(flow) & FLOW_PHASE_MASK) >= FLOW_CLAIMED &&
	       flow->protocol == in->flow.protocol && flow_same_source(flow, &in->flow) &&
	       flow_leads_to(flow, &in->to.destination, in->to.destination_port) && !flow_expired(flow, flow_now());
}

/* enum snat_port. A function of its own so that the verifier goes through it once. */
__noinline int snat_port_state(const struct insertion *in, __u32 port)
{
	const struct settings *settings = settings_get();
	struct flow_place place;

	if (!in || !settings ||
	    !flow_find_place(&place, snat_address(settings, &in->flow), port, in->flow.protocol, settings->seed))
		return SNAT_PORT_TAKEN;
	for (__u32 way = 0; way < FLOW_WAYS; way++) {
		const struct flow *flow = flow_at(&place, way);

		if (snat_has_port(flow, in, port))
			return flow->other_port == in->flow.port && flow_same_ends(flow, &in->flow) ? SNAT_PORT_OWN
												    : SNAT_PORT_TAKEN;
	}
	return SNAT_PORT_FREE;
}

/* Where a connection begins to look for a port: the same place in each of its lives, so that it keeps its port where it was
 * forgotten. */
static __always_inline __u64 snat_hash(const struct flow *flow, __u64 seed)
{
	return flow_hash(&flow->client, flow->port, flow->protocol,
			 flow_hash(&flow->frontend, flow->frontend_port, flow->protocol, seed));
}

/* The number of the first candidate from this one on whose port, put into in, is as good as wanted (enum snat_port); -1: all
 * were tried, -2: so many that it is another run's turn. A function of its own so that the verifier goes through it once. */
__noinline int snat_find_port(struct insertion *in, __u32 candidate, int wanted)
{
	const struct settings *settings = settings_get();
	__u32 count = settings ? settings->snat_count : 0;
	__u32 stride;
	__u64 hash;

	if (!in || !count)
		return -1;
	hash = snat_hash(&in->flow, settings->seed);
	stride = snat_strides[hash & (SNAT_STRIDES - 1)];
	for (int i = 0; i < (wanted == SNAT_PORT_OWN ? SNAT_PORTS_OWN : SNAT_PORTS_TRIED); i++) {
		__u32 number = candidate + i;
		__be16 port;

		if (number >= count)
			return -1;
		port = bpf_htons(settings->snat_first + ((__u32)(hash >> 32) % count + number * stride) % count);
		if (snat_port_state(in, port) >= wanted) {
			in->flow.other_port = port;
			return number;
		}
	}
	return -2;
}

/* The port that the server knows, of a connection that was forgotten in part. The range may have changed since. */
static __always_inline bool create_snat_port_again(const struct work *work, struct insertion *in)
{
	if (work->found.port && in_snat_range(work->settings, work->found.port)) {
		in->flow.other_port = work->found.port;
		return true;
	}
	return !opens_connection(&work->packet) && snat_find_port(in, 0, SNAT_PORT_OWN) >= 0;
}

/* INSERT_DONE: work->in has a port to try. INSERT_PORT: none in this run, the next one goes on from where it ended. */
static __always_inline enum insert create_snat_port(struct __sk_buff *skb, struct work *work)
{
	__u32 next = handed(skb)->slow.snat_next;
	int candidate;

	if (!next && create_snat_port_again(work, &work->in))
		return INSERT_DONE;
	next = next ? next - 1 : 0;
	candidate = snat_find_port(&work->in, next, SNAT_PORT_FREE);
	if (candidate == -1)
		return INSERT_EXHAUSTED;
	handed(skb)->slow.snat_next = candidate >= 0 ? candidate + 1 : next + SNAT_PORTS_TRIED;
	return candidate >= 0 ? INSERT_DONE : INSERT_PORT;
}

/* Not 0: kube-proxy's masquerade has the port towards this server. A function of its own for the sake of the stack. */
__noinline int create_snat_taken(struct __sk_buff *skb, const struct insertion *in)
{
	const struct settings *settings = settings_get();
	struct ends ends = {};

	if (!settings || !in || !(settings->yield & YIELD_NEW))
		return false;
	ends.source = in->to.destination;
	ends.source_port = in->to.destination_port;
	ends.destination = *snat_address(settings, &in->flow);
	ends.destination_port = in->flow.other_port;
	ends.protocol = in->flow.protocol;
	return conntrack_replies(skb, &ends);
}

/* A client off the node: a backend on another one sees an address of this node, one that is here the client's own. */
static __always_inline enum verdict create_external(struct __sk_buff *skb, struct work *work,
						    const struct choice *choice)
{
	struct flow *flow = &work->in.flow;
	int source;

	if (backend_is_local(choice->backend))
		return VERDICT_CONTINUE;
	source = snat_source(skb, &work->packet, &choice->address);
	if (source < 0)
		return -source;
	if (source > 0 && flow->protocol == IPPROTO_SCTP)
		return VERDICT_DROP_SCTP_PORT;
	flow->source = source;
	flow->flags = source > 0 ? FLOW_SNAT : 0;
	return VERDICT_CONTINUE;
}

/* Packets of servers on other nodes to an address and a port that SNAT uses. */

static __always_inline bool snat_find(const struct settings *settings, const struct packet *packet, struct reply *reply)
{
	struct flow_place place;

	if (!flow_find_place(&place, &packet->destination, packet->destination_port, packet->protocol, settings->seed))
		return false;
	reply_find(reply, &place, packet, settings);
	return reply->at;
}

static __always_inline enum verdict snat_translate(struct __sk_buff *skb, const struct settings *settings,
						   const struct packet *packet, struct reply *reply)
{
	__u32 add = seen_from_server(packet);

	flow_note(reply->at, flow_now(), add);
	flow_note_twin(&reply->flow, add, false);
	trace_flow(&reply->flow);
	return reply_rewrite(skb, packet, &reply->flow);
}

/* Nobody can say whether kube-proxy's masquerade has the port, and kube-proxy is at work. SCTP is never by SNAT. */
static __always_inline bool snat_unsure(const struct settings *settings, const struct packet *packet)
{
	if (packet->protocol == IPPROTO_SCTP)
		return true;
	return !conntrack_there() && (settings->yield & YIELD_NEW || settings->draining);
}

/* No flow: of a connection that the kernel made, if it knows it, be it kube-proxy's masquerade or a socket. The host would answer what
 * it knows no connection of with a reset, and so end one that the client's next packet mends: such a packet is dropped. */
static __always_inline enum verdict snat_unknown(struct __sk_buff *skb, const struct settings *settings,
						 const struct packet *packet)
{
	struct ends ends = {};

	ends_of(&ends, packet);
	if (!snat_unsure(settings, packet) && !conntrack_replies(skb, &ends))
		return VERDICT_DROP_UNKNOWN_REPLY;
	fragment_remember(packet);
	return VERDICT_PASS_OTHER_NAT;
}

/* The slow path has sent what is here: reply and packet are told of. */
static __always_inline enum verdict snat_reply(struct __sk_buff *skb, struct packet *packet, struct reply *reply)
{
	const struct settings *settings = settings_get();

	if (!settings)
		return VERDICT_PASS_DISABLED;
	if (parse_full(skb, packet) != VERDICT_CONTINUE ||
	    (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet)))
		return VERDICT_DROP_UNKNOWN_REPLY;
	if (snat_find(settings, packet, reply))
		return snat_translate(skb, settings, packet, reply);
	return snat_unknown(skb, settings, packet);
}
