/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connections of the host's own sockets whose backend does not answer. The hooks of sockets chose it (sock.h), and the socket keeps it as its
 * peer; when its SYN comes again, the packets of this connection go to another backend from then on, on their way out, by a flow of SNAT whose
 * frontend is the first backend's address and port (flow_of_host). Other connections of the host have no flow. */
#pragma once

#include "create.h"
#include "health.h"
#include "retry.h"
#include "route.h"
#include "settings.h"
#include "snat.h"
#include "sock.h"
#include "translate.h"
#include "work.h"

/* In tc_index of a packet that was translated, or answered, and comes by a device once more: it is no socket's of the host, nor for one to be
 * judged again. */
#define HOST_TURNED 0x6e6c

/* Where the packet leaves. */
static __always_inline enum hook host_hook(struct __sk_buff *skb)
{
	return handed(skb)->slow.host & ~HANDED_LOADS;
}

static __always_inline void host_counts(struct __sk_buff *skb, bool loads)
{
	__u8 host = handed(skb)->slow.host & ~HANDED_LOADS;

	handed(skb)->slow.host = loads ? host | HANDED_LOADS : host;
}

/* Way out: packets of the host's sockets. */

/* The packet is as the socket wrote it: no rule of the host has given it another source since. */
static __always_inline bool host_source_is(const struct bpf_sock *sk, const struct packet *packet)
{
	struct address source = {};

	sock_bound(sk, packet->family == 6, &source);
	return sk->src_port == bpf_ntohs(packet->source_port) && address_equal(&source, &packet->source);
}

/* Not 0: the packet is of a socket that the hooks connected to its destination; peer tells by which frontend. A function of its own for the
 * sake of the stack. */
__noinline int host_peer(struct __sk_buff *skb, const struct packet *packet, struct sock_peer *peer)
{
	const struct sock_peer *known;
	struct bpf_sock *sk = skb->sk;

	if (!sk || !packet || !peer || !host_source_is(sk, packet))
		return false;
	known = bpf_sk_storage_get(&peers, sk, NULL, 0);
	if (!known || known->protocol != IPPROTO_TCP || known->port != packet->destination_port ||
	    !address_equal(&known->address, &packet->destination))
		return false;
	*peer = *known;
	return true;
}

/* The record by which the socket was connected. A function of its own for the sake of the stack. */
__noinline int host_frontend(const struct sock_peer *peer)
{
	const struct settings *settings = settings_get();
	struct frontend_key key = {};

	if (!settings || !peer)
		return 0;
	key.address = peer->frontend;
	key.port = peer->frontend_port;
	key.protocol = peer->protocol;
	sock_resolve(&key, settings);
	return frontend_number(&key);
}

/* Where the search of the socket's backend began (sock_balance). */
static __always_inline __u32 host_hash(struct __sk_buff *skb, const struct settings *settings,
				       const struct record *record, __u8 family)
{
	struct address socket = { .longs = { 0, bpf_get_socket_cookie(skb) } };

	if (record->affinity)
		return maglev_hash_client(family == 4 ? &settings->node4 : &settings->node6);
	return maglev_hash(&socket, 0, &record->key);
}

static __always_inline const struct backend *host_backend(const struct sock_peer *peer)
{
	const struct backend *backend = backend_get(peer->backend);

	return backend && backend->generation == peer->generation ? backend : NULL;
}

/* Counts the first SYN of a connection against the socket's own backend, to which there is no flow. Never 0. A function of its own for the sake
 * of the stack. */
__noinline int host_unanswered(struct __sk_buff *skb, const struct packet *packet)
{
	struct sock_peer peer = {};
	struct flow flow = {};

	if (!packet || !host_peer(skb, packet, &peer) || !host_backend(&peer))
		return true;
	flow.client = packet->source;
	flow.backend = peer.backend;
	flow.generation = peer.generation;
	flow.touched = flow_now() - jiffies_per_second;
	health_unanswered(&flow);
	return true;
}

/* Index in sources of the address by which this node's packets go to a backend; 0: they do not. A backend at an address of this node is behind
 * no device. A function of its own for the sake of the stack. */
__noinline int host_source(struct __sk_buff *skb, const struct packet *packet, __u32 id)
{
	const struct backend *backend = backend_get(id);
	struct bpf_fib_lookup fib = {};
	int index;

	if (!backend || !packet || snat_source_index(&backend->address))
		return 0;
	fib_describe(&fib, skb->ifindex, packet, &packet->source, &backend->address, 0);
	if (!fib_found(bpf_fib_lookup(skb, &fib, sizeof(fib), 0)))
		return 0;
	index = backend->tier == TIER_NODE ? 0 : snat_source(skb, packet, &backend->address);
	if (index < 0)
		return 0;
	index &= SOURCES_MAX - 1; /* its ports are enough */
	return index ? index : snat_source_index(&packet->source);
}

