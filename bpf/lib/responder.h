/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This node's responder answers names: a process of the host, and the backend of state BACKEND_RESPONDER. It is asked while its heart
 * beats and a socket takes the question: a process that was killed seems to live for a while yet, but has no socket. */
#pragma once

#include "config.h"
#include "packet.h"
#include "settings.h"

/* Its heart beats. A function of its own so that the verifier goes through it once. */
__noinline int responder_alive(void)
{
	const struct settings *settings = settings_get();
	__u64 beat = settings ? *(volatile const __u64 *)&settings->responder : 0;

	return beat && bpf_ktime_get_ns() - beat < responder_silence;
}

static __always_inline bool responder_socket(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u8 protocol)
{
	struct bpf_sock *sk;

	if (protocol == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_skc_lookup_tcp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* A socket takes what comes from anybody for this address. ctx is the program's, and of the host's network namespace. */
static __always_inline bool responder_hears(void *ctx, const struct address *address, __be16 port, __u8 protocol)
{
	struct bpf_sock_tuple tuple = {};

	if (address_family(address) == 4) {
		tuple.ipv4.daddr = address_to4(address);
		tuple.ipv4.dport = port;
		return responder_socket(ctx, &tuple, sizeof(tuple.ipv4), protocol);
	}
	__builtin_memcpy(tuple.ipv6.daddr, address, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.dport = port;
	return responder_socket(ctx, &tuple, sizeof(tuple.ipv6), protocol);
}

/* The same for a packet: not 0 if so. A function of its own for the sake of the stack. */
__noinline int responder_listens(struct __sk_buff *skb, const struct address *address, __u32 port, __u32 protocol)
{
	return address && responder_hears(skb, address, port, protocol);
}
