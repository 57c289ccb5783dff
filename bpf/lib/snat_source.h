/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The address of this node that a server on another one sees in place of a client off the node: the one that the node's own
 * packets to that server would have. */
#pragma once

#include "fib.h"

/* Index in sources, 0 none. */
static __always_inline __u32 snat_index(const struct settings *settings, const struct address *address)
{
	if (address_zero(address))
		return 0; /* what free elements hold */
	for (__u32 i = 1; i < SOURCES_MAX; i++) {
		if (address_equal(&settings->sources[i], address))
			return i;
	}
	return 0;
}

/* Not 0: SNAT may use this address. A function of its own so that the verifier goes through it once. */
__noinline int snat_source_index(const struct address *address)
{
	const struct settings *settings = settings_get();

	return settings && address ? snat_index(settings, address) : 0;
}

static __always_inline int snat_found(__u32 index)
{
	return index ? (int)index : -VERDICT_DROP_NO_SOURCE;
}

/* By the route, or as the device is told where that names no address that SNAT may use. 0: a device that is none of the
 * network's leads to pods of this node. Below 0: a verdict, negative. */
static __always_inline int snat_by_route(const struct settings *settings, const struct bpf_fib_lookup *fib, __u8 family)
{
	__u32 ifindex = fib->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct address address = {};
	__u32 index = 0;

	if (!device)
		return 0;
	if (fib_source) {
		if (family == 4)
			address_from4(&address, fib->ipv4_src);
		else
			address_from6(&address, (const struct in6_addr *)fib->ipv6_src);
		index = snat_index(settings, &address);
	}
	if (!index)
		index = family == 4 ? device->source4 : device->source6;
	return snat_found(index);
}

/* Index in sources; 0: the server is on this node after all; below 0: a verdict, negative. A function of its own so that
 * the verifier goes through it once. */
__noinline int snat_source(struct __sk_buff *skb, const struct packet *packet, const struct address *server)
{
	const struct settings *settings = settings_get();
	struct bpf_fib_lookup fib = {};
	long answer;

	if (!settings || !packet || !server)
		return -VERDICT_DROP_NO_SOURCE;
	if (!route_lookup)
		return snat_found(snat_index(settings, packet->family == 4 ? &settings->node4 : &settings->node6));
	fib_describe(&fib, skb, packet, &packet->source, server, 0);
	answer = bpf_fib_lookup(skb, &fib, sizeof(fib), fib_source ? BPF_FIB_LOOKUP_SRC : 0);
	if (fib_found(answer))
		return snat_by_route(settings, &fib, packet->family);
	/* The kernel does not tell its own addresses from those that it has no route to: the stack knows, and answers. */
	if (answer == BPF_FIB_LKUP_RET_NOT_FWDED || snat_index(settings, server))
		return 0;
	return -fib_verdict(answer);
}
