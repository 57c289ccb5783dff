/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Everything that the programs and the agent share: verdicts, table layouts, sizes. C alone defines them; Go reads them from BTF
 * (bpf2go). Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d. Addresses and ports are in network byte order, everything else in the
 * machine's. */
#pragma once

#include <stdbool.h>

/* What was decided for a packet. Ordered: continue, pass, translate, reject, drop; Go takes the class of a verdict
 * from its prefix and its contract name (lower case, without the class) from this enum's BTF. */
enum verdict {
	VERDICT_CONTINUE = 0, /* not decided yet: never counted */

	/* left as it is */
	VERDICT_PASS_NOT_IP,      /* ARP, frames of a VLAN, anything that is not IPv4 or IPv6 */
	VERDICT_PASS_NOT_SERVICE, /* no frontend, no flow */
	VERDICT_PASS_PROTOCOL,    /* neither TCP, UDP, SCTP nor ICMP */
	VERDICT_PASS_MALFORMED,   /* headers do not fit the packet; the stack judges it */
	VERDICT_PASS_FRAGMENT,    /* later fragment of a packet that was not translated */
	VERDICT_PASS_DIRECT,      /* pod to pod without a service, remembered so that its ports stay apart */
	VERDICT_PASS_ICMP,        /* ICMP that quotes nothing of ours */
	VERDICT_PASS_DISABLED,    /* the agent switched the datapath off */
	VERDICT_PASS_DRAINING,    /* new, and the node's connections are being handed over to kube-proxy */
	VERDICT_PASS_OTHER_NAT,   /* of a connection that the kernel's NAT translates, for kube-proxy */
	VERDICT_PASS_UNKNOWN_REPLY, /* from a backend to a port of SNAT, and no flow has it: the host's, or of a flow that was lost; or answered() */

	/* addresses or ports were rewritten */
	VERDICT_TRANSLATE_ESTABLISHED, /* a flow was found, towards the backend */
	VERDICT_TRANSLATE_REPLY,       /* a flow was found, towards the client */
	VERDICT_TRANSLATE_BALANCE,     /* new flow: a backend was picked by Maglev */
	VERDICT_TRANSLATE_AFFINITY,    /* new flow: session affinity named the backend */
	VERDICT_TRANSLATE_RECOVER,     /* mid-connection packet without a flow: made again by Maglev */
	VERDICT_TRANSLATE_REHOME,      /* the flow's backend is not usable any more: another was picked */
	VERDICT_TRANSLATE_RETRY, /* the flow's backend did not answer the SYN or datagrams, or refused it: the next one gets it */
	VERDICT_TRANSLATE_REFUSED, /* the backend's refusal of a SYN: it becomes that SYN once more, for the next backend */
	VERDICT_TRANSLATE_RETURNED, /* in the tunnel, for nobody that this node knows: back to the node that it came from */
	VERDICT_TRANSLATE_UNCARRIED, /* came back so: new flow to the same backend, by SNAT */
	VERDICT_TRANSLATE_HAIRPIN,   /* client and backend are one pod; returned on the device it came from */
	VERDICT_TRANSLATE_FRAGMENT,  /* later fragment: follows the first */
	VERDICT_TRANSLATE_ICMP,      /* ICMP error: outer and quoted packet rewritten */
	VERDICT_TRANSLATE_DIRECT,    /* direct pod to pod packet whose source port had to change (port clash) */

	/* answered to the sender at once: TCP RST, ICMP port unreachable, an echo reply, or a name's answer */
	VERDICT_REJECT_NO_ENDPOINTS, /* service without any usable endpoint */
	VERDICT_REJECT_UNKNOWN_PORT, /* known service address, no such port */
	VERDICT_REJECT_NO_TOPOLOGY_MATCH,
	VERDICT_REJECT_LOST,    /* its connection's backend is no endpoint any more, and has not answered for a while */
	VERDICT_REJECT_ECHO,    /* echo request to a service address: answered */
	VERDICT_REJECT_NAME,    /* question for a name: answered in the place of this node's responder */
	VERDICT_REJECT_TOO_BIG, /* does not fit the device it would leave by; the sender is told the MTU */
	VERDICT_REJECT_TIME_EXCEEDED, /* its TTL or hop limit ends here; the sender is told */
	VERDICT_REJECT_HELLO,         /* another node asks whether this one takes packets out of the tunnel: it does */
	VERDICT_REJECT_LATE_ANSWER,   /* to a SYN that went to another backend since: the sender is told to forget it */

	/* gone */
	VERDICT_DROP_NO_LOCAL_ENDPOINTS, /* traffic policy Local, endpoints elsewhere only */
	VERDICT_DROP_UNALLOCATED,        /* address inside a service CIDR that no service has */
	VERDICT_DROP_SOURCE_RANGE,       /* loadBalancerSourceRanges does not name the source */
	VERDICT_DROP_MALFORMED,          /* would be ours, but its headers contradict each other */
	VERDICT_DROP_FRAGMENT,           /* later fragment to a service address whose first was not seen */
	VERDICT_DROP_FLOWS_FULL,         /* the set has no entry that may be evicted */
	VERDICT_DROP_FLOW_RACE,          /* lost the race for a flow entry several times over */
	VERDICT_DROP_PORTS_FULL,         /* no free source port towards this backend */
	VERDICT_DROP_NO_BACKEND,         /* the record names backends, none of them usable */
	VERDICT_DROP_SCTP_PORT,          /* SCTP whose port would have to change: its checksum cannot be mended here */
	VERDICT_DROP_REWRITE,            /* the kernel refused to change the packet */
	VERDICT_DROP_NO_PROGRAM,         /* a tail call failed */
	VERDICT_DROP_NO_ROUTE,           /* the routing table has no way to the backend or the client */
	VERDICT_DROP_FORWARDING_OFF,     /* the kernel may not forward from this device (ip_forward) */
	VERDICT_DROP_NO_SOURCE,          /* no address of this node for SNAT on the device towards the backend */
	VERDICT_DROP_ICMP_LIMIT,       /* an ICMP error would answer it, and this processor has made too many of them */
	VERDICT_DROP_TUNNEL_SOURCE,    /* to a node's tunnel, from somebody who is no node */
	VERDICT_DROP_TUNNEL_MALFORMED, /* in the tunnel, and not as a node writes it */
	VERDICT_DROP_TUNNEL_STRAY, /* in the tunnel, of no connection that is known here, and for no backend of this node */
	VERDICT_DROP_TUNNEL_COOKIE, /* in the tunnel, without what the nodes share (--tunnel-key-file) */
	VERDICT_DROP_TUNNEL_UNHEARD, /* in the tunnel, of no connection of that node's, which was not heard there itself */

