/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SNAT: clients off the node whose server is on another node see it through an address and a port of this one:
 * the address that the node's own packets to that server would have. */
#pragma once

#include "conntrack.h"
#include "flow_insert.h"
#include "packet.h"
#include "route.h"
#include "settings.h"
#include "translate.h"
#include "tunnel.h"
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

/* Towards one backend an address has some 64,000 ports. A connection that finds none goes on with another address of the device, from a place
 * that its client's hash gives, and then with the next ones. */

#define SNAT_SOURCES_TRIED 4
#define SNAT_OTHERS_SHIFT  8  /* above the index in sources: how many others may be tried */
#define SNAT_TURN_SHIFT    20 /* in snat_next, above the number of a port: which of them it is, 0: the route's */

static __always_inline __u32 snat_turn(__u32 next)
{
	return next >> SNAT_TURN_SHIFT & (SNAT_SOURCES_TRIED - 1);
}

/* Of the bits of sources the one whose turn it is, from 1 on; 0: there is none. */
static __always_inline __u32 snat_other(__u64 others, __u32 turn, const struct packet *packet)
{
	__u32 first =
		flow_hash(&packet->source, packet->source_port, packet->protocol, filter_seed()) & (SOURCES_MAX - 1);

	others = others >> first | others << (-first & (SOURCES_MAX - 1));
	for (__u32 i = 1; i < SNAT_SOURCES_TRIED; i++) {
		if (i < turn)
			others &= others - 1;
	}
	return others ? (__builtin_ctzll(others) + first) & (SOURCES_MAX - 1) : 0;
}

/* How many bits are set, as far as they are tried. */
static __always_inline __u32 snat_others_count(__u64 others)
{
	__u32 count = 0;

	for (__u32 i = 1; i < SNAT_SOURCES_TRIED; i++) {
		count += others != 0;
		others &= others - 1;
	}
	return count;
}

/* The route's source, or the other one whose turn it is; above it how many others there are. A function of its own so that the verifier goes
 * through it once. */
__noinline int snat_choose(__u32 index, __u64 others, __u32 turn, const struct packet *packet)
{
	__u32 other;

	if (!packet || !index)
		return -VERDICT_DROP_NO_SOURCE;
	others &= ~(1ULL << (index & (SOURCES_MAX - 1)));
	other = turn ? snat_other(others, turn, packet) : 0;
	if (other) /* else there are fewer than a moment ago, if it has a turn */
		index = other;
	return index | snat_others_count(others) << SNAT_OTHERS_SHIFT;
}

/* By the route, or as the device is told where that names no address that SNAT may use. 0: a device that is none of the
 * network's leads to pods of this node. Below 0: a verdict, negative. */
static __always_inline int snat_by_route(const struct settings *settings, const struct bpf_fib_lookup *fib,
					 const struct packet *packet, __u32 turn)
{
	__u8 family = packet->family;
	__u32 ifindex = fib->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct address address = {};
	__u32 index = 0;

	if (!device || device->pod)
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
	return snat_choose(index, family == 4 ? device->others4 : device->others6, turn, packet);
}

/* Index in sources, and above it how many others may be tried; 0: the server is on this node after all; below 0: a verdict, negative. ctx: of
 * the program, ifindex: of the device that the packet came by. */
static __always_inline int snat_source_of(void *ctx, __u32 ifindex, const struct packet *packet,
					  const struct address *server, __u32 turn)
{
	const struct settings *settings = settings_get();
	struct bpf_fib_lookup fib = {};
	long answer;

	if (!settings || !packet || !server)
		return -VERDICT_DROP_NO_SOURCE;
	if (!route_lookup)
		return snat_found(snat_index(settings, packet->family == 4 ? &settings->node4 : &settings->node6));
	fib_describe(&fib, ifindex, packet, &packet->source, server, 0);
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), fib_source ? BPF_FIB_LOOKUP_SRC : 0);
	if (fib_found(answer))
		return snat_by_route(settings, &fib, packet, turn);
	/* The kernel does not tell its own addresses from those that it has no route to: the stack knows, and answers. */
	if (answer == BPF_FIB_LKUP_RET_NOT_FWDED || snat_index(settings, server))
		return 0;
	return -fib_verdict(answer);
}

/* Functions of their own so that the verifier goes through them once. */
__noinline int snat_source(struct __sk_buff *skb, const struct packet *packet, const struct address *server)
{
	return snat_source_of(skb, skb->ifindex, packet, server, snat_turn(handed(skb)->slow.snat_next));
}

