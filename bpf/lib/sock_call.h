/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The system calls of sockets that hooks see. */
#pragma once

#include <asm-generic/errno.h>

#include "sock_context.h"
#include "sock_event.h"

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
	verdict = sock_decide(&request, &answer);
	if (verdict_is_translate(verdict)) {
		peer_remember(sk, &request.key, &answer.choice, answer.service);
		sock_name_write(ctx, six, &answer.choice.address, answer.choice.port);
	} else {
		bpf_sk_storage_delete(&peers, sk);
	}
	return sock_finish(&request, verdict);
}

/* Answers of the backend will be taken for the frontend's; not so once it was asked through another one, or forgotten. */
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
	verdict = sock_decide(&request, &answer);
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
