/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The port of this node that a server sees in place of a client off the node and its port. */
#pragma once

#include "flow_insert.h"
#include "settings.h"

/* Ports of the range that one run of the slow path looks at; it begins anew TRIES_MAX times. A range of so many ports is used
 * to its last one, of a larger one a hundredth may be left when the first connection finds none. Without a limit, a
 * flood towards a server whose ports are all taken would cost far more than it does. */
#define SNAT_PORTS_TRIED 32

#define SNAT_STRIDES 8

/* Larger than any range and prime: each steps through all of it. */
static const __u32 snat_strides[SNAT_STRIDES] = { 65537, 72019, 79031, 86501, 95003, 104003, 113011, 124001 };

/* Candidates among which a connection that was forgotten in part looks for the port that its server knows: few, as whoever sends
 * a packet of no connection has them looked at. */
#define SNAT_PORTS_OWN 8

/* Worst first. */
enum snat_port {
	SNAT_PORT_TAKEN = 0,
	SNAT_PORT_FREE,
	SNAT_PORT_OWN, /* an earlier life of the connection left its second entry there */
};

/* A connection has the port towards the server, as far as can be seen before it is claimed. */
static __always_inline bool snat_has_port(const struct flow *flow, const struct insertion *in, __be16 port)
{
	return flow_wire_port(flow) == port && (flow_word(flow) & FLOW_PHASE_MASK) >= FLOW_CLAIMED &&
	       flow->protocol == in->flow.protocol && flow_same_source(flow, &in->flow) &&
	       flow_leads_to(flow, &in->to.destination, in->to.destination_port) && !flow_expired(flow, flow_now());
}

/* enum snat_port. A function of its own so that the verifier goes through it once. */
__noinline int snat_port_state(const struct insertion *in, __u32 port)
{
	const struct settings *settings = settings_get();
	struct flow_place place;

	if (!in || !settings ||
	    !flow_find_place(&place, snat_address(settings, &in->flow), port, in->flow.protocol, settings->seed))
		return SNAT_PORT_TAKEN;
	for (__u32 way = 0; way < FLOW_WAYS; way++) {
		const struct flow *flow = flow_at(&place, way);

		if (snat_has_port(flow, in, port))
			return flow->other_port == in->flow.port && flow_same_ends(flow, &in->flow) ? SNAT_PORT_OWN
												    : SNAT_PORT_TAKEN;
	}
	return SNAT_PORT_FREE;
}

/* Where a connection begins to look for a port: the same place in each of its lives, so that it keeps its port where it was
 * forgotten. */
static __always_inline __u64 snat_hash(const struct flow *flow, __u64 seed)
{
	return flow_hash(&flow->client, flow->port, flow->protocol,
			 flow_hash(&flow->frontend, flow->frontend_port, flow->protocol, seed));
}

/* The number of the first candidate from this one on whose port, put into in, is as good as wanted (enum snat_port); -1: all
 * were tried, -2: so many that it is another run's turn. A function of its own so that the verifier goes through it once. */
__noinline int snat_find_port(struct insertion *in, __u32 candidate, int wanted)
{
	const struct settings *settings = settings_get();
	__u32 count = settings ? settings->snat_count : 0;
	__u32 stride;
	__u64 hash;

	if (!in || !count)
		return -1;
	hash = snat_hash(&in->flow, settings->seed);
	stride = snat_strides[hash & (SNAT_STRIDES - 1)];
	for (int i = 0; i < (wanted == SNAT_PORT_OWN ? SNAT_PORTS_OWN : SNAT_PORTS_TRIED); i++) {
		__u32 number = candidate + i;
		__be16 port;

		if (number >= count)
			return -1;
		port = bpf_htons(settings->snat_first + ((__u32)(hash >> 32) % count + number * stride) % count);
		if (snat_port_state(in, port) >= wanted) {
			in->flow.other_port = port;
			return number;
		}
	}
	return -2;
}
