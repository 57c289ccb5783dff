/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Sockets of the node's own clients, served as they connect or send: no packet of theirs is changed. */
#pragma once

#include <asm-generic/errno.h>

#include "maps.h"
#include "observe.h"
#include "packet.h"
#include "policy.h"
#include "settings.h"

/* The kernel takes an unspecified destination for loopback. */
static __always_inline bool is_loopback(const struct address *address)
{
	__be32 ip = address_to4(address);

	if (address_family(address) == 4)
		return ip == 0 || (ip & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return address->longs[0] == 0 && (address->longs[1] == 0 || address->longs[1] == 1ULL << 56);
}

/* The frontend that a socket names: loopback addresses of the host stand for the one that answers NodePorts. */
static __always_inline void sock_resolve(struct frontend_key *key, const struct settings *settings)
{
	if (is_loopback(&key->address))
		key->address = address_family(&key->address) == 4 ? settings->node_port4 : settings->node_port6;
}

/* Where a socket goes: decided once for a connection or datagram, by the record that a pod's packet would meet. What is remembered of a
 * connected socket is its peer, as long as the socket lives (getpeername, and the agent, which ends sockets whose backend is gone); of a
 * socket that sends datagrams here and there, each frontend's backend, both ways round. */

static __always_inline void sock_key_of(struct sock_key *key, __u64 cookie, const struct address *address, __be16 port,
					enum sock_side side)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->cookie = cookie;
	key->address = *address;
	key->port = port;
	key->protocol = IPPROTO_UDP;
	key->side = side;
}

/* A function of its own for the sake of the stack. */
__noinline int sock_remember_one(__u64 cookie, const struct frontend_key *frontend, const struct choice *choice,
				 __u32 service, __u32 side)
{
	struct sock_value value = {};
	struct sock_key key;

	if (!frontend || !choice)
		return 0;
	value.backend = choice->backend;
	value.generation = choice->generation;
	value.service = service;
	if (side == SOCK_FRONTEND) {
		sock_key_of(&key, cookie, &frontend->address, frontend->port, SOCK_FRONTEND);
		value.address = choice->address;
		value.port = choice->port;
	} else {
		sock_key_of(&key, cookie, &choice->address, choice->port, SOCK_BACKEND);
		value.address = frontend->address;
		value.port = frontend->port;
	}
	bpf_map_update_elem(&socks, &key, &value, BPF_ANY);
	return 0;
}

/* What a datagram from a backend was an answer to; NULL: not to one through a frontend. */
static __always_inline const struct sock_value *sock_answered(__u64 cookie, const struct address *backend, __be16 port)
{
	struct sock_key key;

	sock_key_of(&key, cookie, backend, port, SOCK_BACKEND);
	return bpf_map_lookup_elem(&socks, &key);
}

/* A datagram goes to a backend's address itself: what comes from there is shown as it is, until the socket asks by a frontend again. A function
 * of its own for the sake of the stack. */
__noinline int sock_forget(__u64 cookie, const struct address *backend, __be16 port)
{
	struct sock_key key;

	if (!backend)
		return 0;
	sock_key_of(&key, cookie, backend, port, SOCK_BACKEND);
	bpf_map_delete_elem(&socks, &key);
	return 0;
}

/* For datagrams through a frontend, to and from its backend. */
static __always_inline void sock_remember(__u64 cookie, const struct frontend_key *frontend,
					  const struct choice *choice, __u32 service)
{
	sock_remember_one(cookie, frontend, choice, service, SOCK_BACKEND);
	sock_remember_one(cookie, frontend, choice, service, SOCK_FRONTEND);
}

static __always_inline bool sock_value_serves(const struct sock_value *value, const struct backend *backend)
{
	return backend && backend->generation == value->generation && backend->service == value->service &&
	       backend_serving(backend);
}

/* The frontend that a socket named is another service port's by now. */
static __always_inline bool sock_frontend_moved(const struct frontend_key *named, __u32 service)
{
	const struct settings *settings = settings_get();
	struct frontend_key key = *named;
	const struct record *record;

	if (!settings)
		return false;
	sock_resolve(&key, settings);
	record = frontend_find(&key);
	return record && record->service != service;
}

