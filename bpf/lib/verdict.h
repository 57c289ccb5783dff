/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The classes of verdicts. */
#pragma once

#include "types.h"

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
