/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The tables. Sizes here are the defaults; the loader may set others (pkg/bpf Sizes). */
#pragma once

#include "types.h"

/* nearlb.c */
int from_pod_slow(struct __sk_buff *skb);
int to_pod_slow(struct __sk_buff *skb);
int from_pod_hairpin(struct __sk_buff *skb);
int from_pod_icmp(struct __sk_buff *skb);
int to_pod_icmp(struct __sk_buff *skb);
int reject(struct __sk_buff *skb);
int from_net_slow(struct __sk_buff *skb);
int to_net_slow(struct __sk_buff *skb);
int from_net_icmp(struct __sk_buff *skb);
int to_net_icmp(struct __sk_buff *skb);
int from_net_reply(struct __sk_buff *skb);
int route(struct __sk_buff *skb);
int too_big(struct __sk_buff *skb);
int shortcut(struct __sk_buff *skb);
int tunnel_out(struct __sk_buff *skb);
int tunnel_in(struct __sk_buff *skb);
int tunnel_forward(struct __sk_buff *skb);
int tunnel_back(struct __sk_buff *skb);
int tunnel_icmp(struct __sk_buff *skb);
int from_pod_dns(struct __sk_buff *skb);
int resend(struct __sk_buff *skb);
int from_net_fast(struct __sk_buff *skb);
int tunnel_opened(struct __sk_buff *skb);
int xdp_tunnel_out(struct xdp_md *ctx);
int xdp_tunnel_in(struct xdp_md *ctx);
int xdp_create(struct xdp_md *ctx);
int host_out(struct __sk_buff *skb);
int from_pod_reply(struct __sk_buff *skb);
int onward(struct __sk_buff *skb);

/* frontend -> number of the record in force */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct frontend_key);
	__type(value, __u32);
	__uint(max_entries, 131072);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct record);
	__uint(max_entries, 131072);
} records SEC(".maps");

/* slot / SLOTS_PER_LINE -> backend ids: 16777216 slots in 64 MiB */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct slot_line);
	__uint(max_entries, 1048576);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct backend);
	__uint(max_entries, 131072);
} backends SEC(".maps");

/* As many as backends. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct backend_health);
	__uint(max_entries, 131072);
} backend_health SEC(".maps");

/* Backends that do not answer. A page of 64 KiB: the least that every machine takes. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} suspects SEC(".maps");

/* Sets, a power of two of them: 32768 sets of 8 are 262144 flows in 16 MiB. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_set);
	__uint(max_entries, 32768);
} flows SEC(".maps");

/* An element for each eight sets of flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_block);
	__uint(max_entries, 4096);
} flow_tags SEC(".maps");

/* An element for each 512 blocks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_overflow);
	__uint(max_entries, 8);
} flow_overflows SEC(".maps");

/* Not 0: some first entry is, or was, in the blocks of its pair of ends (flow_pair_hash). Until then nobody looks there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_spill);
	__uint(max_entries, 1);
} flow_spills SEC(".maps");

/* As many as sets of flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_begun);
	__uint(max_entries, 32768);
} flow_begun SEC(".maps");

/* number of an entry -> its bytes, where somebody has asked for them of late. What is in it alone takes memory. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct flow_bytes);
	__uint(max_entries, FLOWS_COUNTED);
} flow_bytes SEC(".maps");

/* Index: syn_flow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct syn_sent);
	__uint(max_entries, SYN_SLOTS);
} syn_sent SEC(".maps");

/* How many SYNs this processor has timed of late. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct syn_budget);
	__uint(max_entries, 1);
} syn_budgets SEC(".maps");

/* As many as backends. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct syn_times);
	__uint(max_entries, 131072);
} syn_times SEC(".maps");

/* Two bits for each address that a frontend or a backend has: most packets that are not for a service stop here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct known_bits);
	__uint(max_entries, FILTER_WORDS);
} known_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct affinity_key);
	__type(value, struct affinity_value);
	__uint(max_entries, 131072);
} affinity SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range_key);
	__type(value, __u32);
	__uint(max_entries, 65536);
} source_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct fragment_key);
	__type(value, struct fragment_value);
	__uint(max_entries, 16384);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct settings);
	__uint(max_entries, 1);
} config SEC(".maps");

/* ifindex of a network device -> what SNAT uses there; of a pod's, where packets may take the shortcut: that it is one */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct device);
	__uint(max_entries, 1024);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct xdp_device);
	__uint(max_entries, XDP_DEVICES);
} xdp_devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct xdp_refusals);
	__uint(max_entries, 1);
} xdp_refusals SEC(".maps");

/* Larger where the program at XDP is loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct xdp_way);
	__uint(max_entries, 1);
} xdp_ways SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct xdp_work);
	__uint(max_entries, 1);
} xdp_works SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct xdp_neighbour);
	__uint(max_entries, XDP_NEIGHBOURS);
} xdp_neighbours SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct lost_packet);
	__uint(max_entries, LOST_SLOTS);
} lost_packets SEC(".maps");

/* Index: syn_flow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct asked_flow);
	__uint(max_entries, ASKED_SLOTS);
} asked_flows SEC(".maps");

/* Index: the backend's id. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct awaited_backend);
	__uint(max_entries, AWAITED_SLOTS);
} awaited_backends SEC(".maps");

/* Index: kept_flow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct kept_syn);
	__uint(max_entries, KEPT_SYNS);
} kept_syns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct tunnel_end);
	__uint(max_entries, 1);
} tunnel SEC(".maps");

/* number of a node in names -> its side of the tunnel */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct tunnel_node);
	__uint(max_entries, 16384);
} tunnel_nodes SEC(".maps");