/* True: the backend that the socket's last datagram to this frontend went to, still serving. Its way back may have been
 * evicted meanwhile: the caller remembers it again. lost: there was one, and it serves no more. */
static __always_inline bool sock_recall(__u64 cookie, const struct frontend_key *frontend, struct choice *choice,
					__u32 *service, bool *lost)
{
	const struct sock_value *value;
	const struct backend *backend;
	struct sock_key key;

	sock_key_of(&key, cookie, &frontend->address, frontend->port, SOCK_FRONTEND);
	value = bpf_map_lookup_elem(&socks, &key);
	if (!value)
		return false;
	backend = backend_get(value->backend);
	if (!sock_value_serves(value, backend) || sock_frontend_moved(frontend, value->service)) {
		*lost = true;
		return false;
	}
	*service = value->service;
	return backend_choose(choice, value->backend, backend);
}

static __always_inline void peer_remember(struct bpf_sock *sk, const struct frontend_key *frontend,
					  const struct choice *choice, __u32 service)
{
	struct sock_peer *peer = bpf_sk_storage_get(&peers, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!peer)
		return; /* no memory: getpeername will show the backend */
	peer->frontend = frontend->address;
	peer->frontend_port = frontend->port;
	peer->address = choice->address;
	peer->port = choice->port;
	peer->generation = choice->generation;
	peer->protocol = frontend->protocol;
	peer->backend = choice->backend;
	peer->service = service;
}

/* NULL: the socket is not connected to this address through a frontend, or is so no more. */
static __always_inline const struct sock_peer *peer_find(struct bpf_sock *sk, const struct address *address,
							 __be16 port)
{
	const struct sock_peer *peer = bpf_sk_storage_get(&peers, sk, NULL, 0);

	return peer && sk->dst_port == port && peer->port == port && address_equal(&peer->address, address) ? peer
													    : NULL;
}

/* The decision. */

/* What a socket asks for, whatever the hook. */
struct sock_request {
	__u64 cookie;            /* of the socket: spreads connections, and keeps datagrams on their backend */
	struct frontend_key key; /* destination, as the client names it */
	struct address source;   /* as loadBalancerSourceRanges judge it */
	struct address client;   /* as session affinity knows it */
	__u8 host;               /* of the host's network namespace: loopback addresses are the node's */
	__u8 sourced;            /* source is known: of an unbound socket in a pod it is not */
	__u8 keeps;              /* datagrams of one socket stay on a backend while it serves */
	__u8 pad[5];
};

/* What was decided. */
struct sock_answer {
	struct choice choice; /* valid if the verdict is to translate */
	__u32 service;        /* id of the service port, 0 none */
};

/* ctx, here and below: the program's. The choice is no responder, or one that listens. */
static __always_inline bool sock_listens(void *ctx, const struct sock_request *request, const struct choice *choice)
{
	return !choice_is_responder(choice) ||
	       responder_hears(ctx, &choice->address, choice->port, request->key.protocol);
}

static __always_inline bool sock_remembered(void *ctx, const struct sock_request *request, struct sock_answer *answer,
					    bool *lost)
{
	if (!request->keeps || !sock_recall(request->cookie, &request->key, &answer->choice, &answer->service, lost))
		return false;
	*lost = !sock_listens(ctx, request, &answer->choice);
	return !*lost;
}

