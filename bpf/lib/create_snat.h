/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The client's door at the network: new flows to servers on other nodes, which see an address and a port of this one. */
#pragma once

#include "conntrack.h"
#include "create_entries.h"
#include "snat_port.h"
#include "snat_range.h"
#include "snat_source.h"
#include "tail.h"

#define SNAT_EXHAUSTED (1u << 31) /* in CB_PORT */

/* The port that the server knows, of a connection that was forgotten in part. The range may have changed since. */
static __always_inline bool create_snat_port_again(const struct work *work, struct insertion *in)
{
	if (work->found.port && in_snat_range(work->settings, work->found.port)) {
		in->flow.other_port = work->found.port;
		return true;
	}
	return !opens_connection(&work->packet) && snat_find_port(in, 0, SNAT_PORT_OWN) >= 0;
}

static __always_inline enum insert create_snat_port(struct __sk_buff *skb, const struct work *work,
						    struct insertion *in)
{
	__u32 next = skb->cb[CB_PORT];
	int candidate;

	if (!next && create_snat_port_again(work, in))
		return INSERT_DONE;
	next = next ? next - 1 : 0;
	candidate = snat_find_port(in, next, SNAT_PORT_FREE);
	if (candidate >= 0)
		skb->cb[CB_PORT] = candidate + 1;
	else
		skb->cb[CB_PORT] = candidate == -1 ? SNAT_EXHAUSTED : next + SNAT_PORTS_TRIED;
	return candidate >= 0 ? INSERT_DONE : INSERT_PORT;
}

/* Not 0: kube-proxy's masquerade has the port towards this server. A function of its own for the sake of the stack. */
__noinline int create_snat_taken(struct __sk_buff *skb, const struct insertion *in)
{
	const struct settings *settings = settings_get();
	struct ends ends = {};

	if (!settings || !in || !(settings->yield & YIELD_NEW))
		return false;
	ends.source = in->to.destination;
	ends.source_port = in->to.destination_port;
	ends.destination = *snat_address(settings, &in->flow);
	ends.destination_port = in->flow.other_port;
	ends.protocol = in->flow.protocol;
	return conntrack_replies(skb, &ends);
}

/* By SNAT: from the port that the server knows already, else from one that seems free. */
static __always_inline enum verdict create_snat(struct __sk_buff *skb, struct work *work, struct insertion *in)
{
	enum insert result = create_snat_port(skb, work, in);

	if (result == INSERT_DONE && opens_connection(&work->packet) && create_snat_taken(skb, in))
		result = INSERT_PORT;
	if (result == INSERT_DONE)
		result = create_entries(in, work);
	if (result == INSERT_DONE)
		return VERDICT_CONTINUE;
	if (result == INSERT_FULL)
		return VERDICT_DROP_FLOWS_FULL;
	if (skb->cb[CB_PORT] == SNAT_EXHAUSTED)
		return VERDICT_DROP_PORTS_FULL;
	if (result == INSERT_PORT)
		skb->cb[CB_PORT]++;
	return create_again(work, result);
}

/* A client off the node: a backend on another one sees an address of this node, one that is here the client's own. */
static __always_inline enum verdict create_external(struct __sk_buff *skb, struct work *work,
						    const struct choice *choice)
{
	struct flow *flow = &work->in.flow;
	int source;

	if (backend_is_local(choice->backend))
		return VERDICT_CONTINUE;
	source = snat_source(skb, &work->packet, &choice->address);
	if (source < 0)
		return -source;
	if (source > 0 && flow->protocol == IPPROTO_SCTP)
		return VERDICT_DROP_SCTP_PORT;
	flow->source = source;
	flow->flags = source > 0 ? FLOW_SNAT : 0;
	return VERDICT_CONTINUE;
}
