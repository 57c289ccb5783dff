/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the slow path hands on: from one program to the next in skb->cb, inside one program in struct work, and from a step to its
 * caller in struct step; and the last line of every program at TC. */
#pragma once

#include <linux/pkt_cls.h>

#include "answer.h"
#include "flow_insert.h"
#include "observe.h"
#include "route.h"

#define TRIES_MAX 24 /* of the slow path; the kernel allows 33 tail calls */

/* What one program leaves for the next in skb->cb: one struct for each stage. The first program of a stage fills it. */

/* From the slow path to itself, when it begins anew. */
struct handed_slow {
	__u8 tries;     /* how often it has begun anew */
	__u8 host;      /* of a connection of the host (host.h): enum hook, and HANDED_LOADS */
	__u8 translate; /* not 0: the client's source port is taken, choose another */
	__u8 lost;      /* LOST_: what is wrong with the flow that there was */
	__u32 snat_next; /* number of the next port that SNAT tries, and one; above it the turn of its source; 0: none was tried */
	__u32 backend; /* id, not 0: the flow goes there (retry_choose) */
	__u32 tried;   /* then: the others, as in seen of the flow; at XDP the connection's turn, if it takes one */
	__u32 verdict; /* of the flow that is being made. Here the verifier forgets it, and goes through what follows once for all of them */
};
_Static_assert(sizeof(struct handed_slow) <= sizeof(((struct __sk_buff *)0)->cb), "fits skb->cb");

#define HANDED_LOADS 0x80 /* the flow's Service balances by connections */

#define LOST_BACKEND 1 /* its backend is not usable */
#define LOST_WAY \
	2 /* it went through the tunnel, from where the packet came back: the other node does not know its backend */

/* To the program reject. */
struct handed_reject {
	__u32 verdict;
	__u32 hook;
};

/* To the program shortcut. */
struct handed_shortcut {
	__u32 verdict; /* that the packet is counted with, whichever way it takes */
	__u32 hook;    /* and above its eight bits how much longer the packet was as it came */
};

/* What is routed. */
enum way {
	WAY_FORWARD = 0, /* a packet to a server, */
	WAY_BACK,        /* to a client, */
	WAY_ERROR,       /* an ICMP error: no other is made of it, */
	WAY_CARRY,       /* a client's packet to another node, untranslated, */
	WAY_CARRIED,     /* an answer that came through the tunnel, to a client: errors about it go back there */
	WAY_HOST,        /* a packet of the host's own to a server: its TTL stays, and an error goes to the host */
	WAY_NEAR,        /* WAY_FORWARD of a client of this node, whose address the server sees (CARRIED_NEAR) */
	WAY_BACK_HOST,   /* WAY_BACK of a server that is the host itself: an error about its answer goes to the host */
};

/* To the program route, from there to too_big, and back with the answer. */
struct handed_route {
	__u32 verdict; /* of the packet */
	__u32 length;  /* of the packet as it came */
	__u32 service;
	__u8 way;   /* enum way */
	__u8 hook;  /* where the packet came, and is counted */
	__u16 node; /* WAY_CARRIED: number of the node that the packet came from */
	__u32 mtu;  /* written by route for too_big */
};
_Static_assert(sizeof(struct handed_route) <= sizeof(((struct __sk_buff *)0)->cb), "fits skb->cb");

/* What the field for the number of a virtual network says. */
enum tunnel_kind {
	TUNNEL_FORWARD = 1, /* from a client: the inner destination is the frontend */
	TUNNEL_REPLY = 2,   /* to a client: the inner source is the frontend */
	TUNNEL_HELLO = 3,   /* of an agent: does the node take packets? */
	TUNNEL_ANSWER = 4,  /* it does; of the programs */
	TUNNEL_DIRECT = 7,  /* TUNNEL_FORWARD, and answers go to the client itself (reply_goes_back) */
	TUNNEL_UNKNOWN = 8, /* from a client, back from the node that it went to: that knows no such backend */
	TUNNEL_KNOWN = 128, /* in skb->cb: the other node has the connection, and needs no option */
};