static __always_inline enum verdict sock_balance(void *ctx, const struct sock_request *request,
						 const struct record *record, struct sock_answer *answer)
{
	const struct side *side = &record->sides[SIDE_INTERNAL];
	struct choice *choice = &answer->choice;
	struct address socket = { .longs = { 0, request->cookie } };
	int affine = record->affinity ? affinity_find(choice, record, side, &request->client, PICK_NEW) : AFFINITY_OVER;
	__u32 hash =
		affine == AFFINITY_OVER ? maglev_hash(&socket, 0, &record->key) : maglev_hash_client(&request->client);
	int how = PICK_NEW | pick_balance(record);

	if (affine != AFFINITY_FOUND && how & PICK_TURN)
		hash = turn_take(record->service, false);
	if (affine != AFFINITY_FOUND && !backend_pick(choice, side, record->service, hash, how | PICK_RESPONDER))
		return VERDICT_DROP_NO_BACKEND;
	if (!request->host && choice_is_responder(choice))
		return VERDICT_PASS_NOT_SERVICE; /* it is in another network namespace: the pod's device will know whether it listens */
	if (!sock_listens(ctx, request, choice)) {
		affine = AFFINITY_NONE;
		if (!backend_pick(choice, side, record->service, hash, how))
			return VERDICT_DROP_NO_BACKEND;
	}
	if (affine == AFFINITY_FOUND)
		return VERDICT_TRANSLATE_AFFINITY;
	if (record->affinity)
		affinity_remember(choice, &request->client, record->service);
	return VERDICT_TRANSLATE_BALANCE;
}

static __always_inline enum verdict sock_by_record(void *ctx, const struct sock_request *request,
						   const struct record *record, struct sock_answer *answer)
{
	const struct side *side = &record->sides[SIDE_INTERNAL];

	if (node_drains())
		return VERDICT_PASS_DRAINING;
	if (record->flags & RECORD_SOURCE_RANGES && !request->sourced)
		return VERDICT_PASS_NOT_SERVICE; /* the pod's device will know it */
	answer->service = record->service;
	trace_frontend(record, SIDE_INTERNAL);
	if (!source_allowed(record, &request->source))
		return VERDICT_DROP_SOURCE_RANGE;
	if (side->action == ACTION_REJECT)
		return reject_verdict(side->reason);
	if (side->action == ACTION_DROP)
		return VERDICT_DROP_NO_LOCAL_ENDPOINTS;
	return sock_balance(ctx, request, record, answer);
}

static __always_inline bool sock_may_serve(const struct address *address, __be16 port)
{
	return known_destination(address, port, filter_seed()) & KNOWN_FRONTEND || service_cidr_has(address);
}

/* By the record in force. What stands for loopback is there for NodePorts alone. */
static __always_inline enum verdict sock_look_up(void *ctx, const struct sock_request *request,
						 const struct frontend_key *key, bool loopback,
						 struct sock_answer *answer)
{
	const struct record *record = frontend_find(key);

	if (record && !(record->flags & RECORD_ADDRESS) && (!loopback || record->kind == KIND_NODE_PORT))
		return sock_by_record(ctx, request, record, answer);
	return loopback ? VERDICT_CONTINUE : refuse_unknown(&key->address);
}

static __always_inline enum verdict sock_new(void *ctx, const struct sock_request *request,
					     const struct settings *settings, struct sock_answer *answer)
{
	struct frontend_key key = request->key;
	bool loopback = is_loopback(&key.address);
	enum verdict verdict;

	if (loopback) {
		if (!request->host)
			return VERDICT_PASS_NOT_SERVICE;
		sock_resolve(&key, settings);
		if (address_zero(&key.address))
			return VERDICT_PASS_NOT_SERVICE;
	}
	if (!sock_may_serve(&key.address, key.port))
		return VERDICT_PASS_NOT_SERVICE;
	verdict = sock_look_up(ctx, request, &key, loopback, answer);
	if (verdict == VERDICT_DROP_NO_BACKEND) /* its last backend may have gone since the record was found */
		verdict = sock_look_up(ctx, request, &key, loopback, answer);
	return verdict == VERDICT_CONTINUE ? VERDICT_PASS_NOT_SERVICE : verdict;
}

/* Writes what it decides into the counters of the service, and nothing else but session affinity. */
static __always_inline enum verdict sock_decide(void *ctx, const struct sock_request *request,
						struct sock_answer *answer)
{
	const struct settings *settings = settings_get();
	enum verdict verdict;
	bool lost = false;

