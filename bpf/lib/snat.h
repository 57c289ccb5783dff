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

/* Candidates among which a held port (flow_holds_port) is left alone. When none of them is free, hardly any other is: then the port
 * that is held for longest serves, and a client whose clock is behind that of the one before waits for a second SYN. */
#define SNAT_PORTS_STRICT 256

/* How long a reset is to be the last that is seen of a connection, in seconds: one outside the window ends nothing, and who is amid
 * talking goes on. One more than that takes, as an entry's time may be a second behind its last packet. */
#define SNAT_RESET_SECONDS 2

/* Worst first. */
enum snat_port {
	SNAT_PORT_TAKEN = 0,
	SNAT_PORT_HELD,  /* by a connection that ended, which the server may remember */
	SNAT_PORT_RESET, /* by one that was reset: the server has none, if that was in its window */
	SNAT_PORT_ENDED, /* by one that the server closed last, and has forgotten */
	SNAT_PORT_USED,  /* once; nobody remembers */
	SNAT_PORT_FREE,
	SNAT_PORT_OWN, /* an earlier life of the connection left its second entry there */
};

/* How good a port is: enum snat_port above so many bits of the seconds since its last packet. */
#define SNAT_PORT_SHIFT 24

static __always_inline bool snat_has_port(const struct flow *flow, const struct insertion *in, __be16 port)
{
	return flow_wire_port(flow) == port && (flow_word(flow) & FLOW_PHASE_MASK) >= FLOW_CLAIMED &&
	       flow->protocol == in->flow.protocol && flow_same_source(flow, &in->flow) &&
	       flow_leads_to(flow, &in->to.destination, in->to.destination_port);
}

/* Of a connection that has not expired. */
static __always_inline enum snat_port snat_port_ended(const struct flow *flow, __u32 now)
{
	__u32 seen = flow->seen;

	if (flow_holds_port(flow, seen))
		return SNAT_PORT_HELD;
	if (seen_fins(seen) && seen & SEEN_CLIENT_WAITS)
		return SNAT_PORT_ENDED;
	return seen & SEEN_RESET && flow_age(flow, now) >= SNAT_RESET_SECONDS * jiffies_per_second ? SNAT_PORT_RESET
												   : SNAT_PORT_TAKEN;
}

static __always_inline enum snat_port snat_port_left(const struct flow *flow, const struct insertion *in, __u32 now)
{
	if (flow_expired(flow, now))
		return SNAT_PORT_USED;
	if (flow->other_port == in->flow.port && flow_same_ends(flow, &in->flow))
		return SNAT_PORT_OWN;
	return snat_port_ended(flow, now);
}

/* How good the port of an entry is, the larger the better; below 0: it has another. A function of its own so that the verifier goes
 * through it once. */
__noinline int snat_entry_worth(const struct insertion *in, __u32 port, __u32 at)
{
	const struct flow *flow = flow_entry(at);
	__u32 now = flow_now();
	__u32 seconds;

	if (!flow || !in || !snat_has_port(flow, in, port))
		return -1;
	seconds = flow_age(flow, now) / jiffies_per_second;
	if (seconds >= 1 << SNAT_PORT_SHIFT)
		seconds = (1 << SNAT_PORT_SHIFT) - 1;
	return snat_port_left(flow, in, now) << SNAT_PORT_SHIFT | seconds;
}

/* How good a port is, as far as can be seen before it is claimed: the larger the better. A function of its own so that the verifier
 * goes through it once. */
__noinline int snat_port_worth(const struct insertion *in, __u32 port)
{
	const struct settings *settings = settings_get();
	struct flow_cursor cursor = {};

	if (!in || !settings)
		return SNAT_PORT_TAKEN << SNAT_PORT_SHIFT;
	flow_search_begin(&cursor,
			  flow_hash(snat_address(settings, &in->flow), port, in->flow.protocol, settings->seed),
			  FLOW_BLOCKS_OWN);
	for (int i = 0; i < FLOW_CANDIDATES; i++) {
		int at = flow_next(&cursor);
		int worth;

		if (at < 0)
			break;
		worth = snat_entry_worth(in, port, at);
		if (worth >= 0)
			return worth;
	}
	return SNAT_PORT_FREE << SNAT_PORT_SHIFT;
}