/* Beside TUNNEL_ANSWER. */
#define TUNNEL_ANSWERS_DIRECT 1 /* the node takes TUNNEL_DIRECT */
#define TUNNEL_ANSWERS_NO_WAY 2 /* it is there, and has no way back for what it would take */

/* To the program tunnel_out. */
struct handed_tunnel {
	__u32 verdict; /* of the packet */
	__u32 length;  /* of the packet as it came */
	__u32 service;
	__u32 backend; /* id, 0: the packet names none */
	__u16 node;    /* number of the node that it goes to */
	__u8 kind;     /* enum tunnel_kind, and TUNNEL_KNOWN */
	__u8 hook;     /* where it came, and is counted */
};
_Static_assert(sizeof(struct handed_tunnel) <= sizeof(((struct __sk_buff *)0)->cb), "fits skb->cb");

/* To the program onward: the entry that the packet was found to have. */
struct handed_onward {
	__u32 at; /* its number */
	__u32 word;
	__u32 back; /* not 0: the packet is a reply to SNAT */
};

/* To the program resend. */
struct handed_resend {
	__u32 flow; /* kept_flow of the SYN */
	__u32 hook; /* where the refusal came, and is counted */
};

/* The attribute keeps each access one to the context with a constant offset, as the verifier demands. */
struct handed {
	__u8 context[offsetof(struct __sk_buff, cb)];
	union {
		struct handed_slow slow;
		struct handed_reject reject;
		struct handed_route route;
		struct handed_shortcut shortcut;
		struct handed_tunnel tunnel;
		struct handed_resend resend;
		struct handed_onward onward;
	};
} __attribute__((preserve_static_offset));

static __always_inline struct handed *handed(struct __sk_buff *skb)
{
	return (struct handed *)skb;
}

/* The program that a step runs in, at TC or at XDP: such a step has one source, and two entry points. */
struct entry_point {
	void *ctx;             /* struct __sk_buff, or struct xdp_md */
	struct handed *handed; /* at XDP in memory of its own */
	bool xdp;              /* a constant at each entry point */
};

static __always_inline struct entry_point point_tc(struct __sk_buff *skb)
{
	return (struct entry_point){ skb, handed(skb), false };
}

/* What became of a search in the flow table. No pointers: it is handed to functions that the verifier knows apart. */
struct found {
	__u32 at;   /* number of the entry; FLOW_NONE: nothing */
	__u32 word; /* of the entry */
	__u8 usable;
	__u8 lost;    /* the flow was alive, its backend is not usable */
	__u8 spilled; /* the entry was found by flow_pair_hash: it needs a second one */
	__u8 retry;   /* the flow's server did not answer its SYN, or refused it: usable too if it did not answer */
	__be16 port;  /* that the server sees of a flow whose second entry is gone, 0: it is not */
	__u8 gone;    /* of TCP, and usable: its backend is no endpoint any more */
	__u8 asks;    /* usable, and its datagrams are counted */
};

/* The entry that was found, NULL none. */
static __always_inline struct flow *found_flow(const struct found *found)
{
	return found->at == FLOW_NONE ? NULL : flow_entry(found->at);
}

/* What the slow path knows about a packet. slow_forward fills packet and settings, forward_find found, the create chain the rest. */
struct work {
	struct packet packet;
	const struct settings *settings;
	struct found found;
	union {
		struct insertion in;
		struct flow_query query; /* before there is an insertion */
	};
	__u32 service; /* id of the service port, 0 none */
};

/* What comes after a step, beside the verdict: that is what the packet is counted with. */
enum next {
	NEXT_FINISH = 0, /* nothing: the verdict is final */
	NEXT_CREATE,     /* the flow that work->in describes is made; the verdict is the packet's then */
	NEXT_TRANSLATE,  /* the packet is translated by the flow that was made; then the verdict is final */
	NEXT_ROUTE,      /* the packet was translated and is routed by the program route */
	NEXT_AGAIN,      /* the slow path begins anew */
	NEXT_AGAIN_PORT, /* the same, with another source port */
	NEXT_ICMP,       /* the program for ICMP */
	NEXT_HAIRPIN,    /* the program for replies to the hairpin address */
	NEXT_REPLY,      /* the program for replies to SNAT */
	NEXT_TUNNEL,     /* the packet goes to another node by the program tunnel_out */
	NEXT_FORMER,     /* the program of the former tables, where there are such; else the verdict is final */
	NEXT_REJECT,     /* the program reject, which answers */
	NEXT_RESEND,     /* the program resend, which makes a kept SYN of the packet */
	NEXT_HOST,       /* the program for connections of the host's own sockets */
};