	if (!settings || settings->disabled)
		return VERDICT_PASS_DISABLED;
	if (request->key.protocol != IPPROTO_TCP && request->key.protocol != IPPROTO_UDP)
		return VERDICT_PASS_PROTOCOL;
	if (sock_remembered(ctx, request, answer, &lost))
		return VERDICT_TRANSLATE_ESTABLISHED;
	verdict = sock_new(ctx, request, settings, answer);
	if (verdict == VERDICT_TRANSLATE_BALANCE && lost)
		verdict = VERDICT_TRANSLATE_REHOME;
	if (verdict_is_translate(verdict))
		count_connection(answer->service, answer->choice.backend);
	else if (answer->service)
		count_refused(answer->service, verdict);
	return verdict;
}

/* The system calls that hooks see: what the kernel says of a socket and of the address that it names. An IPv4-mapped destination of an
 * IPv6 socket comes with IPv6's hooks, but for datagrams, which come with IPv4's. */

static __always_inline void sock_name_read(const struct bpf_sock_addr *ctx, bool six, struct address *address)
{
	if (!six) {
		address_from4(address, ctx->user_ip4);
		return;
	}
	address->words[0] = ctx->user_ip6[0];
	address->words[1] = ctx->user_ip6[1];
	address->words[2] = ctx->user_ip6[2];
	address->words[3] = ctx->user_ip6[3];
}

static __always_inline void sock_name_write(struct bpf_sock_addr *ctx, bool six, const struct address *address,
					    __be16 port)
{
	ctx->user_port = port;
	if (!six) {
		ctx->user_ip4 = address_to4(address);
		return;
	}
	ctx->user_ip6[0] = address->words[0];
	ctx->user_ip6[1] = address->words[1];
	ctx->user_ip6[2] = address->words[2];
	ctx->user_ip6[3] = address->words[3];
}

/* The address that the socket is bound to; zero: none. */
static __always_inline void sock_bound(const struct bpf_sock *sk, bool six, struct address *address)
{
	if (!six) {
		if (sk->src_ip4)
			address_from4(address, sk->src_ip4);
		return;
	}
	address->words[0] = sk->src_ip6[0];
	address->words[1] = sk->src_ip6[1];
	address->words[2] = sk->src_ip6[2];
	address->words[3] = sk->src_ip6[3];
}

static __always_inline bool sock_of_host(struct bpf_sock_addr *ctx, const struct settings *settings)
{
	return bpf_get_netns_cookie(ctx) == settings->netns;
}

/* Who stands for the client where the socket does not say: the node, or for session affinity a pod's network namespace. */
static __always_inline void sock_client(struct bpf_sock_addr *ctx, const struct settings *settings,
					struct sock_request *request)
{
	const struct address *node = address_family(&request->key.address) == 4 ? &settings->node4 : &settings->node6;

	request->sourced = request->host || !address_zero(&request->source);
	if (request->host && address_zero(&request->source))
		request->source = *node;
	request->client = *node;
	if (request->host && !address_zero(node))
		return;
	request->client.longs[0] = 0;
	request->client.longs[1] = bpf_get_netns_cookie(ctx);
}

/* False: not a socket that is served here. */
static __always_inline bool sock_ask(struct bpf_sock_addr *ctx, bool six, struct sock_request *request)
{
	const struct settings *settings = settings_get();
	struct bpf_sock *sk = ctx->sk;

	if (!settings || !sk)
		return false;
	request->host = sock_of_host(ctx, settings);
	if (!request->host && !every_namespace)
		return false;
	request->cookie = bpf_get_socket_cookie(ctx);
	request->key.port = ctx->user_port;
	request->key.protocol = ctx->protocol;
	sock_name_read(ctx, six, &request->key.address);
	sock_bound(sk, six, &request->source);
	sock_client(ctx, settings, request);
	return true;
}

/* Tells the agent of calls that failed. */

static __always_inline void sock_event(const struct sock_request *request, enum verdict verdict)
{
	struct event *event;

	if (!event_allowed())
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return;
	__builtin_memset(event, 0, sizeof(*event));
	event->time = bpf_ktime_get_boot_ns();
	event->kind = verdict_is_drop(verdict) ? EVENT_DROP : EVENT_REJECT;
	event->verdict = verdict;
	event->hook = HOOK_SOCK;
	event->source = request->source;
	event->destination = request->key.address;
	event->destination_port = request->key.port;
	event->protocol = request->key.protocol;
	bpf_ringbuf_submit(event, 0);
}

