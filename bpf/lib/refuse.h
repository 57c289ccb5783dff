/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets to service addresses that no frontend takes. While the node drains nothing is refused. */
#pragma once

#include "filter.h"
#include "frontend.h"
#include "settings.h"

/* Not 0: this is an address of services, or one that they will have. A function of its own so that the verifier goes
 * through it once. */
__noinline int is_service_address(const struct address *address)
{
	if (!address || node_drains())
		return false;
	return (known_frontend(address) && frontend_find_address(address)) || service_cidr_has(address);
}

/* Whatever the protocol, as kube-proxy in nftables mode. VERDICT_CONTINUE: not refused. A function of its own so that
 * the verifier goes through it once. */
__noinline int refuse_unknown(const struct address *address)
{
	const struct record *record;

	if (!address || node_drains())
		return VERDICT_CONTINUE;
	record = known_frontend(address) ? frontend_find_address(address) : NULL;
	if (record)
		return record->kind == KIND_CLUSTER_IP ? VERDICT_REJECT_UNKNOWN_PORT : VERDICT_CONTINUE;
	return service_cidr_has(address) ? VERDICT_DROP_UNALLOCATED : VERDICT_CONTINUE;
}
