/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tells the agent of calls that failed. */
#pragma once

#include "event.h"
#include "sock.h"

static __always_inline void sock_event(const struct sock_request *request, enum verdict verdict)
{
	struct event *event;

	if (!event_allowed())
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return;
	__builtin_memset(event, 0, sizeof(*event));
	event->time = bpf_ktime_get_boot_ns();
	event->kind = verdict_is_drop(verdict) ? EVENT_DROP : EVENT_REJECT;
	event->verdict = verdict;
	event->hook = HOOK_SOCK;
	event->source = request->source;
	event->destination = request->key.address;
	event->destination_port = request->key.port;
	event->protocol = request->key.protocol;
	bpf_ringbuf_submit(event, 0);
}