	VERDICT_MAX,
};

/* Which door a packet came through: first index of the verdict counters. */
enum hook {
	HOOK_FROM_POD = 0,
	HOOK_TO_POD,
	HOOK_FROM_NET,
	HOOK_TO_NET,
	HOOK_SOCK,
	HOOK_XDP, /* in front of from_net, where a device has it */
	HOOK_MAX,
};

/* The classes of verdicts. */

static __always_inline bool verdict_is_translate(enum verdict verdict)
{
	return verdict >= VERDICT_TRANSLATE_ESTABLISHED && verdict < VERDICT_REJECT_NO_ENDPOINTS;
}

/* A service refuses the packet. Echo replies and what a router answers are no refusals. */
static __always_inline bool verdict_is_reject(enum verdict verdict)
{
	return verdict >= VERDICT_REJECT_NO_ENDPOINTS && verdict < VERDICT_REJECT_ECHO;
}

static __always_inline bool verdict_is_drop(enum verdict verdict)
{
	return verdict >= VERDICT_DROP_NO_LOCAL_ENDPOINTS;
}

/* Table layouts, and what they hold. */

#define SLOTS_PER_LINE    16 /* ids of one element of slots: a cache line */
#define TIERS_MAX         3
#define FLOW_WAYS         8 /* entries of one set of the flow table: 512 bytes */
#define FLOW_SETS         8 /* sets of one block: a page of entries, and a cache line of tags */
#define SERVICE_CIDRS_MAX 8
#define SOURCES_MAX       64 /* the node's addresses that SNAT may use; index 0 is nobody's */
#define SOURCE_BITS       256
#define FILTER_WORDS      (1u << 15) /* of each of the two filters: twice 256 KiB */

/* Policy sides of a record. */
enum side_index {
	SIDE_INTERNAL = 0, /* clients on this node: pods and the node itself */
	SIDE_EXTERNAL,     /* packets that arrive from off the node */
	SIDE_MAX,
};

enum action {
	ACTION_BALANCE = 0,
	ACTION_REJECT,
	ACTION_DROP,
};

/* Why a side has the backends it has. Names after the prefix, lower case with '-' for '_', are the contract's. */
enum reason {
	REASON_NONE = 0,
	REASON_ALL,
	REASON_SAME_NODE,
	REASON_SAME_ZONE,
	REASON_TERMINATING,
	REASON_LOCAL,
	REASON_LOCAL_TERMINATING,
	REASON_NO_ENDPOINTS,
	REASON_NO_LOCAL_ENDPOINTS,
	REASON_NO_TOPOLOGY_MATCH,
	REASON_SAME_REGION,
	REASON_SAME_LABEL,
	REASON_LOCAL_FALLBACK,
	REASON_MAX,
};

/* Why a side's preference for near endpoints, which was asked for, is not in force. For people; names as those of reasons. */
enum note {
	NOTE_NONE = 0,
	NOTE_NO_HINTS,
	NOTE_ENDPOINT_WITHOUT_HINT,
	NOTE_NODE_WITHOUT_ZONE,
	NOTE_NO_ENDPOINT_IN_ZONE,
	NOTE_NO_ENDPOINT_ON_NODE,
	NOTE_NO_KEY_MATCHED,
	NOTE_OVERFLOW,
	NOTE_MAX,
};

enum backend_state {
	BACKEND_FREE = 0, /* nobody's */
	BACKEND_ACTIVE,   /* new flows and old ones */
	BACKEND_DRAINING, /* terminating, still serving: old flows; new ones only where a tier lists it */
	BACKEND_QUIET,    /* an endpoint that is not serving: established TCP stays, UDP and SYN go elsewhere */
	BACKEND_GONE, /* no endpoint any more; kept while flows name it. Treated as BACKEND_QUIET, but by lost_find */
	BACKEND_RESPONDER, /* this node's answers to names: BACKEND_ACTIVE while its heart beats and it listens, else BACKEND_QUIET */
	BACKEND_GONE_KEPT, /* BACKEND_GONE, and no connection is reset if it is silent (annotation nearlb.io/reset-lost) */
};

/* A bit of these is in the number of each state but BACKEND_FREE and BACKEND_GONE: those two leave the fast path by one question. */
#define BACKEND_STAYS 3
_Static_assert(((BACKEND_FREE | BACKEND_GONE) & BACKEND_STAYS) == 0, "one question");
_Static_assert((BACKEND_ACTIVE & BACKEND_STAYS) != 0 && (BACKEND_DRAINING & BACKEND_STAYS) != 0, "one question");
_Static_assert((BACKEND_QUIET & BACKEND_STAYS) != 0 && (BACKEND_RESPONDER & BACKEND_STAYS) != 0, "one question");
_Static_assert((BACKEND_GONE_KEPT & BACKEND_STAYS) != 0, "one question");

enum tier_name {
	TIER_NODE = 0,
	TIER_ZONE,
	TIER_REGION,
	TIER_CLUSTER,
};

/* In which of a service port's lists a backend is, so that session affinity can ask for membership. */
enum member {
	MEMBER_CLUSTER = 1, /* the cluster list of this node, after topology */
	MEMBER_LOCAL = 2,   /* the list of traffic policy Local */
};

enum kind {
	KIND_CLUSTER_IP = 0,
	KIND_NODE_PORT,
	KIND_EXTERNAL_IP,
	KIND_LOAD_BALANCER,
};

struct address {
	union {
		__u8 bytes[16];
		__be32 words[4];
		__u64 longs[2];
	};
};

/* Key of frontends. Port 0 and protocol 0: "this address belongs to a service" (unknown port is rejected, echo answered). */
struct frontend_key {
	struct address address;
	__be16 port;
	__u8 protocol; /* IANA number */
	__u8 pad[5];
};
_Static_assert(sizeof(struct frontend_key) == 24, "layout is shared");