/* each address of each node, this one too -> the node's number in names */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
	__uint(max_entries, 65536);
} tunnel_addresses SEC(".maps");

/* backends of this node: another node names the endpoint */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct local_key);
	__type(value, __u32);
	__uint(max_entries, 65536);
} local_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct tunnel_packet);
	__uint(max_entries, 1);
} tunnel_packets SEC(".maps");

/* What the sock programs remember of unconnected sockets: for each datagram's way back, and to keep them on their backend. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct sock_key);
	__type(value, struct sock_value);
	__uint(max_entries, 65536);
} socks SEC(".maps");

/* A connected socket's own: found by the socket, gone with it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_peer);
} peers SEC(".maps");

/* Index: hook * VERDICT_MAX + verdict. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct verdict_counter);
	__uint(max_entries, HOOK_MAX *VERDICT_MAX);
} verdicts SEC(".maps");

/* Index: id of the service port. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct service_counter);
	__uint(max_entries, 65536);
} service_counters SEC(".maps");

/* Index: id of the service port modulo the size. How many turns connections have taken, where they do. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, TURNS);
} turns SEC(".maps");

/* Index: backend id. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct backend_counter);
	__uint(max_entries, 131072);
} backend_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name_key);
	__type(value, struct name_value);
	__uint(max_entries, 131072);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} events SEC(".maps");

/* How many records this processor has written in this second. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct event_budget);
	__uint(max_entries, 1);
} event_budgets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct icmp_budget);
	__uint(max_entries, 1);
} icmp_budgets SEC(".maps");

/* One element, filled only where the knob trace_on is set. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct trace_result);
	__uint(max_entries, 1);
} trace SEC(".maps");

/* Names that are answered without the responder. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct answer_key);
	__type(value, struct answer);
	__uint(max_entries, 16384);
} answers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct answer_settings);
	__uint(max_entries, 1);
} answer_config SEC(".maps");

/* Questions that were answered; index: enum answer_count. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct answer_counter);
	__uint(max_entries, ANSWER_COUNT_MAX);
} answer_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct dns_work);
	__uint(max_entries, 1);
} dns_works SEC(".maps");

/* Programs reached by tail call; enum program. Filled when the object is loaded, one array for each load. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PROGRAM_MAX);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} programs SEC(".maps") = {
	.values = {
		[PROGRAM_FROM_POD_SLOW] = (void *)&from_pod_slow,
		[PROGRAM_TO_POD_SLOW] = (void *)&to_pod_slow,
		[PROGRAM_FROM_POD_HAIRPIN] = (void *)&from_pod_hairpin,
		[PROGRAM_FROM_POD_ICMP] = (void *)&from_pod_icmp,
		[PROGRAM_TO_POD_ICMP] = (void *)&to_pod_icmp,
		[PROGRAM_REJECT] = (void *)&reject,
		[PROGRAM_FROM_NET_SLOW] = (void *)&from_net_slow,
		[PROGRAM_TO_NET_SLOW] = (void *)&to_net_slow,
		[PROGRAM_FROM_NET_ICMP] = (void *)&from_net_icmp,
		[PROGRAM_TO_NET_ICMP] = (void *)&to_net_icmp,
		[PROGRAM_FROM_NET_REPLY] = (void *)&from_net_reply,
		[PROGRAM_ROUTE] = (void *)&route,
		[PROGRAM_TOO_BIG] = (void *)&too_big,
		[PROGRAM_SHORTCUT] = (void *)&shortcut,
		[PROGRAM_TUNNEL_OUT] = (void *)&tunnel_out,
		[PROGRAM_TUNNEL_IN] = (void *)&tunnel_in,
		[PROGRAM_TUNNEL_FORWARD] = (void *)&tunnel_forward,
		[PROGRAM_TUNNEL_BACK] = (void *)&tunnel_back,
		[PROGRAM_TUNNEL_ICMP] = (void *)&tunnel_icmp,
		[PROGRAM_FROM_POD_DNS] = (void *)&from_pod_dns,
		[PROGRAM_RESEND] = (void *)&resend,
		[PROGRAM_FROM_NET_FAST] = (void *)&from_net_fast,
		[PROGRAM_TUNNEL_OPENED] = (void *)&tunnel_opened,
		[PROGRAM_HOST_OUT] = (void *)&host_out,
		[PROGRAM_FROM_POD_REPLY] = (void *)&from_pod_reply,
		[PROGRAM_ONWARD] = (void *)&onward,
	},
};

/* The same of programs at XDP, as a table has programs of one kind; enum xdp_program. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, XDP_PROGRAM_MAX);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} xdp_programs SEC(".maps") = {
	.values = {
		[XDP_PROGRAM_TUNNEL_OUT] = (void *)&xdp_tunnel_out,
		[XDP_PROGRAM_TUNNEL_IN] = (void *)&xdp_tunnel_in,
		[XDP_PROGRAM_CREATE] = (void *)&xdp_create,
	},
};