/* The backends that the connection went to, and where it is. flow: NULL where it is with the socket's own backend. */
static __always_inline void host_tell(struct retry *retry, const struct sock_peer *peer, const struct flow *flow)
{
	const struct backend *backend = host_backend(peer);

	if (flow) {
		retry->tried = flow_tried(flow);
		retry->last = flow->backend;
		retry->node = retry_node(flow);
		return;
	}
	retry->last = peer->backend;
	retry->node = backend && backend->tier != TIER_NODE ? backend->node : 0;
}

/* Not 0: the SYN goes to another backend, which is told to the create chain. A function of its own for the sake of the stack. */
__noinline int host_next(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	const struct settings *settings = settings_get();
	const struct record *record;
	struct sock_peer peer = {};
	struct retry retry = {};
	struct flow *flow;
	__u32 id;

	if (!settings || settings->draining || !packet || !found || !host_peer(skb, packet, &peer))
		return false;
	record = record_get(host_frontend(&peer));
	if (!record || !record->service)
		return false;
	flow = found_flow(found);
	retry.service = record->service;
	host_tell(&retry, &peer, flow);
	id = retry_next(record, SIDE_INTERNAL, host_hash(skb, settings, record, packet->family), &retry);
	if (!id)
		return false;
	handed(skb)->slow.backend = id;
	handed(skb)->slow.tried = tried_add(retry.tried, retry.last);
	host_counts(skb, record->balance == BALANCE_LEAST_CONNECTIONS);
	return true;
}

/* False: it stays where it is. */
static __always_inline bool host_choose(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	if (!host_next(skb, packet, found))
		return false;
	if (host_source(skb, packet, handed(skb)->slow.backend)) {
		if (found->at == FLOW_NONE)
			return host_unanswered(skb, packet);
		if (retry_leave(found, false)) {
			retry_count(found);
			return true;
		}
	}
	handed(skb)->slow.backend = 0;
	return false;
}

/* From now on packets are looked at for such connections. Called before a flow is shown and, as the agent may have found none until then, before
 * its first packet leaves. */
static __always_inline void host_begin(void)
{
	const __u8 both = ROUTED_HOST | ROUTED_HOST_BEGAN;
	__u32 zero = 0;
	struct settings *settings = bpf_map_lookup_elem(&config, &zero);

	if (settings && (settings_routed(settings) & both) != both)
		__sync_fetch_and_or(settings_modes(settings), both << MODES_ROUTED_SHIFT);
}

/* NEXT_CREATE: work->in describes a flow to the backend that was handed on. */
static __always_inline bool host_describe(struct __sk_buff *skb, struct work *work)
{
	struct insertion *in = &work->in;
	__u32 id = handed(skb)->slow.backend;
	const struct backend *backend = backend_get(id);
	int source = host_source(skb, &work->packet, id);

	if (!backend || !source)
		return false;
	create_describe(in, &work->packet);
	in->flow.backend = id;
	in->flow.generation = backend->generation;
	in->flow.service = backend->service;
	in->flow.side = SIDE_INTERNAL;
	in->flow.flags = FLOW_SNAT;
	in->flow.source = source;
	in->flow.seen |= handed(skb)->slow.tried << TRIED_SHIFT;
	if (handed(skb)->slow.host & HANDED_LOADS)
		in->flow.seen |= SEEN_LOADS | SEEN_COUNTED;
	in->to.destination = backend->address;
	in->to.destination_port = backend->port;
	return true;
}

/* What becomes of a packet that cannot go where it should: a SYN goes to the socket's own backend; a connection that goes on would be reset
 * by that, and waits. */
static __always_inline struct step host_fails(enum verdict verdict, enum verdict otherwise)
{
	return step_finish(verdict == VERDICT_TRANSLATE_RECOVER ? otherwise : VERDICT_PASS_NOT_SERVICE);
}

/* Sends the packet to the backend that was handed on. verdict: a constant. */
static __always_inline struct step host_steer(struct __sk_buff *skb, struct work *work, enum verdict verdict)
{
	struct insertion *in = &work->in;
	struct step step;

	if (!host_describe(skb, work))
		return host_fails(verdict, VERDICT_DROP_NO_SOURCE);
	host_begin();
	step = create_new(point_tc(skb), work, verdict);
	if (step.next == NEXT_FINISH)
		return host_fails(verdict, step.verdict);
	if (step.next != NEXT_TRANSLATE)
		return step;
	host_begin();
	if (!forward_target(&in->to, work->settings, &in->flow, &work->packet))
		return step_finish(VERDICT_DROP_NO_BACKEND);
	flow_count_first(work->settings, in, skb->len);
	step.verdict = forward_rewrite(skb, &work->packet, &in->flow, &in->to, step.verdict);
	step.next = verdict_is_translate(step.verdict) ? NEXT_ROUTE : NEXT_FINISH;
	return step;
}