/* What the hooks return. */
enum sock_call {
	SOCK_CALL_FAILS = 0, /* with the error that was set */
	SOCK_CALL_GOES_ON = 1,
};

static __always_inline bool sock_fails(enum verdict verdict)
{
	return verdict_is_reject(verdict) || verdict_is_drop(verdict);
}

/* The last line of every call that is decided: counts it once. */
static __always_inline int sock_finish(const struct sock_request *request, enum verdict verdict)
{
	count_verdict(HOOK_SOCK, verdict, 0);
	if (!sock_fails(verdict))
		return SOCK_CALL_GOES_ON;
	sock_event(request, verdict);
	bpf_set_retval(verdict_is_reject(verdict) ? -ECONNREFUSED : -EHOSTUNREACH);
	return SOCK_CALL_FAILS;
}

/* What the socket sends goes to the address that it names. */
static __always_inline void sock_pass(const struct sock_request *request)
{
	if (request->key.protocol == IPPROTO_UDP &&
	    known_backend(&request->key.address, request->key.port, filter_seed()))
		sock_forget(request->cookie, &request->key.address, request->key.port);
}

static __always_inline int sock_connect(struct bpf_sock_addr *ctx, bool six)
{
	struct sock_request request = {};
	struct sock_answer answer = {};
	struct bpf_sock *sk = ctx->sk;
	enum verdict verdict;

	if (!sk || !sock_ask(ctx, six, &request))
		return SOCK_CALL_GOES_ON;
	verdict = sock_decide(ctx, &request, &answer);
	if (verdict_is_translate(verdict)) {
		peer_remember(sk, &request.key, &answer.choice, answer.service);
		sock_name_write(ctx, six, &answer.choice.address, answer.choice.port);
	} else if (!sock_fails(verdict)) { /* else the socket stays as it is, connected or not */
		bpf_sk_storage_delete(&peers, sk);
		sock_pass(&request);
	}
	return sock_finish(&request, verdict);
}

/* Whether the backend's answers are shown as the frontend's: not if the socket has asked this backend by another frontend since, or the
 * entry was evicted. */
static __always_inline bool sock_answers(const struct sock_request *request, const struct choice *choice)
{
	const struct sock_value *value = sock_answered(request->cookie, &choice->address, choice->port);

	return value && value->port == request->key.port && address_equal(&value->address, &request->key.address);
}

/* Whom the socket is connected to by the frontend that a datagram of it names, NULL: it is not. The kernel takes answers from nobody else then. */
static __always_inline const struct sock_peer *sock_connected(struct bpf_sock_addr *ctx, bool six,
							      const struct sock_request *request)
{
	struct bpf_sock *sk = ctx->sk;
	const struct sock_peer *peer;
	struct address to = {};

	if (!sk || !sk->dst_port)
		return NULL;
	if (!six) {
		address_from4(&to, sk->dst_ip4);
	} else {
		to.words[0] = sk->dst_ip6[0];
		to.words[1] = sk->dst_ip6[1];
		to.words[2] = sk->dst_ip6[2];
		to.words[3] = sk->dst_ip6[3];
	}
	peer = peer_find(sk, &to, sk->dst_port);
	return peer && peer->frontend_port == request->key.port && address_equal(&peer->frontend, &request->key.address)
		       ? peer
		       : NULL;
}