enum record_flags {
	RECORD_ADDRESS = 1,       /* the entry with port 0: the address only */
	RECORD_SOURCE_RANGES = 2, /* look the source up in source_ranges */
	RECORD_ON_HOST = 4, /* the node has the address itself: the service has its own ports there, and no other */
	RECORD_CARRY = 8, /* clients off the node go to backends on other nodes through the tunnel, where that can be */
	RECORD_DSR = 16,  /* beside RECORD_CARRY: the other node answers such clients itself, where it can */
	RECORD_RETRY_REFUSED =
		32, /* a SYN that a backend refuses goes to the next one at once (nearlb.io/retry-refused) */
	RECORD_KEEP_LOST =
		128, /* backends that go become BACKEND_GONE_KEPT. For agents: one that starts may find the Service gone */
};

/* How the backend of a new connection is chosen (nearlb.io/balance). */
enum balance {
	BALANCE_MAGLEV = 0,
	BALANCE_ROUND_ROBIN,       /* in turn, whatever the addresses */
	BALANCE_LEAST_CONNECTIONS, /* of two in Maglev's order the one with fewer open connections for its weight */
};

struct tier {
	__u32 first; /* slot: its id is in element first / SLOTS_PER_LINE of slots */
	__u32 count; /* slots of this tier's Maglev table; 0: no such tier */
};

struct side {
	__u8 action;    /* enum action */
	__u8 reason;    /* enum reason */
	__u8 member;    /* enum member: the list that the tiers are made of */
	__u8 note;      /* enum note */
	__u32 backends; /* distinct backends over all tiers, for people */
	struct tier tiers[TIERS_MAX];
	__u8 tier_names[4]; /* enum tier_name of each tier */
	__u8 pad2[4];
};
_Static_assert(sizeof(struct side) == 40, "layout is shared");

/* What a frontend does. Never edited once a frontends entry points at it. */
struct record {
	struct frontend_key key; /* echo: a reader that finds another key looks again */
	__u32 service;           /* id of the service port: names, affinity, source_ranges, service_counters */
	__u32 affinity;          /* session affinity timeout in seconds, 0 none */
	__u8 flags;              /* enum record_flags */
	__u8 kind;               /* enum kind */
	__u8 udp_retry; /* so many datagrams of a flow in a row without an answer: the next backend gets those that follow; 0: never */
	__u8 balance; /* enum balance */
	__u8 pad[4];
	struct side sides[SIDE_MAX];
	__u8 pad2[8];
};
_Static_assert(sizeof(struct record) == 128, "layout is shared");

/* Backend ids of neighbouring slots. The kernel strides arrays by 8 bytes at least: single ids would take twice the memory. */
struct slot_line {
	__u32 ids[SLOTS_PER_LINE];
};
_Static_assert(sizeof(struct slot_line) == 64, "one cache line");

struct backend {
	struct address address;
	__be16 port;
	__u8 state;        /* enum backend_state */
	__u8 tier;         /* enum tier_name: how near it is to this node */
	__u16 zone;        /* id in names, 0 unknown */
	__u16 node;        /* id in names, 0 unknown */
	__u16 generation;  /* grows each time the id is handed to another endpoint; a flow remembers it */
	__u8 member;       /* enum member, or-ed */
	__u8 cluster_only; /* not 0: no frontend but ClusterIPs has led to it since it has the id */
	__u32 service;     /* id of the service port */
};
_Static_assert(sizeof(struct backend) == 32, "layout is shared");

/* What is known of whether a backend answers, and whether new connections leave it out; index: backend id. A cache line, so that those of
 * several backends are not written in one. */
struct backend_health {
	__u64 until; /* bpf_ktime_get_boot_ns: left out until then, and after that tried by one connection at a time; 0: it is not left out.
		      * Written by the agent; the programs take it back when the backend answers */
	__u64 since;      /* the same clock: when it was left out last, 0: never. Written by the agent */
	__u32 answered;   /* jiffies (low 32 bits) of the last first answer to a connection */
	__u32 began;      /* the same of the SYN of the first of these connections */
	__u32 others_at;  /* the same of when others was written, 0: never. Written by the agent */
	__u32 told;       /* jiffies when the agent was told last; 0: it was not */
	__u16 unanswered; /* connections in a row whose SYN was not answered */
	__u16 generation; /* of the backend id; of another one, all of this means nothing */
	__u16 first;      /* part of the hash of the client of the first of them */
	__u8 clients;     /* 1: all of them are of one client; 2: they are not */
	__u8 ahead;       /* how many of them were counted before their SYN came again, and have not come again yet */
	__u32 times;      /* how often it was left out, one time after the other. Written by the agent */

	/* Of backends of Services that balance by connections (load.h), whatever the generation; the agent begins anew with a new one. */
	__s32 open; /* entries of the flow table with SEEN_COUNTED */
	__u32 weight; /* what it gets of the new connections beside others; 0: as much as one of 1. Written by the agent */
	__u32 syn_time;  /* microseconds until a SYN is answered, smoothed; 0: not known */
	__u32 syn_timed; /* jiffies (low 32 bits) of the last of these answers */
	__u32 others; /* connections that other nodes have (OTHERS_COUNT), and above them the power of two, plus one, of as many as they
			  * may have opened since, 0: none. Written by the agent, with what other agents tell it */
};
_Static_assert(sizeof(struct backend_health) == 64, "one cache line");

enum others {
	OTHERS_SHIFT = 24, /* bits of the count */
	OTHERS_COUNT = (1 << OTHERS_SHIFT) - 1,
	OTHERS_SECONDS = 8, /* after which they mean nothing */
};

/* One record of the ring suspects: a backend that the agent is to look at. */
struct suspect {
	__u32 backend;    /* id */
	__u16 generation; /* of it */
	__u16 pad;
};

/* Phases of a flow entry: the low bits of its word. The rest counts the times it was claimed. */
enum flow_phase {
	FLOW_FREE = 0,
	FLOW_WRITING, /* claimed by compare-and-swap; contents mean nothing */
	FLOW_CLAIMED, /* key is there, the writer looks for clashes; not for translation */
	FLOW_LIVE,
	FLOW_PHASE_MASK = 3,
};

enum flow_flags {
	FLOW_ALIAS = 1,   /* found by the source port that the backend sees; twin_port is the client's own */
	FLOW_DIRECT = 2,  /* client speaks to frontend address itself: no backend, kept so that ports stay apart */
	FLOW_HAIRPIN = 4, /* client and backend are one pod: the backend sees the service loopback address */
	FLOW_SNAT = 8,    /* the backend sees one of sources and twin_port; an alias is found by both */
	FLOW_CARRY = 16,  /* packets go through the tunnel as they are, and the backend's node translates them */
	FLOW_CARRIED =
		32, /* packets came through the tunnel, and answers go back through it; seen has the other node's number */
	FLOW_DSR = 64, /* beside FLOW_CARRY or FLOW_CARRIED: answers go from the backend's node to the client itself */
	FLOW_ASKS = 128, /* of UDP: its datagrams are counted until one is answered (retry.h). It has no fast path */
};

