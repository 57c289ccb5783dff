/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters. They are per processor: no atomics. */
#pragma once

#include "maps.h"
#include "verdict.h"

static __always_inline void count_verdict(enum hook hook, enum verdict verdict, __u32 length)
{
	__u32 index = hook * VERDICT_MAX + verdict;
	struct verdict_counter *counter = bpf_map_lookup_elem(&verdicts, &index);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += length;
}

static __always_inline void count_to_backend(__u32 backend, __u32 length)
{
	struct backend_counter *counter = bpf_map_lookup_elem(&backend_counters, &backend);

	if (!counter)
		return;
	counter->packets_to++;
	counter->bytes_to += length;
}

static __always_inline void count_from_backend(__u32 backend, __u32 length)
{
	struct backend_counter *counter = bpf_map_lookup_elem(&backend_counters, &backend);

	if (!counter)
		return;
	counter->packets_from++;
	counter->bytes_from += length;
}

static __always_inline void count_connection(__u32 service, __u32 backend)
{
	struct service_counter *of_service = bpf_map_lookup_elem(&service_counters, &service);
	struct backend_counter *of_backend = bpf_map_lookup_elem(&backend_counters, &backend);

	if (of_service)
		of_service->connections++;
	if (of_backend)
		of_backend->connections++;
}

/* A packet that a service did not get. */
static __always_inline void count_refused(__u32 service, enum verdict verdict)
{
	struct service_counter *counter = bpf_map_lookup_elem(&service_counters, &service);

	if (!counter)
		return;
	if (verdict_is_drop(verdict))
		counter->dropped++;
	else if (verdict_is_reject(verdict))
		counter->rejected++;
}
