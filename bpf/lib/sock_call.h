/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The system calls of sockets that hooks see: what the kernel says of a socket and of the address that it names. An IPv4-mapped
 * destination of an IPv6 socket comes with IPv6's hooks, but for datagrams, which come with IPv4's. */
#pragma once

#include <asm-generic/errno.h>

#include "maps.h"
#include "observe.h"
#include "packet.h"
#include "parse.h"
#include "settings.h"
#include "sock.h"

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

/* The last line of every call that is decided: counts it once. */
static __always_inline int sock_finish(const struct sock_request *request, enum verdict verdict)
{
	count_verdict(HOOK_SOCK, verdict, 0);
	if (!verdict_is_reject(verdict) && !verdict_is_drop(verdict))
		return SOCK_CALL_GOES_ON;
	sock_event(request, verdict);
	bpf_set_retval(verdict_is_reject(verdict) ? -ECONNREFUSED : -EHOSTUNREACH);
	return SOCK_CALL_FAILS;
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
	} else {
		bpf_sk_storage_delete(&peers, sk);
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

/* A datagram that names its destination. */
static __always_inline int sock_send(struct bpf_sock_addr *ctx, bool six)
{
	struct sock_request request = { .keeps = true };
	struct sock_answer answer = {};
	struct choice *choice = &answer.choice;
	enum verdict verdict;

	if (!sock_ask(ctx, six, &request))
		return SOCK_CALL_GOES_ON;
	verdict = sock_decide(ctx, &request, &answer);
	if (verdict_is_translate(verdict)) {
		if (verdict != VERDICT_TRANSLATE_ESTABLISHED || !sock_answers(&request, choice))
			sock_remember(request.cookie, &request.key, choice, answer.service);
		sock_name_write(ctx, six, &choice->address, choice->port);
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

/* Lists the connected UDP sockets that have a peer, of all network namespaces: a BPF iterator, which the agent reads as a file. */

/* The kernel's, as far as they are used here. */
struct seq_file;
struct sock;
struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	struct sock *sk;
	struct sock_peer *peer;
};

static __always_inline void sock_list(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock_peer *peer = ctx->peer;
	struct sock *sk = ctx->sk;
	struct sock_row row = {};

	if (!sk || !peer || peer->protocol != IPPROTO_UDP)
		return;
	row.cookie = bpf_get_socket_cookie(sk);
	row.peer = *peer;
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
}
