/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is remembered of the node's own sockets. Of a connected one: its peer, as long as the socket lives (getpeername, and
 * the agent, which ends sockets whose backend is gone). Of one that sends datagrams here and there: each frontend's backend,
 * both ways round. */
#pragma once

#include "backend.h"
#include "frontend.h"

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
	if (!sock_value_serves(value, backend)) {
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