static __always_inline struct step host_go_on(struct __sk_buff *skb, struct work *work)
{
	enum verdict verdict =
		forward_established(skb, work->settings, &work->packet, &work->found, &work->in.flow, &work->in.to);

	if (verdict == VERDICT_CONTINUE)
		return step_again(VERDICT_DROP_FLOW_RACE);
	return verdict_is_translate(verdict) ? (struct step){ NEXT_ROUTE, verdict } : step_finish(verdict);
}

/* Frees the flow of a connection that is over, or goes to the socket's own backend: what that answers is the connection's then. */
static __always_inline void host_forget(struct found *found)
{
	struct flow *flow = found_flow(found);

	if (flow && retry_leave(found, true))
		flow_free(flow, found->at, found->word);
	found->at = FLOW_NONE;
	found->port = 0;
}

static __always_inline struct step host_syn(struct __sk_buff *skb, struct work *work)
{
	struct found *found = &work->found;

	if (handed(skb)->slow.backend) { /* once more: what is left of the flow is the last backend's */
		found->port = 0;
		return host_steer(skb, work, VERDICT_TRANSLATE_RETRY);
	}
	if (!sends_again(skb))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	if (!found->usable && !found->retry)
		host_forget(found);
	if ((found->at == FLOW_NONE || found->retry) && host_choose(skb, &work->packet, found))
		return host_steer(skb, work, VERDICT_TRANSLATE_RETRY);
	return found->usable ? host_go_on(skb, work) : step_finish(VERDICT_PASS_NOT_SERVICE);
}

/* In the middle of a connection. One whose second entry was evicted gets it again. */
static __always_inline struct step host_later(struct __sk_buff *skb, struct work *work)
{
	const struct flow *flow = found_flow(&work->found);

	if (work->found.usable)
		return host_go_on(skb, work);
	if (!flow || !work->found.port || !flow_backend(flow))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	handed(skb)->slow.backend = flow->backend;
	handed(skb)->slow.tried = flow_tried(flow);
	host_counts(skb, flow->seen & SEEN_LOADS);
	return host_steer(skb, work, VERDICT_TRANSLATE_RECOVER);
}

/* Remembers a connection from a port that is a frontend's (opens_unasked). */

/* The packet as its answers will be. */
static __always_inline void host_turn(struct packet *packet)
{
	struct address source = packet->source;
	__be16 port = packet->source_port;

	packet->source = packet->destination;
	packet->source_port = packet->destination_port;
	packet->destination = source;
	packet->destination_port = port;
}

/* Without room it is not remembered, nor in the place of a client's connection. */
static __always_inline struct step host_opens(struct __sk_buff *skb, struct work *work)
{
	struct step step = step_finish(VERDICT_PASS_NOT_SERVICE);
	struct insertion *in = &work->in;
	const struct record *record;
	const struct flow *flow;

	host_turn(&work->packet);
	record = frontend_of(&work->packet);
	if (!record || !answered_at(record) || !forward_find(skb, &work->found, &work->packet, &work->query))
		return step;
	flow = found_flow(&work->found);
	if (flow && !flow_of_opened(flow) && !flow_is_dead(flow, flow_now()))
		return step;
	create_describe(in, &work->packet);
	in->flow.flags = FLOW_DIRECT;
	in->flow.side = SIDE_EXTERNAL;
	in->flow.seen = SEEN_REPLY;
	in->to.destination = work->packet.destination;
	in->to.destination_port = work->packet.destination_port;
	in->replace = work->found.spilled ? FLOW_NONE : work->found.at;
	in->replace_word = work->found.word;
	if (create_own(in, filter_seed(), false) == INSERT_DONE && flow_publish(in, FLOW_LIVE))
		step.verdict = VERDICT_PASS_DIRECT;
	return step;
}

/* What leaves by a device, from an address of this node. */
static __always_inline struct step host_forward(struct __sk_buff *skb, struct work *work)
{
	struct packet *packet = &work->packet;
	const struct flow *flow;
	struct step step;

	work->settings = settings_get();
	packet->hook = host_hook(skb);
	if (!work->settings || skb->tc_index == HOST_TURNED || parse_full(skb, packet) != VERDICT_CONTINUE ||
	    packet->malformed || packet->protocol != IPPROTO_TCP || packet->fragment != FRAGMENT_NONE ||
	    !snat_source_index(&packet->source) || !forward_find(skb, &work->found, packet, &work->query))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	flow = found_flow(&work->found);
	if (flow && !flow_of_host(flow))
		return step_finish(VERDICT_PASS_NOT_SERVICE);
	if (!opens_connection(packet))
		return host_later(skb, work);
	step = host_syn(skb, work);
	if (step.verdict == VERDICT_PASS_NOT_SERVICE)
		host_forget(&work->found);
	if (step.verdict == VERDICT_PASS_NOT_SERVICE && opens_unasked(work->settings, packet))
		step = host_opens(skb, work);
	return step;
}