/* What the connection has shown; or-ed in by atomic operations. */
enum flow_seen {
	SEEN_REPLY = 1, /* a packet came back */
	SEEN_CLIENT_FIN = 2,
	SEEN_SERVER_FIN = 4,
	SEEN_RESET = 8, /* by either, and neither went on after it */
	SEEN_ESTABLISHED =
		16, /* TCP: the client went on after the reply (ACK, no SYN), or the server did (neither SYN nor RST). UDP: one of both did so
		     * a second after the last packet that was noted */
	SEEN_SERVER_WAITS = 32, /* TCP: the server closed first, or both did at once: it keeps TIME_WAIT */
	SEEN_CLIENT_WAITS =
		64, /* TCP: the client went on after both had closed: a server that closed last has forgotten it */
	SEEN_REFUSED = 128, /* TCP: the server answered the SYN with a reset */
	SEEN_ALL = 255,
};

#define SEEN_WENT_ON SEEN_CLIENT_WAITS /* of UDP: the client sent something after an answer */

/* Above them: to how many backends the SYN of this connection went before, and the low bits of the ids of the first two. With the
 * entry's own that is all that is asked for, as there are four tries. */
enum tried {
	TRIED_COUNT_BITS = 2,
	TRIED_MAX = 3, /* the highest count */
	TRIED_ID_BITS = 10,
	TRIED_SHIFT = 8, /* of all this in seen */
	TRIED_BITS = TRIED_COUNT_BITS + (TRIED_MAX - 1) * TRIED_ID_BITS,
};

/* The highest bits of seen: of flows of a Service that balances by connections (load.h). */
enum flow_load {
	SEEN_LOADS = 1u << 30,   /* on both entries: such a flow */
	SEEN_COUNTED = 1u << 31, /* on the first entry, while it counts as an open connection of its backend */
};
_Static_assert(TRIED_SHIFT + TRIED_BITS == 30, "fits seen");

/* FLOW_CARRIED: the other node has chosen the backend, so there the same bits of seen have that node's number in names. */
#define CARRIED_NODE_SHIFT TRIED_SHIFT
#define CARRIED_NODE       (0xffffu << CARRIED_NODE_SHIFT)
#define SEEN_UNCARRIED     (SEEN_ALL | SEEN_LOADS | SEEN_COUNTED) /* what is of no node, nor of tries */
#define CARRIED_NEAR       (1u << 24) /* in seen as well: the client is on this node, and came by another one none the less */
#define CARRIED_ASIDE      (1u << 25) /* the same: packets come in by another network device than that of the tunnel */
#define CARRIED_LEFT       (1u << 26) /* the same: another backend of this node had the connection, and had not answered */

/* One connection: one cache line. Found by hash of client address, port and protocol, in one of two blocks; a forward packet matches
 * the frontend, a reply the backend. Written only between FLOW_WRITING and FLOW_LIVE, but for seen, touched. The
 * table's description calls key_port port and twin_port other_port, the names by which older agents carry flows over (pkg/bpf object.go). */
struct flow {
	__u32 word;    /* phase and claim counter */
	__u32 touched; /* jiffies (low 32 bits) of the last packet, written when it differs by a second */
	__u32 seen; /* enum flow_seen, from TRIED_SHIFT on which backends were tried before, SEEN_LOADS, SEEN_COUNTED */
	__u32 backend; /* id */
	struct address client;
	struct address frontend;
	__be16 key_port; /* by which the entry is found: the client's own; of an alias: the source port that the backend sees */
	__be16 twin_port; /* of its twin, if it has one: the source port that the backend sees; of an alias: the client's own */
	__be16 frontend_port;
	__u16 generation; /* of the backend id */
	__u8 protocol;
	__u8 flags;    /* enum flow_flags */
	__u8 source;   /* FLOW_SNAT: index in sources of settings */
	__u8 side;     /* enum side_index: of the client */
	__u32 service; /* id of the service port */
};
_Static_assert(sizeof(struct flow) == 64, "one cache line");

struct flow_set {
	struct flow ways[FLOW_WAYS];
};
_Static_assert(sizeof(struct flow_set) == 512, "layout is shared");

/* Of each entry of a block eight bits of its key's hash, 0: the entry is free. Byte w of sets[s] is that of way w of the block's set s. Who
 * takes an entry to FLOW_WRITING writes its tag, and nobody else does. */
struct flow_block {
	__u64 sets[FLOW_SETS];
};
_Static_assert(sizeof(struct flow_block) == 64, "one cache line");

/* Of the whole table; a cache line that is hardly ever written. */
struct flow_spill {
	__u32 spilled;
	__u32 counted_until; /* jiffies (low 32 bits) at which nobody asks for the bytes of flows any more (ROUTED_FLOWS_COUNTED) */
	__u32 pad[14];
};
_Static_assert(sizeof(struct flow_spill) == 64, "one cache line");

/* A bit for each of 512 blocks: the block has overflowed. An entry is, or was, in the second block of a hash whose first one it is; until then
 * nobody looks for one there. */
struct flow_overflow {
	__u64 blocks[8];
};
_Static_assert(sizeof(struct flow_overflow) == 64, "one cache line");

#define FLOW_BEGUN_SHIFT 6

/* Of each entry of a set when it was made: jiffies >> FLOW_BEGUN_SHIFT, low 32 bits; 0: not known. */
struct flow_begun {
	__u32 ways[FLOW_WAYS];
};
_Static_assert(sizeof(struct flow_begun) == 32, "layout is shared");

#define FLOWS_COUNTED 65536 /* entries whose bytes are counted at once */

/* Bytes of the packets that an entry had since somebody has asked for them, as long as IP's and the link's headers have them. */
struct flow_bytes {
	__u32 word; /* of the entry: another one is another flow's */
	__u32 pad;
	__u64 sent;     /* by the client */
	__u64 received; /* by the client */
};
_Static_assert(sizeof(struct flow_bytes) == 24, "layout is shared");

