/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Later fragments have no ports: they follow the first, which leaves its ports here. */
#pragma once

#include "config.h"
#include "maps.h"
#include "packet.h"

#define FRAGMENT_SECONDS 30 /* as long as the kernel waits for the rest of a packet */

static __always_inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	key->source = packet->source;
	key->destination = packet->destination;
	key->id = packet->fragment_id;
	key->protocol = packet->protocol;
	key->hook = packet->hook;
	key->pad[0] = 0;
	key->pad[1] = 0;
}

/* Of a first fragment that is translated. The packet still as it came. A function of its own for the sake of the stack. */
__noinline int fragment_remember(const struct packet *packet)
{
	struct fragment_key key;
	struct fragment_value value;

	if (!packet || packet->fragment != FRAGMENT_FIRST)
		return 0;
	fragment_key_of(&key, packet);
	value.source_port = packet->source_port;
	value.destination_port = packet->destination_port;
	value.touched = bpf_jiffies64();
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
	return 0;
}

/* Gives a later fragment the ports of its first. Not 0: done. A function of its own for the sake of the stack. */
__noinline int fragment_recall(struct packet *packet)
{
	struct fragment_key key;
	const struct fragment_value *value;

	if (!packet)
		return false;
	fragment_key_of(&key, packet);
	value = bpf_map_lookup_elem(&fragments, &key);
	if (!value || (__u32)bpf_jiffies64() - value->touched > FRAGMENT_SECONDS * jiffies_per_second)
		return false;
	packet->source_port = value->source_port;
	packet->destination_port = value->destination_port;
	packet->tcp_flags = TCP_ACK;
	return true;
}
