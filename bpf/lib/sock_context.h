/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the kernel says of a socket and of the address that it names. An IPv4-mapped destination of an IPv6 socket comes with
 * IPv6's hooks, but for datagrams, which come with IPv4's. */
#pragma once

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