#define SYN_SLOTS   8192 /* flows whose SYN is remembered; a power of two */
#define SYN_BUCKETS 64   /* of syn_times */
#define SYN_LEAST   16   /* microseconds: what the first bucket is less than */

/* When a flow's SYN came: one word, written and read whole. The low half of a little-endian one is flow. */
struct syn_sent {
	__u32 flow; /* syn_flow; 0: nothing */
	__u32 time; /* bpf_ktime_get_ns in microseconds, low 32 bits */
} __attribute__((aligned(8)));
_Static_assert(sizeof(struct syn_sent) == 8, "one word");

#define SYNS_TIMED 256 /* by one processor in a sixteenth of a second */

/* Of one processor. */
struct syn_budget {
	__u32 since; /* jiffies (low 32 bits) */
	__u32 timed;
};

/* How many connections of a backend had their SYN answered, by the time that took: in less than SYN_LEAST, then four buckets for each
 * doubling; the last one, from 0.8 s on, has those whose SYN had to be sent again. They wrap. */
struct syn_times {
	__u32 buckets[SYN_BUCKETS];
};
_Static_assert(sizeof(struct syn_times) == 256, "layout is shared");

#define LOST_SLOTS 4096 /* connections to backends that are gone whose last packet is remembered; a power of two */

/* A packet that a backend which is no endpoint any more has to acknowledge. */
struct lost_packet {
	__u32 flow;     /* syn_flow; 0: nothing */
	__u32 sequence; /* of TCP */
	__u32 time;     /* jiffies (low 32 bits) when it came first */
	__u32 heard;    /* packets that the backend had sent by then, low 32 bits */
	__u32 copies;   /* how often it came */
};
_Static_assert(sizeof(struct lost_packet) == 20, "layout is shared");

#define AWAITED_SLOTS 4096 /* backends that have not answered of late; a power of two */

/* New connections to a backend since it has answered one. */
struct awaited_backend {
	__u32 backend;    /* id; 0: nothing */
	__u16 generation; /* of it */
	__u8 connections; /* 255 at most */
	__u8 clients;     /* 1: all of them are of one client; 2: they are not */
	__u32 began;      /* jiffies (low 32 bits) of the first SYN, */
	__u32 first;      /* hash of its client */
};
_Static_assert(sizeof(struct awaited_backend) == 16, "layout is shared");

#define TURNS 4096 /* service ports that count turns, each by itself where there are no more; a power of two */

#define ASKED_SLOTS 4096 /* flows whose datagrams are counted; a power of two */

/* Datagrams of a flow that were not answered. */
struct asked_flow {
	__u32 flow;  /* syn_flow; 0: nothing */
	__u32 time;  /* jiffies (low 32 bits) of the last, until they are enough */
	__u32 count; /* of them */
};
_Static_assert(sizeof(struct asked_flow) == 12, "layout is shared");

#define KEPT_SYNS     4096 /* connections whose SYN is kept; a power of two */
#define KEPT_IP_ROOM  40   /* of an IPv6 header; of IPv4 one without options is kept */
#define KEPT_TCP_ROOM 60   /* of the longest TCP header */

/* A SYN as its client sent it, for when the backend refuses it. */
struct kept_syn {
	__u32 flow;     /* kept_flow; 0: nothing */
	__u32 sequence; /* of the SYN, in network byte order */
	__u32 ifindex;  /* of the device that it came by */
	__u8 family;    /* 4 or 6 */
	__u8 length;    /* bytes of its TCP header */
	__u8 sent;      /* how often a refusal became it */
	__u8 pad;
	__u8 mac[14]; /* the Ethernet header */
	__u8 pad2[2];
	__u8 ip[KEPT_IP_ROOM];
	__u8 tcp[KEPT_TCP_ROOM]; /* its checksum zero */
	__u8 pad3[4];
};
_Static_assert(sizeof(struct kept_syn) == 136, "layout is shared");

struct affinity_key {
	struct address client;
	__u32 service; /* id of the service port */
	__u32 pad;
};
_Static_assert(sizeof(struct affinity_key) == 24, "layout is shared");

struct affinity_value {
	__u32 backend;
	__u16 generation; /* of the backend id */
	__u16 pad;
	__u64 touched; /* bpf_ktime_get_boot_ns of the last new connection */
};
_Static_assert(sizeof(struct affinity_value) == 16, "layout is shared");

/* Key of source_ranges: prefix_bits counts the service id's 32 bits as well. Value: __u32, always 1. */
struct source_range_key {
	__u32 prefix_bits;
	__be32 service; /* network byte order: a trie compares from the first bit on */
	struct address source;
};
_Static_assert(sizeof(struct source_range_key) == 24, "layout is shared");

struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id; /* IPv4 identification or IPv6 fragment identification, as on the wire */
	__u8 protocol;
	__u8 hook; /* enum hook: both doors of a pod may see the same packet */
	__u8 pad[2];
};
_Static_assert(sizeof(struct fragment_key) == 40, "layout is shared");

struct fragment_value {
	__be16 source_port;
	__be16 destination_port;
	__u32 touched; /* jiffies (low 32 bits) of the first fragment */
};

/* One word of each of the two filters: hash >> 12, hash as in hash.h. An address has two bits there: hash >> 6 & 63 and hash & 63. */
struct known_bits {
	__u64 frontends; /* addresses of frontends, with a port where the node has the address itself */
	__u64 backends; /* addresses of backends with their ports; those that are not cluster_only once more, by another hash */
};

struct verdict_counter {
	__u64 packets;
	__u64 bytes;
};

struct service_counter {
	__u64 connections; /* flows made for new connections */
	__u64 rejected;    /* packets */
	__u64 dropped;     /* packets */
};

struct backend_counter {
	__u64 connections; /* flows made for new connections */
	__u64 packets_to;  /* client to backend */
	__u64 bytes_to;    /* as skb->len: with the Ethernet header */
	__u64 packets_from;
	__u64 bytes_from;
};

/* Names of ids, for the read commands. */
enum name_kind {
	NAME_SERVICE_PORT = 1, /* "namespace/name:port/TCP"; the port name may be empty */
	NAME_NODE,
	NAME_ZONE,
};
struct name_key {
	__u32 kind;
	__u32 id;
};
struct name_value {
	char text[256]; /* ended by NUL */
};

struct cidr {
	struct address address;
	struct address mask;
};