/* Way in: what backends answer is translated as replies to SNAT are (snat_reply), and goes to the host. */

/* Not 0: the packet is of a backend that its connection has left. A function of its own for the sake of the stack. */
__noinline int host_has_left(const struct packet *packet)
{
	struct flow_query query = { .kind = QUERY_LEFT, .blocks = FLOW_BLOCKS_OWN };

	if (!packet || packet->protocol != IPPROTO_TCP || packet->fragment != FRAGMENT_NONE)
		return false;
	flow_ends_reply(&query.ends, packet);
	query.hash = flow_ends_hash(&query.ends, filter_seed());
	return flow_search(&query) >= 0;
}

/* Notes the answer of a backend to a socket of the host, which has no flow. */
static __always_inline void host_note(struct bpf_sock *sk, const struct packet *packet)
{
	const struct sock_peer *peer;

	if (sk->state != TCP_STATE_SYN_SENT)
		return;
	peer = bpf_sk_storage_get(&peers, sk, NULL, 0);
	if (peer && peer->port == packet->source_port && address_equal(&peer->address, &packet->source) &&
	    host_backend(peer))
		health_answered(peer->backend);
}

/* The same, of a SYN-ACK. A function of its own for the sake of the stack. */
__noinline int host_answered(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;

	if (!packet)
		return 0;
	if (packet->family == 4) {
		tuple.ipv4.saddr = address_to4(&packet->source);
		tuple.ipv4.daddr = address_to4(&packet->destination);
		tuple.ipv4.sport = packet->source_port;
		tuple.ipv4.dport = packet->destination_port;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &packet->source, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &packet->destination, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = packet->source_port;
		tuple.ipv6.dport = packet->destination_port;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	host_note(sk, packet);
	bpf_sk_release(sk);
	return 0;
}

/* What may be a reply to SNAT, and is none. */
static __always_inline struct step host_reply(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = settings_get();

	if (!settings || !host_there(settings) || skb->tc_index == HOST_TURNED)
		return step_unknown_reply();
	if (host_has_left(packet)) {
		skb->tc_index = HOST_TURNED;
		return (struct step){ NEXT_REJECT, VERDICT_REJECT_LATE_ANSWER };
	}
	if (answers_syn(packet))
		host_answered(skb, packet);
	return step_unknown_reply();
}

/* Not 0: the host's own packets to the sender leave by the device that the packet came by, or by a bridge of it. So nobody speaks for a backend
 * that is elsewhere, as the filter of reverse paths will not ask about it. A function of its own for the sake of the stack. */
__noinline int host_comes_right(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_fib_lookup fib = {};
	__u32 ifindex;

	if (!packet)
		return false;
	if (!route_lookup)
		return true;
	fib_describe(&fib, skb->ifindex, packet, &packet->destination, &packet->source, 0);
	if (!fib_found(bpf_fib_lookup(skb, &fib, sizeof(fib), 0)))
		return false;
	ifindex = fib.ifindex;
	return ifindex == skb->ifindex || (packet->hook == HOOK_FROM_POD && !bpf_map_lookup_elem(&devices, &ifindex));
}

/* The device by which the host expects packets of the socket's own backend: by another one, its filter of reverse paths would drop them. 0: it
 * is the device that the packet came by, or nobody can say. The Ethernet header is written for that device. A function of its own for the sake
 * of the stack. */
__noinline int host_device(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct bpf_fib_lookup fib = {};
	struct ethhdr *eth;

	if (!link_header || !route_lookup || !packet || !flow || !host_comes_right(skb, packet))
		return 0;
	fib_describe(&fib, skb->ifindex, packet, &flow->client, &flow->frontend, 0);
	if (bpf_fib_lookup(skb, &fib, sizeof(fib), 0) != BPF_FIB_LKUP_RET_SUCCESS || fib.ifindex == skb->ifindex)
		return 0;
	eth = packet_at(skb, 0, sizeof(*eth));
	if (!eth)
		return 0;
	__builtin_memcpy(eth->h_dest, fib.smac, ETH_ALEN);
	skb->tc_index = HOST_TURNED;
	return fib.ifindex;
}

/* The last line for a packet that is the host's now. packet: as it came. */
static __always_inline int finish_host(struct __sk_buff *skb, enum hook hook, enum verdict verdict,
				       const struct packet *packet, const struct flow *flow)
{
	__u32 length = skb->len;
	__u32 ifindex = verdict_is_translate(verdict) ? host_device(skb, packet, flow) : 0;

	if (ifindex)
		return finish_resent(hook, verdict, length, ifindex);
	return finish_turned(skb, hook, verdict, length, false);
}
