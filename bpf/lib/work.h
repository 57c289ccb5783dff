/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the slow path hands on: struct work inside one program, skb->cb from one program to the next. */
#pragma once

#include "flow_insert.h"
#include "forward.h"

/* What the slow path knows about a packet. */
struct work {
	struct packet packet;
	const struct settings *settings;
	struct insertion in;
	struct found found;
	__u32 service; /* id of the service port, 0 none */
	bool again;    /* begin anew by a tail call */
	bool clash;    /* ... and with another source port */
	bool icmp;     /* the ICMP program goes on */
	bool hairpin;  /* the hairpin program goes on */
	bool reply;    /* the program for replies to SNAT goes on */
};

/* What one program leaves for the next in skb->cb. */

#define TRIES_MAX 24 /* of the slow path; the kernel allows 33 tail calls */

enum cb {
	/* slow path */
	CB_TRY = 0,       /* how often it has begun anew */
	CB_TRANSLATE = 1, /* not 0: the client's source port is taken, choose another */
	CB_LOST = 2,      /* not 0: there was a flow, and its backend is not usable */
	CB_PORT = 3,      /* number of the next port that SNAT tries, and one; 0: none was tried */
	/* reject */
	CB_VERDICT = 0,
	CB_HOOK = 1,
	/* route, too big */
	CB_LENGTH = 1, /* of the packet as it came */
	CB_SERVICE = 2,
	CB_WAY = 3, /* enum way */
	CB_MTU = 4,
};

/* What is routed. */
enum way {
	WAY_FORWARD = 0, /* a packet to a server, */
	WAY_BACK,        /* to a client, */
	WAY_ERROR,       /* an ICMP error: no other is made of it */
};

static __always_inline void tail_begin(struct __sk_buff *skb)
{
	skb->cb[CB_TRY] = 0;
	skb->cb[CB_TRANSLATE] = 0;
	skb->cb[CB_LOST] = 0;
	skb->cb[CB_PORT] = 0;
}

/* False: often enough. */
static __always_inline bool tail_again(struct __sk_buff *skb, bool translate, bool lost)
{
	if (skb->cb[CB_TRY] >= TRIES_MAX)
		return false;
	skb->cb[CB_TRY]++;
	if (translate)
		skb->cb[CB_TRANSLATE] = 1;
	if (lost)
		skb->cb[CB_LOST] = 1;
	return true;
}

static __always_inline void tail_route(struct __sk_buff *skb, enum verdict verdict, __u32 length, __u32 service,
				       enum way way)
{
	skb->cb[CB_VERDICT] = verdict;
	skb->cb[CB_LENGTH] = length;
	skb->cb[CB_SERVICE] = service;
	skb->cb[CB_WAY] = way;
}

static __always_inline void tail_too_big(struct __sk_buff *skb, enum verdict verdict, __u32 mtu)
{
	skb->cb[CB_VERDICT] = verdict;
	skb->cb[CB_MTU] = mtu;
}

static __always_inline void tail_reject(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	skb->cb[CB_VERDICT] = verdict;
	skb->cb[CB_HOOK] = hook;
}