/* Which packets without a flow are looked up in connection tracking first. */
enum yield {
	YIELD_OLD = 1, /* packets in the middle of a connection: some NAT is at work */
	YIELD_NEW = 2, /* SYN and datagrams too: kube-proxy's rules are here */
};

enum shortcut_mode {
	SHORTCUT_OFF = 0,
	SHORTCUT_ON,
	SHORTCUT_WHILE_BEATING, /* as long as the agent says, several times a second, that nothing is passed by */
};

enum shortcut_beats {
	SHORTCUT_BEAT_SHIFT = 28,  /* of nanoseconds: about a quarter of a second */
	SHORTCUT_BEATS_MISSED = 2, /* after which nobody looks any more: 0.54 to 0.81 seconds */
};

/* Bits that programs write as well. */
enum routed {
	ROUTED_HERE =
		1, /* a client off the node has come to a server of this node by a ClusterIP. Written by the programs */
	/* Bytes of flows are counted: no packet takes the fast path. The agent begins that, and the programs end it (observe.h). Programs
	 * that do not know of it take it for ROUTED_HERE, which costs them a saving and nothing else. */
	ROUTED_FLOWS_COUNTED = 2,
	/* Connections of sockets of the host went to another backend (host.h), as far as anybody knows: packets of this node are looked for in the
	 * flow table. The programs set both bits for each such connection, before and after it is shown. The agent takes the second one back,
	 * looks for such connections, and if there are none takes the first one back, unless the second one is there again. As above for programs
	 * that do not know of them. */
	ROUTED_HOST = 4,
	ROUTED_HOST_BEGAN = 8,
};

/* What the agent tells every program; one element, memory-mapped. */
struct settings {
	__u32 schema;  /* SCHEMA_VERSION */
	__u8 disabled; /* not 0: pass everything */
	__u8 draining; /* not 0: new connections are left to kube-proxy; those that have a flow go on. Written by nearlb handover */
	__u8 yield;  /* enum yield, or-ed: whether the kernel's NAT may have connections to frontends */
	__u8 routed; /* enum routed */
	__u32 cidr_count;
	__u16 snat_first;       /* first port, in the machine's byte order, that SNAT may use */
	__u16 snat_count;       /* of ports; 0: no SNAT */
	__u16 snat_quiet_first; /* the same of ports beyond these that the host's own connections do not get by themselves; */
	__u16 snat_quiet_count; /* 0: none */
	__u8 snat_wide; /* not 0: where those of --snat-ports are taken, every port from 1024 on serves that is nobody's */
	__u8 shortcut; /* enum shortcut_mode: whether translated packets leave past the host's stack */
	__u16 shortcut_beat; /* SHORTCUT_WHILE_BEATING: bpf_ktime_get_ns >> SHORTCUT_BEAT_SHIFT of the last heartbeat, its low bits */
	__u64 seed;      /* of the flow table's and the filter's hash; drawn once, kept over restarts */
	__u64 responder; /* bpf_ktime_get_ns of the last heartbeat of who answers names on this node; 0: nobody does */
	__u64 netns;     /* cookie of the host's network namespace, as its sockets tell it; 0: not known */
	struct address loopback4; /* source of hairpin flows */
	struct address loopback6;
	struct address node4; /* the node's first address of the family; zero: none */
	struct address node6;
	struct address node_port4; /* answers NodePorts: what loopback addresses stand for; zero: none */
	struct address node_port6;
	struct cidr cidrs[SERVICE_CIDRS_MAX];
	/* A Bloom filter of sources: each sets two bits. It tells most other addresses at once. */
	__u64 source_bits[SOURCE_BITS / 64];
	/* Addresses that SNAT may use. An index keeps its address while a flow may name it; zero: free. */
	struct address sources[SOURCES_MAX];
};

/* Raised when an agent that does not know of the change would misread the tables. The next agent carries them over by the names of
 * fields (pkg/bpf conversion): so a field whose meaning changes gets another name, and zero means "nothing of the kind". */
enum schema {
	SCHEMA_VERSION = 6,
};

/* A device that routes lead to; key: ifindex. Of a network device: what SNAT uses there where the route names no source. */
struct device {
	__u8 source4; /* index in sources, 0 none */
	__u8 source6;
	__u8 pod; /* not 0: the host's side of a pod of this node, a veth whose other side is in the pod's namespace; it has no sources */
	__u8 pad[5];
	__u64 others4; /* bits by index in sources: the device's other addresses, which serve when that one has no port left */
	__u64 others6;
};
_Static_assert(SOURCES_MAX == 64, "a bit for each");

#define XDP_DEVICES 256

/* What the program at XDP does with a device's frames; 0: it passes all. */
enum xdp_takes {
	XDP_TAKES = 1, /* it serves them */
	XDP_TAKES_REDIRECT =
		2, /* those that leave as they came are redirected: a veth in its driver, where what is sent back may lie at the other end until
		    * something else comes */
	XDP_OPENS = 4, /* it takes packets out of the tunnel for from_net, which is at the same device */
};

/* A network device for the program at XDP; index: the ifindex modulo XDP_DEVICES. */
struct xdp_device {
	__u32 ifindex; /* 0: none */
	__u8 mac[6];   /* to which its host's frames go */
	__u8 takes;    /* enum xdp_takes, or-ed */
	__u8 sends;    /* not 0: it sends frames that came by another device's XDP */
	__u32 epoch;   /* of what the program remembers: of another one it is nothing */
};
_Static_assert(sizeof(struct xdp_device) == 16, "layout is shared");

/* Beside the number of an entry that packets of both directions find, as of a flow through the tunnel: of those to the client. */
#define XDP_WAY_BACK (1u << 31)

/* What the program at XDP remembers of the way of a flow's packets in one direction, for a moment; index: the entry's number modulo the
 * size, of XDP_WAY_BACK from the other end. One for each processor, on which nothing comes between. */
struct xdp_way {
	__u32 at;        /* number of the entry that packets of this direction find, and XDP_WAY_BACK */
	__u32 word;      /* of it: another one is another flow's */
	__u32 twin;      /* number of its second entry, of a flow that has one */
	__u32 twin_word; /* of that */
	__u32 when;      /* jiffies (low 32 bits) when the routing tables were asked */
	__u32 ifindex;   /* of the device to leave by; 0: the way is TC's to find */
	__u8 macs[12];   /* destination and source, as an Ethernet header has them */
	__u32 mtu;       /* of the way: bytes of the largest IP packet */
	__u32 epoch;     /* of the device that the packets came by */
	__u32 from;      /* ifindex of that */
};
_Static_assert(sizeof(struct xdp_way) == 48, "layout is shared");

