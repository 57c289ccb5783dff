/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The address that a backend takes for its client's. */
#pragma once

#include "flow.h"
#include "settings.h"

static __always_inline const struct address *flow_source(const struct settings *settings, const struct flow *flow,
							 __u8 family)
{
	if (flow->flags & FLOW_HAIRPIN)
		return hairpin_address(settings, family);
	if (flow->flags & FLOW_SNAT)
		return snat_address(settings, flow);
	return &flow->client;
}