__noinline int snat_source_xdp(struct xdp_md *ctx, const struct packet *packet, const struct address *server)
{
	return snat_source_of(ctx, ctx->ingress_ifindex, packet, server, 0);
}

/* The port that the server sees. */

/* Ports are tried in stages, each from a place and by a stride that the connection's hash gives: first those of --snat-ports; where every
 * other port may serve as well, then those outside the host's local range, then all from SNAT_PORT_FIRST on. Each stage has a bound, so the
 * cost of a SYN does not grow with the number of ports: a stage that is full but for one port in ten is found so by one SYN in thirty. */
#define SNAT_PORTS_TRIED \
	32 /* a stage's; and that one run of the slow path looks at, which begins anew TRIES_MAX times */
#define SNAT_PORTS_WIDE (4 * SNAT_PORTS_TRIED) /* the last stage has two runs */

/* Without those other ports, and other addresses, a range of so many ports as TRIES_MAX runs look at is used to its last one, of a larger one a
 * hundredth may be left when the first connection finds none. */

#define SNAT_STRIDES 8

/* Larger than any range and prime: each steps through all of it. */
static const __u32 snat_strides[SNAT_STRIDES] = { 65537, 72019, 79031, 86501, 95003, 104003, 113011, 124001 };

/* Candidates among which a connection that was forgotten in part looks for the port that its server knows: few, as whoever sends
 * a packet of no connection has them looked at. */
#define SNAT_PORTS_OWN 8

/* With --snat-ports alone, this many candidates are searched for a port that is not held (flow_holds_port). If none is free, the one held
 * longest is taken, and a client whose clock is behind the one before may need a second SYN. With the other ports too, a held one is left
 * alone among all SNAT_PORTS_WIDE. */
#define SNAT_PORTS_STRICT 256

/* Seconds without a packet after which a reset has ended its connection: after a reset outside the window the connection goes on sooner.
 * One second more, as an entry's time may be that much behind its last packet. */
#define SNAT_RESET_SECONDS 2

