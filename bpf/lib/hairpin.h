/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A packet that goes back through the device it came from. */
#pragma once

#include "packet.h"

/* Whoever sent it gets it as sent to its own MAC address, where the device knows any. */
static __always_inline bool swap_macs(struct __sk_buff *skb)
{
	struct ethhdr *eth = packet_at(skb, 0, sizeof(*eth));
	__u16 *words = (__u16 *)eth;
	__u16 saved;

	if (!link_header)
		return true;
	if (!eth)
		return false;
	for (int i = 0; i < 3; i++) {
		saved = words[i];
		words[i] = words[i + 3];
		words[i + 3] = saved;
	}
	return true;
}
