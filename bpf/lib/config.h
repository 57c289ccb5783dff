/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Knobs: constants that the loader sets before the programs are verified (the verifier removes what is off). */
#pragma once

#include "types.h"

/* Sets of the flow table less one; the number of sets, which is max_entries of flows, is a power of two. */
volatile const __u32 flow_set_mask = 32767;

/* CONFIG_HZ of the running kernel. */
volatile const __u32 jiffies_per_second = 250;

/* When a flow entry without traffic is free again: seconds. SCTP goes by TCP's. */
volatile const __u32 tcp_established_timeout = 86400;
volatile const __u32 tcp_unanswered_timeout = 60;
volatile const __u32 tcp_closed_timeout = 10;
/* The same of an entry that keeps a port of SNAT from others, after a server closed first: Linux keeps TIME_WAIT for 60 seconds, and
 * an entry's time may be a second behind its last packet. */
volatile const __u32 tcp_held_timeout = 62;
/* The first where both sides have been heard and packets come for more than a second; the second else, as a question that has its answer is
 * over (nf_conntrack_udp_timeout): its client's port may be another's soon. */
volatile const __u32 udp_answered_timeout = 180;
volatile const __u32 udp_unanswered_timeout = 30;

/* How long a server has had the SYN of a connection when one that comes again goes to another: milliseconds. Half of the time that a sender
 * waits for an answer (RFC 6298 2.1: a second, and Linux keeps to it). What comes sooner is a copy that the network made, or was sent twice;
 * the other half is for a first SYN that was late. */
volatile const __u32 retry_milliseconds = 500;

/* How long a backend has answered no connection at all when the agent is asked to look at it before any SYN comes again: milliseconds. Long
 * beside what a server takes that lives, short beside the second after which SYNs come again. */
volatile const __u32 awaited_milliseconds = 250;

/* How long a backend that is no endpoint any more has not acknowledged a packet when its connection is reset: milliseconds. Linux has sent it
 * four times by then. */
volatile const __u32 lost_milliseconds = 1000;

/* How long a server has had as many datagrams of a flow as its Service waits for answers to (udp_retry) when the next one goes to another:
 * milliseconds. */
volatile const __u32 asked_milliseconds = 1000;

/* A flow with a packet in this time is never evicted for another one: seconds. */
volatile const __u32 flow_active_seconds = 60;

/* The same for UDP: most of it is a question and an answer, and who goes on is given its backend again by hash. */
volatile const __u32 udp_active_seconds = 5;

/* Not 0: every packet takes the slow path and fills the map trace (nearlb trace). */
volatile const __u8 trace_on = 0;

/* Not 0: sockets of every network namespace are served as they connect, not the host's alone (--socket-lb=all). */
volatile const __u8 every_namespace = 0;

/* Not 0: the processor may reorder loads and stores as arm64 does, so readers of the flow table fence. The loader sets 0 on x86. */
volatile const __u8 weak_memory_order = 1;

/* Records that one processor may write into the events ring a second; 0: none. */
volatile const __u32 events_per_second = 10;

/* ICMP errors that one processor may send a second, and at once after a quiet one; 0: none. */
volatile const __u32 icmp_errors_per_second = 1000;

/* Not 0: mend checksums by the kernel's helpers, as kernels before 6.2 make us do anyway. */
volatile const __u8 checksum_helpers = 0;

/* Bytes in front of the IP header: 14, or 0 for devices that have no Ethernet header. */
volatile const __u32 link_header = 14;

/* Not 0: ask the kernel's routing table where a packet leaves. 0 (nearlb trace with objects from files): there is none,
 * SNAT takes node4 and node6. */
volatile const __u8 route_lookup = 1;

/* Not 0: the routing table also says which address of the node is the source there (Linux 6.7). */
volatile const __u8 fib_source = 0;

/* Not 0: connection tracking can be asked (bpf_skb_ct_lookup). */
volatile const __u8 conntrack_lookup = 0;

/* Not 0: packets may leave past the host's stack, while the settings say so. 0: no packet asks. */
volatile const __u8 shortcut_there = 0;

/* Not 0: clients off the node may go to backends on other nodes through the tunnel. 0: there is none. */
volatile const __u8 tunnel_there = 0;

/* Not 0: the program at XDP may take packets out of the tunnel, for from_net. 0: no packet is looked at for it. */
volatile const __u8 xdp_opens = 0;

/* Elements of xdp_ways less one, which are a power of two. */
volatile const __u32 xdp_way_mask = 0;

/* After which a responder without a heartbeat counts as dead: nanoseconds. */
volatile const __u64 responder_silence = 1000000000;

/* Not 0: questions of pods for names are answered from the table answers. 0: no packet asks. */
volatile const __u8 dns_there = 0;

/* Types that Go takes from BTF although no map has them: BTF keeps what something refers to. */

#define EXPORT_ENUM(name) volatile const enum name export_##name

EXPORT_ENUM(verdict);
EXPORT_ENUM(xdp_takes);
EXPORT_ENUM(hook);
EXPORT_ENUM(side_index);
EXPORT_ENUM(action);
EXPORT_ENUM(reason);
EXPORT_ENUM(note);
EXPORT_ENUM(backend_state);
EXPORT_ENUM(tier_name);
EXPORT_ENUM(member);
EXPORT_ENUM(kind);
EXPORT_ENUM(record_flags);
EXPORT_ENUM(flow_phase);
EXPORT_ENUM(flow_flags);
EXPORT_ENUM(flow_seen);
EXPORT_ENUM(tried);
EXPORT_ENUM(flow_load);
EXPORT_ENUM(others);
EXPORT_ENUM(balance);
EXPORT_ENUM(name_kind);
EXPORT_ENUM(event_kind);
EXPORT_ENUM(program);
EXPORT_ENUM(schema);
EXPORT_ENUM(yield);
EXPORT_ENUM(routed);
EXPORT_ENUM(shortcut_mode);
EXPORT_ENUM(shortcut_beats);
EXPORT_ENUM(answer_flags);
EXPORT_ENUM(answer_count);
volatile const struct event export_event;
volatile const struct opened export_opened;
volatile const struct suspect export_suspect;