/* Where a connection begins to look for a port: the same place in each of its lives, so that it keeps its port where it was
 * forgotten. */
static __always_inline __u64 snat_hash(const struct flow *flow, __u64 seed)
{
	return flow_own_pair_hash(flow, seed);
}

static __always_inline __be16 snat_candidate(const struct settings *settings, __u64 hash, __u32 candidate)
{
	__u32 stride = snat_strides[hash & (SNAT_STRIDES - 1)];
	__u32 count = settings->snat_count;

	return bpf_htons(settings->snat_first + ((__u32)(hash >> 32) % count + candidate * stride) % count);
}

/* Puts a port into in that is better than what is there. True: no other can be. */
static __always_inline bool snat_prefer(struct insertion *in, __be16 port, __u32 candidate, int least)
{
	__u32 worth = snat_port_worth(in, port);

	if (worth <= in->worth)
		return false;
	in->worth = worth;
	in->candidate = candidate;
	in->flow.other_port = port;
	in->over = worth >> SNAT_PORT_SHIFT >= SNAT_PORT_HELD && worth >> SNAT_PORT_SHIFT < SNAT_PORT_USED;
	return worth >> SNAT_PORT_SHIFT >= (least == SNAT_PORT_OWN ? SNAT_PORT_OWN : SNAT_PORT_FREE);
}

/* The number of a candidate from this one on whose port, put into in, is at least as good as this (enum snat_port): the first that is
 * free, else the one that had its last packet longest ago. -1: all were tried, -2: so many that it is another run's turn. A function
 * of its own so that the verifier goes through it once. */
__noinline int snat_find_port(struct insertion *in, __u32 candidate, int least)
{
	const struct settings *settings = settings_get();
	__u32 end = candidate + (least == SNAT_PORT_OWN ? SNAT_PORTS_OWN : SNAT_PORTS_TRIED);
	int none = -2;
	__u64 hash;

	if (!in || !settings || !settings->snat_count)
		return -1;
	hash = snat_hash(&in->flow, settings->seed);
	in->over = false;
	in->worth = 0; /* in is memory that the verifier does not follow: it goes through each round once */
	for (int i = 0; i < SNAT_PORTS_TRIED && candidate < end; i++, candidate++) {
		if (candidate >= settings->snat_count) {
			none = -1;
			break;
		}
		if (snat_prefer(in, snat_candidate(settings, hash, candidate), candidate, least))
			break;
	}
	return (int)(in->worth >> SNAT_PORT_SHIFT) < least ? none : (int)in->candidate;
}

/* In snat_next: all were looked at, and none was free; once more, and held ones serve. */
#define SNAT_HELD_TOO (1u << 30)

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
	__u32 again;
	int candidate;

	if (!next && create_snat_port_again(work, &work->in))
		return INSERT_DONE;
	again = next & SNAT_HELD_TOO;
	next &= ~SNAT_HELD_TOO;
	next = next ? next - 1 : 0;
	candidate =
		snat_find_port(&work->in, next, again || next >= SNAT_PORTS_STRICT ? SNAT_PORT_HELD : SNAT_PORT_RESET);
	if (candidate >= 0)
		handed(skb)->slow.snat_next = again | (candidate + 1);
	else if (candidate == -2)
		handed(skb)->slow.snat_next = again | (next + SNAT_PORTS_TRIED);
	else if (again)
		return INSERT_EXHAUSTED;
	else
		handed(skb)->slow.snat_next = SNAT_HELD_TOO;
	return candidate >= 0 ? INSERT_DONE : INSERT_PORT;
}

