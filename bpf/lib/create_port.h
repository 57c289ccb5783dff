/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The source port that a server sees where it is not the client's own, though the address is. */
#pragma once

#include "flow_insert.h"
#include "work.h"

/* A source port to try where the client's own is taken, or does not tell where the flow is. Not a well-known one, never the client's;
 * another in each try, the same in each life of the connection. */
static __always_inline __be16 create_port(const struct flow *flow, __u64 seed, __u32 try)
{
	__u32 hash = hash_next((__u32)(flow_own_pair_hash(flow, seed) >> 32) + try);
	__be16 port = bpf_htons(1024 + hash % (65536 - 1024));

	return port == flow->port ? port ^ bpf_htons(1) : port;
}

/* Not 0: this is the second entry of a flow that is made again. A function of its own so that the verifier goes through it once. */
__noinline int create_is_second(const struct insertion *in, __u32 port, __u32 at)
{
	const struct flow *flow = flow_entry(at);

	return flow && in && (flow_word(flow) & FLOW_PHASE_MASK) == FLOW_LIVE && flow->flags & FLOW_ALIAS &&
	       flow->port == port && flow->other_port == in->flow.port && flow->protocol == in->flow.protocol &&
	       flow_same_ends(flow, &in->flow) && !flow_expired(flow, flow_now());
}

#define CREATE_PORTS_KNOWN 2 /* that a connection may have got: hardly one of them is taken */

/* Not 0: a flow that is made again has its second entry under this port. A function of its own so that the verifier goes through it once. */
__noinline int create_has_second(const struct insertion *in, __u32 port)
{
	struct flow_cursor cursor = {};

	if (!in)
		return false;
	flow_search_begin(&cursor, flow_hash(&in->flow.client, port, in->flow.protocol, filter_seed()),
			  FLOW_BLOCKS_OWN);
	for (int i = 0; i < FLOW_CANDIDATES; i++) {
		int at = flow_next(&cursor);

		if (at < 0)
			break;
		if (create_is_second(in, port, at))
			return true;
	}
	return false;
}

/* The port that the server sees of a flow whose first entry was evicted, 0: its own, as far as can be seen. */
static __always_inline __be16 create_port_known(const struct insertion *in)
{
	for (__u32 try = 0; try < CREATE_PORTS_KNOWN; try++) {
		__be16 port = create_port(&in->flow, filter_seed(), try);

		if (create_has_second(in, port))
			return port;
	}
	return 0;
}

/* A connection that goes on does so from the port that its server knows. */
static __always_inline __be16 create_port_again(const struct work *work)
{
	if (work->found.port)
		return work->found.port;
	return work->found.at != FLOW_NONE || !flow_any_spilled() || work->packet.tcp_flags & TCP_SYN
		       ? 0
		       : create_port_known(&work->in);
}