#define XDP_NEIGHBOURS     1024 /* a power of two */
#define XDP_NEIGHBOUR_WAYS 4    /* in which the same one may be: side by side */

/* A neighbour that new connections went to, by the device and its address. Of all zeroes: none. */
struct xdp_neighbour {
	__u32 key;  /* hash of both */
	__u32 when; /* jiffies (low 32 bits) when one last went by TC */
};

/* By the upper byte of a hash of a datagram's destination, not 0: the last one there that opened a flow was dropped. It says where a flow is looked
 * for first, not what becomes of a packet. */
struct xdp_refusals {
	__u8 last[256];
};

/* Room for what the other programs at XDP know of a packet (struct xdp_carriage, struct xdp_creation), for the sake of the stack. */
struct xdp_work {
	__u64 words[48];
};

#define TUNNEL_COOKIES 2 /* that are accepted while the key changes */

/* This node's side of the tunnel. */
struct tunnel_end {
	struct address own4; /* to which the other nodes send; zero: none */
	struct address own6;
	__u64 accepted[TUNNEL_COOKIES]; /* what a packet of another node has one of, 0: none */
	__u64 cookie;                   /* what this node's packets have, 0: none */
	__be16 port;                    /* of every node; 0: there is no tunnel */
	__u8 keyed;                     /* not 0: accepted is asked */
	__u8 leaving;                   /* not 0: it ends with its last connection, and answers no hello */
	__u8 pad[4];
};
_Static_assert(sizeof(struct tunnel_end) == 64, "layout is shared");

/* Another node's side of it; key: the node's number in names. */
struct tunnel_node {
	struct address address4; /* zero: none */
	struct address address6;
	__u8 carries; /* not 0: it takes packets of new connections */
	__u8 direct;  /* not 0: it can answer their clients itself */
	__u8 unheard; /* not 0: it has answered no hello, so that it may have no tunnel */
	__u8 pad[5];
};
_Static_assert(sizeof(struct tunnel_node) == 40, "layout is shared");

/* Key of local_backends: an endpoint of a service port. */
struct local_key {
	struct address address;
	__be16 port;
	__u16 pad;
	__u32 service; /* id of the service port */
};
_Static_assert(sizeof(struct local_key) == 24, "layout is shared");

/* What a packet brought with it through the tunnel, from one program to the next. One for each processor, on which nothing comes between. */
struct tunnel_packet {
	struct address backend;
	__be16 port;  /* of the backend; 0: it named none */
	__u16 node;   /* number of the node that sent it */
	__u32 length; /* as it came */
	__u8 kind;    /* enum tunnel_kind */
	__u8 pad[7];
};
_Static_assert(sizeof(struct tunnel_packet) == 32, "layout is shared");

/* In front of a packet that the program at XDP took out of the tunnel (its metadata, which may have 32 bytes): what its headers said. It is the
 * same for alike packets of a connection, as the kernel merges no others. */
struct opened {
	__u64 salt; /* opened_salt: it is of this node's program */
	struct address backend;
	__be16 port; /* of the backend; 0: it named none */
	__u16 node;  /* number of the node that sent it */
	__u8 kind;   /* enum tunnel_kind */
	__u8 size;   /* bytes of the headers */
	__u8 pad[2];
};
_Static_assert(sizeof(struct opened) == 32, "fits metadata");

/* Key: a socket that sends datagrams to several destinations, and one of these, as the socket names it (frontend) or as it is (backend). */
struct sock_key {
	__u64 cookie; /* of the socket */
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 side; /* enum sock_side: what address and port are */
	__u8 pad[4];
};
_Static_assert(sizeof(struct sock_key) == 32, "layout is shared");

enum sock_side {
	SOCK_FRONTEND = 0, /* what the client named */
	SOCK_BACKEND,      /* what answers it */
};

struct sock_value {
	struct address address; /* the other side */
	__be16 port;
	__u16 generation; /* of the backend id */
	__u32 backend;    /* id */
	__u32 service;    /* id of the service port */
	__u32 pad;
};
_Static_assert(sizeof(struct sock_value) == 32, "layout is shared");

/* Whom a connected socket speaks with. Kept with the socket itself, as long as it lives. */
struct sock_peer {
	struct address frontend; /* that it named */
	struct address address;  /* of the backend */
	__be16 frontend_port;
	__be16 port;
	__u16 generation; /* of the backend id */
	__u8 protocol;    /* IANA number */
	__u8 pad;
	__u32 backend; /* id */
	__u32 service; /* id of the service port */
};
_Static_assert(sizeof(struct sock_peer) == 48, "layout is shared");

/* What the program sock_peers lists of a socket. */
struct sock_row {
	__u64 cookie; /* of the socket */
	struct sock_peer peer;
};
_Static_assert(sizeof(struct sock_row) == 56, "layout is shared");

enum event_kind {
	EVENT_DROP = 1,
	EVENT_REJECT,
};

