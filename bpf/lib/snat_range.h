/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which packets from the network are replies to SNAT: they come from a backend to a port that is ours. */
#pragma once

#include "filter.h"
#include "packet.h"
#include "settings.h"

static __always_inline bool in_snat_range(const struct settings *settings, __be16 port)
{
	return (__u16)(bpf_ntohs(port) - settings->snat_first) < settings->snat_count;
}

/* Perhaps: the slow path also asks whether it goes to an address that SNAT uses, and opens no connection. */
static __always_inline bool is_snat_reply(const struct settings *settings, const struct packet *packet)
{
	return in_snat_range(settings, packet->destination_port) && known_backend(&packet->source, packet->source_port);
}