/* A datagram that names its destination. */
static __always_inline int sock_send(struct bpf_sock_addr *ctx, bool six)
{
	struct sock_request request = { .keeps = true };
	struct sock_answer answer = {};
	struct choice *choice = &answer.choice;
	const struct sock_peer *peer;
	enum verdict verdict;

	if (!sock_ask(ctx, six, &request))
		return SOCK_CALL_GOES_ON;
	peer = sock_connected(ctx, six, &request);
	if (peer) {
		sock_name_write(ctx, six, &peer->address, peer->port);
		return sock_finish(&request, VERDICT_TRANSLATE_ESTABLISHED);
	}
	verdict = sock_decide(ctx, &request, &answer);
	if (verdict_is_translate(verdict)) {
		if (verdict != VERDICT_TRANSLATE_ESTABLISHED || !sock_answers(&request, choice))
			sock_remember(request.cookie, &request.key, choice, answer.service);
		sock_name_write(ctx, six, &choice->address, choice->port);
	} else {
		sock_pass(&request);
	}
	return sock_finish(&request, verdict);
}

/* A datagram that came, of a call that asks from whom. */
static __always_inline int sock_receive(struct bpf_sock_addr *ctx, bool six)
{
	const struct settings *settings = settings_get();
	const struct sock_value *value;
	struct bpf_sock *sk = ctx->sk;
	const struct sock_peer *peer;
	struct address from = {};

	if (!sk || !settings || (!every_namespace && !sock_of_host(ctx, settings)))
		return SOCK_CALL_GOES_ON;
	sock_name_read(ctx, six, &from);
	peer = peer_find(sk, &from, ctx->user_port);
	if (peer) {
		sock_name_write(ctx, six, &peer->frontend, peer->frontend_port);
		return SOCK_CALL_GOES_ON;
	}
	value = sock_answered(bpf_get_socket_cookie(ctx), &from, ctx->user_port);
	if (value)
		sock_name_write(ctx, six, &value->address, value->port);
	return SOCK_CALL_GOES_ON;
}

static __always_inline int sock_peer_name(struct bpf_sock_addr *ctx, bool six)
{
	struct bpf_sock *sk = ctx->sk;
	const struct sock_peer *peer;
	struct address to = {};

	if (!sk)
		return SOCK_CALL_GOES_ON;
	sock_name_read(ctx, six, &to);
	peer = peer_find(sk, &to, ctx->user_port);
	if (peer)
		sock_name_write(ctx, six, &peer->frontend, peer->frontend_port);
	return SOCK_CALL_GOES_ON;
}

/* nearlb trace and tests: a made packet stands for the call of a socket of the host: its source for the socket, its destination for
 * the one named. Nothing is attached. */

static __always_inline void sock_trace(const struct sock_request *request, const struct sock_answer *answer)
{
	struct trace_result *result = trace_get();

	if (!result)
		return;
	result->backend_found = 1;
	result->backend = answer->choice.backend;
	result->source = request->source;
}

static __always_inline enum verdict sock_explain_packet(struct __sk_buff *skb)
{
	const struct settings *settings = settings_get();
	struct sock_request request = { .host = true, .sourced = true };
	struct sock_answer answer = {};
	struct packet packet = {};
	enum verdict verdict = parse_full(skb, &packet);

	if (!settings || verdict != VERDICT_CONTINUE)
		return verdict;
	frontend_key_of(&request.key, &packet);
	request.cookie = maglev_hash(&packet.source, packet.source_port, &request.key);
	request.source = packet.source;
	request.client = packet.family == 4 ? settings->node4 : settings->node6;
	if (address_zero(&request.client))
		request.client = packet.source;
	verdict = sock_decide(skb, &request, &answer);
	if (verdict_is_translate(verdict))
		sock_trace(&request, &answer);
	return verdict;
}

/* Lists the connected UDP sockets of a network namespace that have a peer: a BPF iterator, which the agent reads as a file. It walks all UDP
 * sockets of the namespace: some kernels refuse the iterator over the storage itself. */

/* The kernel's, as far as they are used here. */
struct seq_file;
struct udp_sock;
struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

static __always_inline void sock_list(struct bpf_iter__udp *ctx)
{
	struct udp_sock *sk = ctx->udp_sk;
	const struct sock_peer *peer;
	struct sock_row row = {};

	if (!sk)
		return;
	peer = bpf_sk_storage_get(&peers, sk, NULL, 0);
	if (!peer || peer->protocol != IPPROTO_UDP)
		return;
	row.cookie = bpf_get_socket_cookie(sk);
	row.peer = *peer;
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
}