/* Programs reached by tail call: index into the map programs. */
enum program {
	PROGRAM_FROM_POD_SLOW = 0, /* new flows, options, fragments, everything the fast path leaves */
	PROGRAM_TO_POD_SLOW,
	PROGRAM_FROM_POD_HAIRPIN, /* a pod answers itself */
	PROGRAM_FROM_POD_ICMP,    /* ICMP and ICMPv6: echo requests, errors that quote a translated packet */
	PROGRAM_TO_POD_ICMP,
	PROGRAM_REJECT, /* answers TCP RST or port unreachable to the sender */
	PROGRAM_FROM_NET_SLOW,
	PROGRAM_TO_NET_SLOW,
	PROGRAM_FROM_NET_REPLY, /* replies to SNAT */
	PROGRAM_FROM_NET_ICMP,
	PROGRAM_TO_NET_ICMP,
	PROGRAM_ROUTE,   /* sends a translated packet out by itself, past the host's stack */
	PROGRAM_TOO_BIG, /* answers packet too big, or time exceeded, for a translated packet */
	/* from_net and from_pod of the tables that are being left, while they are: they may know whose packet this is. For packets of clients, from
	 * which those programs may make a flow; */
	PROGRAM_FORMER,
	PROGRAM_FORMER_POD,
	PROGRAM_SHORTCUT,       /* sends what was translated out past the host's stack, or leaves it to that */
	PROGRAM_TUNNEL_OUT,     /* sends a packet to another node through the tunnel */
	PROGRAM_TUNNEL_IN,      /* takes a packet out of the tunnel */
	PROGRAM_TUNNEL_FORWARD, /* that of a client: translates it towards a backend of this node */
	PROGRAM_TUNNEL_BACK, /* an answer: sends it to the client; a client's packet that came back: sends it by SNAT */
	PROGRAM_TUNNEL_ICMP, /* an error about either */
	PROGRAM_FROM_POD_DNS,   /* answers a question for a name, or leaves it to the slow path */
	PROGRAM_RESEND,         /* makes the kept SYN of a refusal */
	PROGRAM_FROM_NET_FAST,  /* from_net, where XDP takes packets out of the tunnel */
	PROGRAM_TUNNEL_OPENED,  /* goes on with such a packet */
	PROGRAM_HOST_OUT,       /* a packet of a socket of the host whose SYN came again */
	PROGRAM_FROM_POD_REPLY, /* the answer to it */
	PROGRAM_ONWARD,         /* a packet of a known connection through SNAT or the tunnel, which only goes on */
	PROGRAM_FORMER_REPLY, /* and for answers, as long as programs of those tables that leave the node may make one */
	PROGRAM_FORMER_POD_REPLY,
	PROGRAM_MAX,
};

/* Index of the map xdp_programs: the programs at XDP that from_net_xdp calls. */
enum xdp_program {
	XDP_PROGRAM_TUNNEL_OUT = 0, /* client packets into the tunnel */
	XDP_PROGRAM_TUNNEL_IN,      /* what other nodes sent, out of it */
	XDP_PROGRAM_CREATE,         /* client packets that open a connection */
	XDP_PROGRAM_MAX,
};

#define ANSWER_LABEL_WORDS 8
#define ANSWER_ADDRESSES   8 /* of one name; it is a power of two */

/* Names that the programs answer: a tree by labels, from the last one of a name on. Key of answers. */
struct answer_key {
	__u32 parent;                    /* number of the name without this label; 0: the root */
	__u32 length;                    /* of the label */
	__u64 label[ANSWER_LABEL_WORDS]; /* in small letters, then zeros */
};
_Static_assert(sizeof(struct answer_key) == 72, "layout is shared");

enum answer_flags {
	ANSWER_ASK_A = 1,     /* the responder alone knows the name's A records, */
	ANSWER_ASK_AAAA = 2,  /* its AAAA records, */
	ANSWER_ASK_BELOW = 4, /* and which of the names below it exist that are not here */
	ANSWER_MISSING = 8,   /* the name itself does not exist */
	ANSWER_ZONE = 16,     /* it is a zone */
};

/* What a name has. Never edited: it is replaced as a whole. */
struct answer {
	__u64 check;  /* of key and value: a reader that finds another sum asks the responder */
	__u32 number; /* that names below it have as parent */
	__u8 flags;   /* enum answer_flags */
	__u8 count4;  /* addresses for A, */
	__u8 count6;  /* and behind them for AAAA */
	__u8 pad;
	__u8 tiers[ANSWER_ADDRESSES]; /* of each address: the first one that is as near (four bits), and how many are */
	struct address addresses[ANSWER_ADDRESSES]; /* nearest first */
};
_Static_assert(sizeof(struct answer) == 152, "layout is shared");

/* What the agent tells of them all; one element, memory-mapped. */
struct answer_settings {
	__u32 on;      /* not 0: all names in force are here. A heartbeat is wanted as well: responder of settings */
	__u32 serial;  /* of the zones, in the machine's byte order as are the others: */
	__u32 ttl;     /* seconds */
	__u32 refresh; /* the numbers of SOA records */
	__u32 retry;
	__u32 expire;
};
_Static_assert(sizeof(struct answer_settings) == 24, "layout is shared");

struct answer_counter {
	__u64 questions;
};

/* Index of answer_counters: or-ed. */
enum answer_count {
	ANSWER_COUNT_MISSING = 1, /* NXDOMAIN; without it NOERROR */
	ANSWER_COUNT_AAAA = 2,    /* without it A */
	ANSWER_COUNT_MAX = 4,
};

#define DNS_LABELS        32  /* names of more labels are left to the responder */
#define DNS_QUESTION_ROOM 512 /* powers of two */
#define DNS_DATAGRAM_ROOM 2048

/* Where a processor keeps a question while it answers it. */
struct dns_work {
	__u8 question[DNS_QUESTION_ROOM + 288]; /* the message, and room for what is copied by words */
	__u8 datagram[DNS_DATAGRAM_ROOM + 288]; /* the answer: UDP header and message */
	struct answer found;
	__u8 starts[DNS_LABELS]; /* of the labels, counted from the name's first byte */
	__u32 labels;
	__u32 name;    /* bytes of the name */
	__u32 zone;    /* offset of the zone in the message */
	__u32 type;    /* of records */
	__u32 limit;   /* bytes of the largest answer that the client takes */
	__u32 options; /* bytes of the OPT record, 0: there is none */
	__u32 turn;    /* a number drawn for the order of equally near addresses */
	__u32 pad;
};

/* One record of the events ring: a sampled drop or reject. */
struct event {
	__u64 time; /* bpf_ktime_get_boot_ns */
	__u32 kind;
	__u32 verdict;
	__u32 hook;
	__u32 ifindex;
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 pad[3];
};

struct event_budget {
	__u32 since; /* jiffies (low 32 bits) */
	__u32 written;
};

/* A token bucket. */
struct icmp_budget {
	__u32 filled; /* jiffies (low 32 bits) when credit was last brought up to date */
	__u32 pad;
	__u64 credit; /* ICMP errors that may be sent, times jiffies_per_second */
};
_Static_assert(sizeof(struct icmp_budget) == 16, "layout is shared");

/* What the program did with one packet; written only where the knob trace_on is set (nearlb trace). */
struct trace_result {
	__u32 verdict;
	__u32 service; /* id of the service port, valid if frontend_found */
	__u32 backend; /* id, valid if backend_found */
	__u8 frontend_found;
	__u8 backend_found;
	__u8 snat; /* the backend sees another source address than the client's */
	__u8 side;
	struct frontend_key frontend;
	struct address source; /* that the backend sees, valid if backend_found */
};