struct step {
	enum next next;
	enum verdict verdict; /* from NEXT_AGAIN on: what becomes of the packet if the next step cannot be taken */
};

static __always_inline struct step step_finish(enum verdict verdict)
{
	return (struct step){ NEXT_FINISH, verdict };
}

static __always_inline struct step step_translate(enum verdict verdict)
{
	return (struct step){ NEXT_TRANSLATE, verdict };
}

static __always_inline struct step step_again(enum verdict otherwise)
{
	return (struct step){ NEXT_AGAIN, otherwise };
}

/* May be a reply to SNAT, and no flow of these tables has it. */
static __always_inline struct step step_unknown_reply(void)
{
	return (struct step){ NEXT_FORMER, VERDICT_PASS_UNKNOWN_REPLY };
}

/* Another program goes on. */
static __always_inline struct step step_to(enum next next)
{
	return (struct step){ next, VERDICT_DROP_NO_PROGRAM };
}

static __always_inline void tail_begin(struct __sk_buff *skb)
{
	handed(skb)->slow.tries = 0;
	handed(skb)->slow.host = 0;
	handed(skb)->slow.translate = 0;
	handed(skb)->slow.lost = 0;
	handed(skb)->slow.snat_next = 0;
	handed(skb)->slow.backend = 0;
	handed(skb)->slow.tried = 0;
}

/* A packet of the host's own, at the hook where it leaves. */
static __always_inline void tail_host(struct __sk_buff *skb, enum hook hook)
{
	tail_begin(skb);
	handed(skb)->slow.host = hook;
}

/* True: the slow path is to begin anew, and has not done so too often. */
static __always_inline bool tail_again(struct __sk_buff *skb, const struct work *work, enum next next)
{
	if ((next != NEXT_AGAIN && next != NEXT_AGAIN_PORT) || handed(skb)->slow.tries >= TRIES_MAX)
		return false;
	handed(skb)->slow.tries++;
	if (next == NEXT_AGAIN_PORT)
		handed(skb)->slow.translate = 1;
	if (work->found.lost)
		handed(skb)->slow.lost |= LOST_BACKEND;
	return true;
}

static __always_inline void tail_route(struct __sk_buff *skb, enum verdict verdict, __u32 length, __u32 service,
				       enum way way)
{
	handed(skb)->route.verdict = verdict;
	handed(skb)->route.length = length;
	handed(skb)->route.service = service;
	handed(skb)->route.way = way;
	handed(skb)->route.hook = HOOK_FROM_NET;
	handed(skb)->route.node = 0;
}

/* A packet goes to another node, and names no backend. */
static __always_inline void tail_tunnel_to(struct __sk_buff *skb, enum verdict verdict, __u16 node,
					   enum tunnel_kind kind, enum hook hook)
{
	handed(skb)->tunnel.verdict = verdict;
	handed(skb)->tunnel.length = skb->len;
	handed(skb)->tunnel.service = 0;
	handed(skb)->tunnel.backend = 0;
	handed(skb)->tunnel.node = node;
	handed(skb)->tunnel.kind = kind;
	handed(skb)->tunnel.hook = hook;
}

/* Of a client's packet. Until this node has seen an answer, answers come by this node: also those of a connection that another node, or an
 * entry that is gone, had before. A SYN says from the start that segments need not fit the tunnel. */
static __always_inline enum tunnel_kind tail_kind(const struct flow *flow, const struct packet *packet)
{
	return flow->flags & FLOW_DSR && (packet->tcp_flags & TCP_SYN || flow->seen & SEEN_REPLY) ? TUNNEL_DIRECT
												  : TUNNEL_FORWARD;
}

