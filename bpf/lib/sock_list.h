/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lists the connected UDP sockets that have a peer, of all network namespaces: a BPF iterator, which the agent reads as a file. */
#pragma once

#include "maps.h"
#include "packet.h"

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
