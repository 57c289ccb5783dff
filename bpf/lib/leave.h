/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets to a frontend, without a flow, that are left to kube-proxy: of its own connections, and while the node drains of all new
 * ones. Beside it each connection stays with the one that has it, whichever takes the new ones. */
#pragma once

#include "conntrack.h"
#include "fragment.h"
#include "settings.h"

/* Somebody else translates the connection. Connection tracking cannot be asked for SCTP: what is not new, and has no flow, is not
 * ours. */
static __always_inline bool leave_other(struct __sk_buff *skb, const struct settings *settings,
					const struct packet *packet)
{
	__u32 wanted = opens_connection(packet) || packet->protocol == IPPROTO_SCTP ? YIELD_NEW : YIELD_OLD;

	if (!(settings->yield & wanted) && !settings->draining)
		return false;
	return packet->protocol == IPPROTO_SCTP ? !opens_connection(packet) : conntrack_translates(skb, packet);
}

/* A new connection, or one of which nobody can say whose it is. */
static __always_inline bool leave_new(const struct settings *settings, const struct packet *packet)
{
	return settings->draining && (opens_connection(packet) || !conntrack_there());
}

/* VERDICT_CONTINUE: it is for us. A function of its own for the sake of the stack. */
__noinline int leave(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = settings_get();
	enum verdict verdict = VERDICT_CONTINUE;

	if (!settings || !packet)
		return VERDICT_CONTINUE;
	if (leave_other(skb, settings, packet))
		verdict = VERDICT_PASS_OTHER_NAT;
	else if (leave_new(settings, packet))
		verdict = VERDICT_PASS_DRAINING;
	if (verdict != VERDICT_CONTINUE)
		fragment_remember(packet);
	return verdict;
}