/* The packet of a flow does. What is known there of the connection need not be said again. */
static __always_inline void tail_tunnel(struct __sk_buff *skb, const struct flow *flow, enum verdict verdict,
					__u16 node, enum tunnel_kind kind, enum hook hook)
{
	tail_tunnel_to(skb, verdict, node, kind, hook);
	handed(skb)->tunnel.service = flow->service;
	handed(skb)->tunnel.backend = flow->backend;
	if (flow->seen & SEEN_REPLY)
		handed(skb)->tunnel.kind = kind | TUNNEL_KNOWN;
}

/* The error that a packet of the tunnel became goes back to where that came from. */
static __always_inline void tail_error_back(struct __sk_buff *skb)
{
	enum verdict verdict = handed(skb)->route.verdict;
	enum hook hook = handed(skb)->route.hook;
	__u32 length = handed(skb)->route.length;

	tail_tunnel_to(skb, verdict, handed(skb)->route.node, TUNNEL_FORWARD, hook);
	handed(skb)->tunnel.length = length;
}

static __always_inline void tail_too_big(struct __sk_buff *skb, enum verdict verdict, __u32 mtu)
{
	handed(skb)->route.verdict = verdict;
	handed(skb)->route.mtu = mtu;
}

static __always_inline void tail_reject(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	handed(skb)->reject.verdict = verdict;
	handed(skb)->reject.hook = hook;
}

/* The last line of every program at TC: counts the packet once and turns its verdict into what TC does. */

/* What goes out past the stack has no tag of the way that it came by: where there is one it is a priority tag. */
static __always_inline void finish_untag(struct __sk_buff *skb)
{
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
}

/* length: of the packet as it came. turned: it now goes back through its device. TC_ACT_UNSPEC lets other programs of the hook see the packet;
 * without any it goes on. A reject that is not turned has no answer. */
static __always_inline int finish_turned(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					 bool turned)
{
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	if (verdict_is_drop(verdict))
		return TC_ACT_SHOT;
	if (turned) { /* what was about to leave comes in */
		finish_untag(skb);
		return bpf_redirect(skb->ifindex, hook == HOOK_TO_NET ? BPF_F_INGRESS : 0);
	}
	return verdict >= VERDICT_REJECT_NO_ENDPOINTS ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Counts the packet with what was decided before it was routed, and lets it go. */
static __always_inline int finish_routed(struct __sk_buff *skb, enum hook hook, enum verdict verdict, __u32 length,
					 struct route *route)
{
	if (route->stack)
		return finish_turned(skb, hook, verdict, length, false);
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	finish_untag(skb);
	return route_send(route);
}

/* ifindex: by which the packet comes in once more, as another one. */
static __always_inline int finish_resent(enum hook hook, enum verdict verdict, __u32 length, __u32 ifindex)
{
	trace_verdict(verdict);
	count_verdict(hook, verdict, length);
	return verdict_is_drop(verdict) ? TC_ACT_SHOT : bpf_redirect(ifindex, BPF_F_INGRESS);
}

static __always_inline int finish(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	return finish_turned(skb, hook, verdict, skb->len, verdict == VERDICT_TRANSLATE_HAIRPIN);
}

/* Of the slow path: also says which service did not get the packet, and answers what is rejected. */
static __always_inline int slow_finish(struct __sk_buff *skb, const struct work *work, enum hook hook,
				       enum verdict verdict)
{
	/* what is held back was refused none the less: its sender is not told */
	if (verdict_is_reject(verdict) && work->packet.protocol != IPPROTO_TCP && !icmp_error_allowed())
		verdict = VERDICT_DROP_ICMP_LIMIT;
	if (work->service)
		count_refused(work->service, verdict);
	event_refused(skb, &work->packet, verdict);
	if (verdict_is_reject(verdict)) {
		tail_reject(skb, hook, verdict);
		bpf_tail_call(skb, &programs, PROGRAM_REJECT);
		verdict = VERDICT_DROP_NO_PROGRAM;
	}
	return finish(skb, hook, verdict);
}