/* Worst first. */
enum snat_port {
	SNAT_PORT_TAKEN = 0,
	SNAT_PORT_HELD, /* by a connection that ended, or that nothing came of, which the server may remember; by a datagram that was answered */
	SNAT_PORT_AGAIN, /* the same of the same client to the same address: its clock goes on, so the server takes its SYN */
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
static __always_inline enum snat_port snat_port_ended(const struct flow *flow, const struct insertion *in, __u32 now)
{
	__u32 seen = flow->seen;

	if (flow_holds_port(flow, seen) || flow_is_answered(flow, seen))
		return address_equal(&flow->client, &in->flow.client) &&
				       address_equal(&flow->frontend, &in->flow.frontend)
			       ? SNAT_PORT_AGAIN
			       : SNAT_PORT_HELD;
	if (seen_fins(seen) && seen & SEEN_CLIENT_WAITS)
		return SNAT_PORT_ENDED;
	if (seen & SEEN_RESET)
		return flow_age(flow, now) >= SNAT_RESET_SECONDS * jiffies_per_second ? SNAT_PORT_RESET
										      : SNAT_PORT_TAKEN;
	return flow_is_silent(flow, seen, now) ? SNAT_PORT_HELD : SNAT_PORT_TAKEN;
}

static __always_inline enum snat_port snat_port_left(const struct flow *flow, const struct insertion *in, __u32 now)
{
	if (flow_expired(flow, now))
		return SNAT_PORT_USED;
	if (flow->twin_port == in->flow.key_port && flow_same_ends(flow, &in->flow))
		return SNAT_PORT_OWN;
	return snat_port_ended(flow, in, now);
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

/* How good a port is by the first entry that has it; below 0: none of these has. */
__noinline int snat_worth_round(struct flow_cursor *cursor, const struct insertion *in, __u32 port)
{
	for (int i = 0; i < FLOW_ROUND; i++) {
		int at = flow_next(cursor);
		int worth = at < 0 ? at : snat_entry_worth(in, port, at);

		if (at < 0 || worth >= 0)
			return worth;
	}
	return FLOW_NEXT_ROUND;
}

/* How good a port is, as far as can be seen before it is claimed: the larger the better. A function of its own so that the verifier
 * goes through it once. */
__noinline int snat_port_worth(const struct insertion *in, __u32 port)
{
	const struct settings *settings = settings_get();
	struct flow_cursor cursor = {};
	__u64 hash;

	if (!in || !settings)
		return SNAT_PORT_TAKEN << SNAT_PORT_SHIFT;
	hash = flow_hash(snat_address(settings, &in->flow), port, in->flow.protocol, settings->seed);
	if (flow_is_absent(hash))
		return SNAT_PORT_FREE << SNAT_PORT_SHIFT;
	flow_search_begin(&cursor, hash, FLOW_BLOCKS_OWN);
	for (int i = 0; i < FLOW_ROUNDS; i++) {
		int worth = snat_worth_round(&cursor, in, port);

		if (worth >= 0)
			return worth;
		if (worth != FLOW_NEXT_ROUND)
			break;
	}
	return SNAT_PORT_FREE << SNAT_PORT_SHIFT;
}

/* Where a connection begins to look for a port: the same place in each of its lives, so that it keeps its port where it was
 * forgotten. */
static __always_inline __u64 snat_hash(const struct flow *flow, __u64 seed)
{
	return flow_own_pair_hash(flow, seed);
}

/* Ports beyond --snat-ports serve as well: whose they are can be asked. */
static __always_inline bool snat_is_wide(const struct settings *settings)
{
	return conntrack_there() && settings->snat_wide;
}

static __always_inline bool snat_may_use(const struct settings *settings, __be16 port)
{
	return in_snat_range(settings, port) || (snat_is_wide(settings) && bpf_ntohs(port) >= SNAT_PORT_FIRST);
}

static __always_inline __be16 snat_port_of(__u64 hash, __u32 first, __u32 count, __u32 number)
{
	return bpf_htons(first +
			 ((__u32)(hash >> 32) % count + number * snat_strides[hash & (SNAT_STRIDES - 1)]) % count);
}

/* The port of a candidate's number, 0: a stage of fewer ports has none of that number. A function of its own for the sake of the stack. */
__noinline int snat_candidate(__u64 hash, __u32 candidate)
{
	const struct settings *settings = settings_get();
	__u32 number = candidate % SNAT_PORTS_TRIED;
	__u32 first, count;

	if (!settings)
		return 0;
	if (!snat_is_wide(settings))
		return snat_port_of(hash, settings->snat_first, settings->snat_count, candidate);
	if (candidate >= 2 * SNAT_PORTS_TRIED)
		return snat_port_of(hash, SNAT_PORT_FIRST, 65536 - SNAT_PORT_FIRST, candidate);
	first = candidate < SNAT_PORTS_TRIED ? settings->snat_first : settings->snat_quiet_first;
	count = candidate < SNAT_PORTS_TRIED ? settings->snat_count : settings->snat_quiet_count;
	return number < count ? snat_port_of(hash, first, count, number) : 0;
}

/* How many candidates there are. */
static __always_inline __u32 snat_candidates(const struct settings *settings)
{
	return snat_is_wide(settings) ? SNAT_PORTS_WIDE : settings->snat_count;
}

#define TCP_STATE_SYN_SENT 2
#define TCP_STATE_LISTEN   10

/* Which sockets of the host are asked for. */
enum snat_socket_kind {
	SOCKET_ANY = 0,
	SOCKET_OPENING, /* of TCP: one that waits for the answer to its SYN */
	SOCKET_CONNECTED,
};

static __always_inline bool snat_socket_is(__u32 state, enum snat_socket_kind kind)
{
	return kind == SOCKET_OPENING ? state == TCP_STATE_SYN_SENT : kind == SOCKET_ANY || state != TCP_STATE_LISTEN;
}

static __always_inline bool snat_socket_tcp(void *ctx, struct bpf_sock_tuple *tuple, __u32 size,
					    enum snat_socket_kind kind)
{
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	bool has;

	if (!sk)
		return false;
	has = snat_socket_is(sk->state, kind);
	bpf_sk_release(sk);
	return has;
}

static __always_inline bool snat_socket(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u8 protocol,
					enum snat_socket_kind kind)
{
	struct bpf_sock *sk;
	bool has;

	if (protocol != IPPROTO_UDP)
		return snat_socket_tcp(ctx, tuple, size, kind);
	sk = bpf_sk_lookup_udp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	has = kind == SOCKET_ANY || sk->dst_port; /* one that is connected takes its peer's packets alone */
	bpf_sk_release(sk);
	return has;
}

/* A socket of the host would get this packet: it is connected from there to the sender, or takes what comes there from anybody. */
static __always_inline bool snat_socket_of(void *ctx, const struct ends *ends, enum snat_socket_kind kind)
{
	struct bpf_sock_tuple tuple = {};

	if (!ends)
		return false;
	if (address_family(&ends->source) == 4) {
		tuple.ipv4.saddr = address_to4(&ends->source);
		tuple.ipv4.daddr = address_to4(&ends->destination);
		tuple.ipv4.sport = ends->source_port;
		tuple.ipv4.dport = ends->destination_port;
		return snat_socket(ctx, &tuple, sizeof(tuple.ipv4), ends->protocol, kind);
	}
	__builtin_memcpy(tuple.ipv6.saddr, &ends->source, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &ends->destination, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = ends->source_port;
	tuple.ipv6.dport = ends->destination_port;
	return snat_socket(ctx, &tuple, sizeof(tuple.ipv6), ends->protocol, kind);
}

/* Functions of their own for the sake of the stack. */
__noinline int snat_socket_has(struct __sk_buff *skb, const struct ends *ends, enum snat_socket_kind kind)
{
	return snat_socket_of(skb, ends, kind);
}

__noinline int snat_socket_has_xdp(struct xdp_md *ctx, const struct ends *ends, enum snat_socket_kind kind)
{
	return snat_socket_of(ctx, ends, kind);
}

/* Not 0: the address and port is a frontend's, as a NodePort is. A function of its own for the sake of the stack. */
__noinline int snat_frontend_has(const struct ends *ends)
{
	struct frontend_key key = {};

	if (!ends)
		return false;
	key.address = ends->destination;
	key.port = ends->destination_port;
	key.protocol = ends->protocol;
	return frontend_number(&key);
}

/* A server's answer to the source port of its flow. */
static __always_inline void snat_answer(struct ends *ends, const struct settings *settings, const struct insertion *in)
{
	ends->source = in->to.destination;
	ends->source_port = in->to.destination_port;
	ends->destination = *snat_address(settings, &in->flow);
	ends->destination_port = in->flow.twin_port;
	ends->protocol = in->flow.protocol;
}

/* Not 0: what this server answers to the port is somebody else's: a frontend's, a socket's of the host, or of a connection that the host
 * translates. A function of its own for the sake of the stack, as the next one. */
__noinline int snat_is_anothers(struct __sk_buff *skb, const struct insertion *in)
{
	const struct settings *settings = settings_get();
	struct ends ends = {};

	if (!settings || !in)
		return false;
	snat_answer(&ends, settings, in);
	return snat_frontend_has(&ends) || snat_socket_has(skb, &ends, SOCKET_ANY) ||
	       (settings->yield && conntrack_knows(skb, &ends));
}

/* The same where the host translates no connections. */
__noinline int snat_is_anothers_xdp(struct xdp_md *ctx, const struct insertion *in)
{
	const struct settings *settings = settings_get();
	struct ends ends = {};

	if (!settings || !in)
		return false;
	snat_answer(&ends, settings, in);
	return snat_frontend_has(&ends) || snat_socket_has_xdp(ctx, &ends, SOCKET_ANY);
}

/* Puts a port into in that is better than what is there. True: no other can be. */
static __always_inline bool snat_prefer(struct insertion *in, __be16 port, __u32 candidate, int least)
{
	__u32 worth = snat_port_worth(in, port);

	if (worth <= in->worth)
		return false;
	in->worth = worth;
	in->candidate = candidate;
	in->flow.twin_port = port;
	in->over = worth >> SNAT_PORT_SHIFT >= SNAT_PORT_HELD && worth >> SNAT_PORT_SHIFT < SNAT_PORT_USED;
	return worth >> SNAT_PORT_SHIFT >= (least == SNAT_PORT_OWN ? SNAT_PORT_OWN : SNAT_PORT_FREE);
}

/* The candidate with which the next run goes on. */
static __always_inline __u32 snat_next_run(__u32 candidate)
{
	return (candidate | (SNAT_PORTS_TRIED - 1)) + 1;
}

/* Searches candidates from this one on for a port at least as good as `least` (enum snat_port), puts it into `in` and returns its number: a
 * free port, else the one idle longest. -1: all were tried; -2: this run has tried enough. A function of its own so that the verifier goes
 * through it once. */
__noinline int snat_find_port(struct insertion *in, __u32 candidate, int least)
{
	const struct settings *settings = settings_get();
	__u32 end = least == SNAT_PORT_OWN ? candidate + SNAT_PORTS_OWN : snat_next_run(candidate);
	int none = -2;
	__u64 hash;

	if (!in || !settings || !settings->snat_count)
		return -1;
	hash = snat_hash(&in->flow, settings->seed);
	in->over = false;
	in->worth = 0; /* in is memory that the verifier does not follow: it goes through each round once */
	for (int i = 0; i < SNAT_PORTS_TRIED && candidate < end; i++, candidate++) {
		__be16 port;

		if (candidate >= snat_candidates(settings)) {
			none = -1;
			break;
		}
		port = snat_candidate(hash, candidate);
		if (port && snat_prefer(in, port, candidate, least))
			break;
	}
	return (int)(in->worth >> SNAT_PORT_SHIFT) < least ? none : (int)in->candidate;
}

/* In snat_next: all were looked at, and none was free; once more, and held ones serve. */
#define SNAT_HELD_TOO (1u << 30)

/* The port that the server knows, of a connection that was forgotten in part. The range may have changed since. */
static __always_inline bool create_snat_port_again(const struct work *work, struct insertion *in)
{
	const struct flow *flow = found_flow(&work->found);

	if (work->found.port && snat_may_use(work->settings, work->found.port)) {
		in->flow.twin_port = work->found.port;
		if (flow && flow->flags & FLOW_SNAT && !address_zero(snat_address(work->settings, flow)))
			in->flow.source = flow->source;
		return true;
	}
	return !opens_connection(&work->packet) && snat_find_port(in, 0, SNAT_PORT_OWN) >= 0;
}

/* The least that a candidate's port is to be worth (enum snat_port). */
static __always_inline int snat_least(const struct settings *settings, __u32 candidate, bool again)
{
	return again || (!snat_is_wide(settings) && candidate >= SNAT_PORTS_STRICT) ? SNAT_PORT_HELD : SNAT_PORT_RESET;
}

/* Where there are other sources, one is looked at no longer than all ports would be; those that are held come last, of the route's. */
static __always_inline bool snat_goes_on(const struct insertion *in, __u32 candidate, __u32 again)
{
	return in->others && !(again & SNAT_HELD_TOO) && snat_next_run(candidate) >= SNAT_PORTS_WIDE;
}

/* INSERT_DONE: work->in has a port to try. INSERT_PORT: none in this run, the next one goes on from where it ended. */
static __always_inline enum insert create_snat_port(struct entry_point point, struct work *work)
{
	struct handed *handed = point.handed;
	__u32 next = handed->slow.snat_next;
	__u32 again, turn = snat_turn(next);
	int candidate;

	if (!next && create_snat_port_again(work, &work->in))
		return INSERT_DONE;
	again = next & (SNAT_HELD_TOO | (SNAT_SOURCES_TRIED - 1) << SNAT_TURN_SHIFT);
	next &= (1 << SNAT_TURN_SHIFT) - 1;
	next = next ? next - 1 : 0;
	candidate = snat_find_port(&work->in, next, snat_least(work->settings, next, again & SNAT_HELD_TOO));
	if (candidate >= 0)
		handed->slow.snat_next = again | (candidate + 1);
	else if (candidate == -2 && !snat_goes_on(&work->in, next, again))
		handed->slow.snat_next = again | snat_next_run(next);
	else if (again & SNAT_HELD_TOO)
		return INSERT_EXHAUSTED;
	else
		handed->slow.snat_next = turn < work->in.others ? (turn + 1) << SNAT_TURN_SHIFT : SNAT_HELD_TOO;
	return candidate >= 0 ? INSERT_DONE : INSERT_PORT;
}

/* A client off the node has come by a ClusterIP to a server that knows its address: from now on any direct connection may clash. */
static __always_inline void create_routed(const struct settings *settings, const struct record *record)
{
	__u32 zero = 0;
	struct settings *own;

	if (record->kind != KIND_CLUSTER_IP || settings_routed(settings) & ROUTED_HERE)
		return;
	own = bpf_map_lookup_elem(&config, &zero);
	if (own)
		__sync_fetch_and_or(settings_modes(own), ROUTED_HERE << MODES_ROUTED_SHIFT);
}

/* As snat_source. */
static __always_inline int create_snat_source(struct entry_point point, const struct packet *packet,
					      const struct choice *choice)
{
	if (backend_is_local(choice->backend))
		return 0;
	return point.xdp ? snat_source_xdp(point.ctx, packet, &choice->address)
			 : snat_source(point.ctx, packet, &choice->address);
}

/* A client off the node: a backend on another one sees an address of this node, one that is here the client's own: that is TC's. */
static __always_inline enum verdict create_external(struct entry_point point, struct work *work,
						    const struct record *record, const struct choice *choice)
{
	struct flow *flow = &work->in.flow;
	int source;

	if (!is_hosts(&work->packet.source, work->packet.family) && !backend_is_local(choice->backend))
		return VERDICT_PASS_NOT_SERVICE; /* for the stack to drop, which it would pass by */
	flow->flags = tunnel_way(point, &work->packet, record, choice);
	if (flow->flags)
		return VERDICT_CONTINUE;
	source = create_snat_source(point, &work->packet, choice);
	if (source < 0)
		return -source;
	if (!source && point.xdp)
		return VERDICT_PASS_NOT_SERVICE;
	if (!source)
		create_routed(work->settings, record);
	if (source > 0 && flow->protocol == IPPROTO_SCTP)
		return VERDICT_DROP_SCTP_PORT;
	work->in.others = source >> SNAT_OTHERS_SHIFT;
	flow->source = source;
	flow->flags = source > 0 ? FLOW_SNAT : 0;
	return VERDICT_CONTINUE;
}

/* Packets of servers on other nodes to an address and a port that SNAT uses. */

/* A flow of SNAT has the port that a packet goes to. */
static __always_inline bool snat_has(struct flow_query *query, const struct packet *packet)
{
	flow_ends_reply(&query->ends, packet);
	query->kind = QUERY_SNAT_REPLY;
	query->blocks = FLOW_BLOCKS_OWN;
	query->hash = flow_ends_hash(&query->ends, filter_seed());
	return flow_search(query) >= 0;
}

static __always_inline bool snat_find(const struct settings *settings, const struct packet *packet, struct reply *reply)
{
	reply_find(reply, settings, packet, QUERY_SNAT_REPLY);
	return reply->at;
}

/* Not 0: a socket of the host waits for this answer to its SYN. A function of its own for the sake of the stack. */
__noinline int snat_host_opens(struct __sk_buff *skb, const struct packet *packet)
{
	struct ends ends = {};

	if (!packet)
		return false;
	ends_of(&ends, packet);
	return snat_socket_has(skb, &ends, SOCKET_OPENING);
}

/* The packet begins a connection that is not the flow's. Both sides have closed that: a masquerade or a socket of the host's has the port
 * towards this server by now. It was reset, which may have been outside the window, or never established: a socket of the host is the one
 * that waits. */
static __always_inline bool snat_is_over(struct __sk_buff *skb, const struct flow *flow, const struct packet *packet)
{
	if (packet->protocol != IPPROTO_TCP || !answers_syn(packet))
		return false;
	if (seen_fins(flow->seen))
		return true;
	return (seen_closed(flow->seen) || !(flow->seen & SEEN_ESTABLISHED)) && snat_host_opens(skb, packet);
}

/* Frees the entry: the other connection's next packets are not the flow's either. */
static __always_inline void snat_give(const struct reply *reply)
{
	flow_free(reply->at, reply->entry, reply->flow.word);
}

static __always_inline struct step snat_translate(struct __sk_buff *skb, const struct settings *settings,
						  const struct packet *packet, struct reply *reply)
{
	enum verdict verdict;
	__u32 syn = 0;

	reply_note(reply->at, &reply->flow, packet);
	flow_count_received(settings, reply->entry, reply->flow.word, skb->len);
	if (kept_asked(packet, &reply->flow))
		syn = kept_refused(skb, packet, &reply->flow);
	if (syn)
		return step_resend(skb, syn, HOOK_FROM_NET);
	verdict = reply_rewrite(skb, packet, &reply->flow);
	return verdict_is_translate(verdict) ? (struct step){ NEXT_ROUTE, verdict } : step_finish(verdict);
}

/* A flow has what is here, or had it a moment ago: reply and packet are told of. What has none is of the host's own connections or of a
 * masquerade's, as far as anybody can say: it passes. Of a flow that was lost, the host answers it with a reset. */
static __always_inline struct step snat_reply(struct __sk_buff *skb, struct packet *packet, struct reply *reply)
{
	const struct settings *settings = settings_get();

	if (!settings)
		return step_finish(VERDICT_PASS_DISABLED);
	if (parse_full(skb, packet) != VERDICT_CONTINUE ||
	    (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet)))
		return step_unknown_reply();
	if (!snat_find(settings, packet, reply))
		return step_unknown_reply();
	if (!snat_is_over(skb, &reply->flow, packet))
		return snat_translate(skb, settings, packet, reply);
	snat_give(reply);
	return step_unknown_reply();
}