/* Not 0: a masquerade of the host's has the port towards this server. A function of its own for the sake of the stack. */
__noinline int create_snat_taken(struct __sk_buff *skb, const struct insertion *in)
{
	const struct settings *settings = settings_get();
	struct ends ends = {};

	if (!settings || !in || !settings->yield)
		return false;
	ends.source = in->to.destination;
	ends.source_port = in->to.destination_port;
	ends.destination = *snat_address(settings, &in->flow);
	ends.destination_port = in->flow.other_port;
	ends.protocol = in->flow.protocol;
	return conntrack_replies(skb, &ends);
}

/* A client off the node has come by a ClusterIP to a server that knows its address: from now on any direct connection may clash. */
static __always_inline void create_routed(const struct settings *settings, const struct record *record)
{
	__u32 zero = 0;
	struct settings *own;

	if (record->kind != KIND_CLUSTER_IP || settings->routed)
		return;
	own = bpf_map_lookup_elem(&config, &zero);
	if (own)
		*(volatile __u8 *)&own->routed = 1;
}

/* A client off the node: a backend on another one sees an address of this node, one that is here the client's own. */
static __always_inline enum verdict create_external(struct __sk_buff *skb, struct work *work,
						    const struct record *record, const struct choice *choice)
{
	struct flow *flow = &work->in.flow;
	int source = backend_is_local(choice->backend) ? 0 : snat_source(skb, &work->packet, &choice->address);

	if (source < 0)
		return -source;
	if (!source)
		create_routed(work->settings, record);
	if (source > 0 && flow->protocol == IPPROTO_SCTP)
		return VERDICT_DROP_SCTP_PORT;
	flow->source = source;
	flow->flags = source > 0 ? FLOW_SNAT : 0;
	return VERDICT_CONTINUE;
}

/* Packets of servers on other nodes to an address and a port that SNAT uses. */

static __always_inline bool snat_find(const struct settings *settings, const struct packet *packet, struct reply *reply)
{
	reply_find(reply, settings, packet, QUERY_SNAT_REPLY);
	return reply->at;
}

/* The packet begins a connection, and both sides have closed the flow's: a masquerade of the host's has the port towards this server by
 * now. A reset alone says nothing: it may have been outside the window. */
static __always_inline bool snat_is_over(const struct flow *flow, const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK) && seen_fins(flow->seen);
}

/* Frees the entry: the other connection's next packets are not the flow's either. */
static __always_inline void snat_give(const struct reply *reply)
{
	flow_free(reply->at, reply->entry, reply->flow.word);
}

static __always_inline enum verdict snat_translate(struct __sk_buff *skb, const struct settings *settings,
						   const struct packet *packet, struct reply *reply)
{
	__u32 add = seen_from_server(packet, reply->flow.seen);

	flow_note(reply->at, flow_now(), add);
	flow_note_twin(&reply->flow, add, false);
	trace_flow(&reply->flow);
	return reply_rewrite(skb, packet, &reply->flow);
}

/* The slow path has sent what is here: reply and packet are told of. What has no flow is of the host's own connections or of a
 * masquerade's, as far as anybody can say: it passes. Of a flow that was lost, the host answers it with a reset. */
static __always_inline enum verdict snat_reply(struct __sk_buff *skb, struct packet *packet, struct reply *reply)
{
	const struct settings *settings = settings_get();

	if (!settings)
		return VERDICT_PASS_DISABLED;
	if (parse_full(skb, packet) != VERDICT_CONTINUE ||
	    (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet)))
		return VERDICT_PASS_UNKNOWN_REPLY;
	if (!snat_find(settings, packet, reply))
		return VERDICT_PASS_UNKNOWN_REPLY;
	if (!snat_is_over(&reply->flow, packet))
		return snat_translate(skb, settings, packet, reply);
	snat_give(reply);
	return VERDICT_PASS_UNKNOWN_REPLY;
}
