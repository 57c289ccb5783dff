/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets that the program at XDP takes out of the tunnel, so that the kernel merges what was in it (GRO): all that it decides is that a
 * packet's outer headers are those of another node, as tunnel_in.h does. What they said it leaves in front of the packet, for from_net. */
#pragma once

#include "tunnel_in.h"

/* What another program's metadata does not begin with. Who reads the tables may know it, and whoever attaches a program at XDP may do all that
 * it keeps out; the seed stays when programs are exchanged, whichever are first. */
static __always_inline __u64 opened_salt(const struct settings *settings)
{
	__u64 x = (settings->seed ^ HASH_C) * HASH_A;

	x = (x ^ (x >> 32)) * HASH_B;
	return x ^ (x >> 32);
}

static __always_inline const struct xdp_device *xdp_device_of(__u32 ifindex)
{
	__u32 slot = ifindex % XDP_DEVICES;
	const struct xdp_device *device = bpf_map_lookup_elem(&xdp_devices, &slot);

	return device && device->ifindex == ifindex ? device : NULL;
}

/* A packet that may be of another node: to this one's tunnel. */
static __always_inline bool opened_may_be(const struct packet *packet)
{
	const struct tunnel_end *tunnel = tunnel_there ? tunnel_get() : NULL;

	return tunnel && tunnel_has_port(packet->destination_port, packet->protocol) &&
	       address_equal(tunnel_from(tunnel, packet->family), &packet->destination);
}

/* Not 0: what is in front is simple, and another node's; all else is TC's. tunnel_packet_get has what it says, and how long it is. packet: the
 * outer one. A function of its own for the sake of the stack, as the next one, and so that the verifier goes through it once. */
__noinline int opened_read(struct xdp_md *ctx, const struct packet *packet)
{
	struct tunnel_packet *in = tunnel_packet_get();
	struct arrival arrival = {};

	if (!packet || !in)
		return false;
	in->node = tunnel_node_at(&packet->source);
	arrival.packet = *packet;
	if (!in->node || arrival_read_xdp(ctx, &arrival) != VERDICT_CONTINUE || arrival.family != packet->family ||
	    arrival_has_met((struct frame){ ctx, true }, &arrival))
		return false;
	in->length = arrival.size;
	return true;
}

/* True unless a driver left metadata in front of the frame, which would be nobody's when its start moves. */
static __always_inline bool opened_is_bare(const struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_meta + 1 > (void *)(long)ctx->data;
}

static __always_inline void opened_write(struct opened *opened, const struct settings *settings,
					 const struct tunnel_packet *in)
{
	opened->salt = opened_salt(settings);
	opened->backend.longs[0] = in->port ? in->backend.longs[0] : 0;
	opened->backend.longs[1] = in->port ? in->backend.longs[1] : 0;
	opened->port = in->port;
	opened->node = in->node;
	opened->kind = in->kind;
	opened->size = in->length;
	opened->pad[0] = 0;
	opened->pad[1] = 0;
}

/* Takes away what is in front, and says in front of the rest what it was. A packet whose driver left metadata stays as it is, as one whose driver
 * can have none. Both families are those of the frame, whose addresses stay. */
__noinline int opened_make(struct xdp_md *ctx)
{
	struct tunnel_packet *in = tunnel_packet_get();
	const struct settings *settings = settings_get();
	struct opened *opened;
	struct ethhdr link;
	void *data;

	if (!in || !settings || !opened_is_bare(ctx) || bpf_xdp_load_bytes(ctx, 0, &link, sizeof(link)) ||
	    bpf_xdp_adjust_meta(ctx, -(int)sizeof(*opened)))
		return false;
	if (bpf_xdp_adjust_head(ctx, in->length)) {
		bpf_xdp_adjust_meta(ctx, sizeof(*opened));
		return false;
	}
	data = (void *)(long)ctx->data;
	opened = (void *)(long)ctx->data_meta;
	if (data + sizeof(link) <= (void *)(long)ctx->data_end)
		__builtin_memcpy(data, &link, sizeof(link));
	if ((void *)(opened + 1) <= data)
		opened_write(opened, settings, in);
	return true;
}

/* Not 0: the program at XDP has taken the packet out of the tunnel; tunnel_packet_get says what it found. A function of its own so that from_net
 * has little to do where there is none. The salt alone says so: packets that were taken out just before the program was told of no device any more
 * are on their way. It writes nothing to the packet, nor does from_net then: a program that does begins with the kernel's
 * copy of a packet that somebody else has as well (tcpdump), and before Linux 6.19 a copy has nothing in front. */
__noinline int opened_take(struct __sk_buff *skb)
{
	const struct opened *opened = (void *)(long)skb->data_meta;
	const struct settings *settings;
	__u32 packets = skb->gso_segs;
	struct tunnel_packet *in;

	if ((void *)(opened + 1) > (void *)(long)skb->data)
		return false; /* as most: nothing is looked up for them */
	in = tunnel_packet_get();
	settings = settings_get();
	if (!in || !settings || opened->salt != opened_salt(settings))
		return false;
	in->backend = opened->backend;
	in->port = opened->port;
	in->node = opened->node;
	in->kind = opened->kind;
	in->length = skb->len + opened->size * (packets ? packets : 1);
	return true;
}
