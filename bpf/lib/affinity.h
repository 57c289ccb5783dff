/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity ClientIP: a client keeps its backend of a service port while it comes back in time. */
#pragma once

#include "backend.h"

#define NANOSECONDS 1000000000ULL

/* Not 0: the remembered backend still is in the side's list and may be used. The window slides. A function of its own for
 * the sake of the stack. */
__noinline int affinity_find(struct choice *choice, const struct record *record, const struct side *side,
			     const struct address *client)
{
	struct affinity_key key = {};
	struct affinity_value *value;
	const struct backend *backend;
	__u64 now;

	if (!choice || !record || !side || !client)
		return false;
	key.client = *client;
	key.service = record->service;
	value = bpf_map_lookup_elem(&affinity, &key);
	if (!value)
		return false;
	now = bpf_ktime_get_boot_ns();
	if (now - value->touched >= record->affinity * NANOSECONDS)
		return false;
	backend = backend_get(value->backend);
	if (!backend || backend->generation != value->generation || backend->service != record->service)
		return false;
	if (!(backend->member & side->member) || !backend_serving(backend))
		return false;
	value->touched = now;
	return backend_choose(choice, value->backend, backend);
}

/* A function of its own for the sake of the stack. */
__noinline int affinity_remember(const struct choice *choice, const struct address *client, __u32 service)
{
	struct affinity_key key = {};
	struct affinity_value value = {};

	if (!choice || !client)
		return 0;
	key.client = *client;
	key.service = service;
	value.backend = choice->backend;
	value.generation = choice->generation;
	value.touched = bpf_ktime_get_boot_ns();
	bpf_map_update_elem(&affinity, &key, &value, BPF_ANY);
	return 0;
}
