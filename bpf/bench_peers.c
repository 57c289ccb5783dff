// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* What nearlb bench measures beside the flow table: the kernel's own hashes as a flow table would use them. Key and value are of the size that
 * one needs for both families; a found entry is read, as a translation would. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* Ends of a connection, in network byte order. */
struct peer_key {
	__u32 client[4];
	__u32 frontend[4];
	__u16 client_port;
	__u16 frontend_port;
	__u32 protocol;
};

struct peer_flow {
	__u32 backend[4];
	__u16 backend_port;
	__u16 pad;
	__u32 seen;
};

_Static_assert(sizeof(struct peer_key) == 40, "without padding, as the hash covers it");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct peer_key);
	__type(value, struct peer_flow);
	__uint(max_entries, 1); /* set before load */
} peer_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct peer_key);
	__type(value, struct peer_flow);
	__uint(max_entries, 1); /* set before load */
} peer_lru SEC(".maps");

/* Where IPv4 and TCP without options have their parts, in bytes from the frame's start. */
#define PROTOCOL_AT  23
#define ADDRESSES_AT 26
#define PORTS_AT     34
#define HEADERS      54

/* False: it does not fit. */
static __always_inline bool peer_read(struct __sk_buff *skb, struct peer_key *key)
{
	__u8 *data = (void *)(long)skb->data;
	const __u16 *addresses = (void *)(data + ADDRESSES_AT), *ports = (void *)(data + PORTS_AT);

	if (data + HEADERS > (__u8 *)(long)skb->data_end)
		return false;
	key->client[3] = addresses[0] | (__u32)addresses[1] << 16;
	key->frontend[3] = addresses[2] | (__u32)addresses[3] << 16;
	key->client_port = ports[0];
	key->frontend_port = ports[1];
	key->protocol = data[PROTOCOL_AT];
	return true;
}

SEC("tc")
int peer_find(struct __sk_buff *skb)
{
	struct peer_key key = {};
	const struct peer_flow *flow;

	if (!peer_read(skb, &key))
		return TC_ACT_SHOT;
	flow = bpf_map_lookup_elem(&peer_hash, &key);
	return flow && flow->backend_port ? TC_ACT_OK : TC_ACT_SHOT;
}

/* Makes what peer_find finds. */
SEC("tc")
int peer_fill(struct __sk_buff *skb)
{
	struct peer_flow flow = { .backend_port = 1 };
	struct peer_key key = {};

	if (!peer_read(skb, &key))
		return TC_ACT_SHOT;
	return bpf_map_update_elem(&peer_hash, &key, &flow, BPF_ANY) ? TC_ACT_SHOT : TC_ACT_OK;
}

/* A new connection in a table that evicts by itself: it is looked for first. */
SEC("tc")
int peer_insert(struct __sk_buff *skb)
{
	struct peer_flow flow = { .backend_port = 1 };
	struct peer_key key = {};

	if (!peer_read(skb, &key) || bpf_map_lookup_elem(&peer_lru, &key))
		return TC_ACT_SHOT;
	return bpf_map_update_elem(&peer_lru, &key, &flow, BPF_NOEXIST) ? TC_ACT_SHOT : TC_ACT_OK;
}

char __license[] SEC("license") = "Dual BSD/GPL";
