/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers to connections of this node's own, at an address and a port of the node that is a frontend's as well. A masquerade may take the port
 * of a NodePort towards somebody (fully-random: any from 1024 on), and so may a socket of the host. What comes back is no client's: netfilter
 * knows it before a rule of kube-proxy's is asked, and here the packet passes before it makes a flow or is refused. */
#pragma once

#include "conntrack.h"
#include "packet.h"
#include "policy.h"
#include "snat.h"

/* The node has the address itself, and connections of its own there. */
static __always_inline bool answered_at(const struct record *record)
{
	return record->kind == KIND_NODE_PORT || record->flags & RECORD_ON_HOST;
}

/* The packet to the frontend may be such an answer. A SYN is a client's; nobody can be asked about SCTP. */
static __always_inline bool answered_may_be(const struct record *record, const struct packet *packet)
{
	if (!answered_at(record) || packet->protocol == IPPROTO_SCTP)
		return false;
	return packet->protocol == IPPROTO_UDP || !opens_connection(packet);
}

/* Not 0: it is one. No client sends a SYN-ACK. A function of its own for the sake of the stack, as the next one. */
__noinline int answered(struct __sk_buff *skb, const struct packet *packet)
{
	struct ends ends = {};

	if (!packet)
		return false;
	if (packet->protocol == IPPROTO_TCP && answers_syn(packet))
		return true;
	ends_of(&ends, packet);
	return snat_socket_has(skb, &ends, SOCKET_CONNECTED) || conntrack_knows(skb, &ends) == CONNTRACK_ANSWERED;
}

/* The same of a datagram: at XDP nothing else is decided that may be an answer. */
__noinline int answered_xdp(struct xdp_md *ctx, const struct packet *packet)
{
	struct ends ends = {};

	if (!packet)
		return false;
	ends_of(&ends, packet);
	return snat_socket_has_xdp(ctx, &ends, SOCKET_CONNECTED) ||
	       conntrack_knows_xdp(ctx, &ends) == CONNTRACK_ANSWERED;
}
