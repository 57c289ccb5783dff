/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What one program leaves for the next in skb->cb. */
#pragma once

#include "types.h"

#define TRIES_MAX 24 /* of the slow path; the kernel allows 33 tail calls */

enum cb {
	/* slow path */
	CB_TRY = 0,       /* how often it has begun anew */
	CB_TRANSLATE = 1, /* not 0: the client's source port is taken, choose another */
	CB_LOST = 2,      /* not 0: there was a flow, and its backend is not usable */
	/* reject */
	CB_VERDICT = 0,
	CB_HOOK = 1,
};

static __always_inline void tail_begin(struct __sk_buff *skb)
{
	skb->cb[CB_TRY] = 0;
	skb->cb[CB_TRANSLATE] = 0;
	skb->cb[CB_LOST] = 0;
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

static __always_inline void tail_reject(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	skb->cb[CB_VERDICT] = verdict;
	skb->cb[CB_HOOK] = hook;
}
