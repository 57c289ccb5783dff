/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How backends answer: for how long each has not, and how long it takes to answer a SYN. */
#pragma once

#include "config.h"
#include "maps.h"
#include "settings.h"

/* Backends that do not answer. The programs keep evidence and pass over those that the agent has left out (pkg/maps health.go); an answer
 * puts a backend back at once, whoever it is for. */

/* Connections that were not answered, one after the other, of two clients or more, or of one: the agent is told. */
#define HEALTH_FLOWS       3
#define HEALTH_FLOWS_ALONE 5

/* Such connections within this time count together: seconds. */
#define HEALTH_SECONDS 60

/* After its time is over, one connection in this time may try a backend: nanoseconds. A SYN comes again after a second. */
#define HEALTH_TRIAL 2000000000ULL

static __always_inline struct backend_health *health_get(__u32 id)
{
	return bpf_map_lookup_elem(&backend_health, &id);
}

/* Jiffies since a time. Another processor may have read a later clock: that is no age. */
static __always_inline __u32 health_age(__u32 time, __u32 now)
{
	__u32 age = now - time;

	return age > -jiffies_per_second ? 0 : age;
}

/* New connections are to pass over this backend. tries: one may go there once its time is over, and this one does if the answer is no; looks: it
 * would, and may be another's yet. */
static __always_inline bool health_out(__u32 id, __u16 generation, bool tries, bool looks)
{
	struct backend_health *health = health_get(id);
	__u64 until, now;

	if (!health)
		return false;
	until = *(volatile __u64 *)&health->until;
	if (!until || health->generation != generation)
		return false;
	now = bpf_ktime_get_boot_ns();
	if ((__s64)(now - until) < 0 || !tries)
		return true;
	return !trace_on && !looks && __sync_val_compare_and_swap(&health->until, until, now + HEALTH_TRIAL) != until;
}

/* The backend has answered a connection no longer ago than age, in jiffies; 0 is never, as just after a start jiffies are about to wrap. */
static __always_inline bool health_answered_within(const struct backend_health *health, __u32 age, __u32 now)
{
	__u32 answered = *(volatile const __u32 *)&health->answered;

	return answered && health_age(answered, now) <= age;
}

/* The first answer to a connection. The time is up to an eighth of a second behind, so that answers to many hardly ever write. */
static __always_inline void health_answered(__u32 id)
{
	struct backend_health *health = id && !trace_on ? health_get(id) : NULL;
	__u32 now = bpf_jiffies64();

	if (!health)
		return;
	if (now - *(volatile __u32 *)&health->answered >= jiffies_per_second / 8)
		*(volatile __u32 *)&health->answered = now ? now : 1;
	if (*(volatile __u64 *)&health->until)
		*(volatile __u64 *)&health->until = 0;
}

/* Has the agent look at a backend, once a second at most. What a full ring loses is told again a second later, while connections fail. */
static __always_inline void health_tell(struct backend_health *health, __u32 id, __u32 now)
{
	struct suspect suspect = { .backend = id, .generation = health->generation };

	if (health->told && now - health->told < jiffies_per_second)
		return;
	health->told = now;
	bpf_ringbuf_output(&suspects, &suspect, sizeof(suspect), 0);
}

/* Begins anew where the evidence is another endpoint's, too old, or from before an answer. */
static __always_inline void health_begin(struct backend_health *health, const struct flow *flow, __u32 now)
{
	__u32 age = health_age(health->began, now);

	if (health->generation != flow->generation) {
		health->until = 0;
		health->times = 0;
		health->told = 0;
		health->unanswered = 0;
		health->ahead = 0;
		health->generation = flow->generation;
	}
	if (age > HEALTH_SECONDS * jiffies_per_second || health_answered_within(health, age, now)) {
		health->unanswered = 0;
		health->ahead = 0;
	}
}

/* So many connections of so many clients (1 or 2) are enough to have the agent look. */
static __always_inline bool health_suspects(__u32 connections, __u32 clients)
{
	return connections >= (clients > 1 ? HEALTH_FLOWS : HEALTH_FLOWS_ALONE);
}

/* Counts a SYN that a backend did not answer, when its flow leaves that backend; not if the server has answered anybody since that SYN. A
 * row is written by processors side by side: they may lose a count, and make none up. A function of its own for the sake of the stack. */
__noinline int health_unanswered(const struct flow *flow)
{
	__u32 now = bpf_jiffies64();
	struct backend_health *health;
	__u32 slack = jiffies_per_second / 8;
	__u16 client;

	if (!flow || trace_on)
		return 0;
	health = health_get(flow->backend);
	if (!health || health_answered_within(health, health_age(flow->touched, now) + slack, now))
		return 0;
	health_begin(health, flow, now);
	client = maglev_hash_client(&flow->client);
	if (!health->unanswered) {
		health->began = flow->touched;
		health->first = client;
		health->clients = 1;
		health->ahead = 0;
	} else if (client != health->first) {
		health->clients = 2;
	}
	if (health->ahead)
		health->ahead--;
	else if (health->unanswered < 0xffff)
		health->unanswered++;
	if (!health->until && health_suspects(health->unanswered, health->clients))
		health_tell(health, flow->backend, now);
	return 0;
}

/* A backend that dies is found before the first SYN comes again, a second later, where many connections begin: by that it has answered none of
 * several. Which backend is awaited so is in a small table beside; another one may take its place there, and is found by SYNs that come again. */

static __always_inline struct awaited_backend *awaited_slot(__u32 id)
{
	__u32 index = id & (AWAITED_SLOTS - 1);

	return bpf_map_lookup_elem(&awaited_backends, &index);
}

static __always_inline void awaited_begin(struct awaited_backend *awaited, const struct flow *flow, __u32 client,
					  __u32 now)
{
	awaited->backend = flow->backend;
	awaited->generation = flow->generation;
	awaited->connections = 1;
	awaited->clients = 1;
	awaited->first = client;
	awaited->began = now;
}

/* What is awaited becomes evidence: the same connections, whose SYNs have not come again yet. */
static __always_inline void awaited_tell(struct backend_health *health, const struct awaited_backend *awaited,
					 const struct flow *flow, __u32 now)
{
	health_begin(health, flow, now);
	if (health->until)
		return;
	if (health->unanswered < awaited->connections) {
		health->began = awaited->began;
		health->first = awaited->first;
		health->clients = awaited->clients;
		health->unanswered = awaited->connections;
		health->ahead = awaited->connections;
	}
	health_tell(health, flow->backend, now);
}

/* Counts a connection that begins. It costs a read of two rows, and no write where the backend has just answered others. Processors side by side
 * may lose a count. A function of its own for the sake of the stack. */
__noinline int health_awaits(const struct flow *flow)
{
	__u32 now = bpf_jiffies64(), client = 0, age;
	struct backend_health *health;
	struct awaited_backend *awaited;
	bool begins;

	if (!flow || trace_on)
		return 0;
	health = health_get(flow->backend);
	awaited = awaited_slot(flow->backend);
	if (!health || !awaited || health_answered_within(health, jiffies_per_second / 8, now))
		return 0;
	age = health_age(awaited->began, now);
	begins = awaited->backend != flow->backend || awaited->generation != flow->generation ||
		 age > HEALTH_SECONDS * jiffies_per_second || health_answered_within(health, age, now);
	if (begins || awaited->clients < 2)
		client = maglev_hash_client(&flow->client);
	if (begins) {
		awaited_begin(awaited, flow, client, now);
		return 0;
	}
	if (awaited->clients < 2 && client != awaited->first)
		awaited->clients = 2;
	if (awaited->connections < 0xff)
		awaited->connections++;
	if (age >= jiffies_per_second * awaited_milliseconds / 1000 &&
	    health_suspects(awaited->connections, awaited->clients))
		awaited_tell(health, awaited, flow, now);
	return 0;
}

/* How long a server takes to answer a SYN, by backend. A flow's entry has no room for a time: that of its SYN is in a small table beside,
 * in which another flow's may take its place. A sample that is lost so is missing, and nothing else. So is one that is not taken: to read the
 * clock takes longer than the rest, and where connections begin by the thousand a part of them tells enough. */

static __always_inline bool syn_timed(void)
{
	__u32 zero = 0, now = bpf_jiffies64();
	struct syn_budget *budget = bpf_map_lookup_elem(&syn_budgets, &zero);

	if (!budget)
		return false;
	if (now - budget->since >= jiffies_per_second / 16) {
		budget->since = now;
		budget->timed = 0;
	}
	if (budget->timed >= SYNS_TIMED)
		return false;
	budget->timed++;
	return true;
}

/* What both entries of a flow tell of it, and no other's, whose client has the same port or an address of its choice. Never 0. */
static __always_inline __u32 syn_flow(const struct flow *flow)
{
	__be16 port = flow->flags & FLOW_ALIAS ? flow->twin_port : flow->key_port;
	__u64 x = flow_pair_hash(&flow->client, port, &flow->frontend, flow->frontend_port, flow->protocol,
				 filter_seed());

	return ((x ^ flow->backend) * HASH_B) >> 32 | 1;
}

static __always_inline struct syn_sent *syn_slot(__u32 flow)
{
	__u32 index = flow >> 1 & (SYN_SLOTS - 1);

	return bpf_map_lookup_elem(&syn_sent, &index);
}

/* Low 32 bits. */
static __always_inline __u32 syn_now(void)
{
	return bpf_ktime_get_ns() / 1000;
}

/* A SYN has made this flow. Both words at once: whoever reads them gets one flow's. */
static __always_inline void syn_note(const struct flow *flow)
{
	__u32 key;
	struct syn_sent *slot;

	if (!syn_timed())
		return;
	key = syn_flow(flow);
	slot = syn_slot(key);
	if (slot)
		*(volatile __u64 *)&slot->flow = key | (__u64)syn_now() << 32;
}

/* The number of a time's bucket: four for each doubling, from 16 microseconds on. */
static __always_inline __u32 syn_bucket(__u32 microseconds)
{
	__u32 exponent = 0;
	__u32 rest = microseconds / SYN_LEAST;

	if (!rest)
		return 0;
#pragma unroll
	for (__u32 step = 16; step; step /= 2) { /* without a branch, as the verifier goes both ways at each */
		__u64 more = -(__u64)(rest >> step);

		asm volatile("" : "+r"(more)); /* else the compiler makes a branch of it */
		more = (more >> 63) * step;
		rest >>= more;
		exponent += more;
	}
	return 1 + exponent * 4 + ((__u64)microseconds * 4 / SYN_LEAST >> exponent & 3);
}

#define SYN_SMOOTH 8 /* a SYN's time counts an eighth */
#define SYN_SECONDS \
	10 /* after which a time means nothing: who got no connection could not show that it has become faster */

/* Has the time of a SYN that was answered count. Processors side by side may lose one. */
static __always_inline void syn_smooth(__u32 id, __u32 microseconds)
{
	struct backend_health *health = trace_on ? NULL : health_get(id);
	__u32 now = bpf_jiffies64(), time;

	if (!health)
		return;
	time = health->syn_time;
	if (!time || health_age(health->syn_timed, now) > SYN_SECONDS * jiffies_per_second)
		time = microseconds;
	else
		time = time - time / SYN_SMOOTH + microseconds / SYN_SMOOTH;
	health->syn_time = time ? time : 1;
	health->syn_timed = now;
}

/* Microseconds, 0: not known. */
static __always_inline __u32 syn_time_of(const struct backend_health *health, __u32 now)
{
	return health_age(health->syn_timed, now) > SYN_SECONDS * jiffies_per_second ? 0 : health->syn_time;
}

/* The server's first answer to a flow is a SYN-ACK. A function of its own so that the verifier goes through it once. */
__noinline int syn_answered(const struct flow *flow)
{
	struct syn_times *times;
	struct syn_sent *slot;
	__u32 key, id, bucket, time;
	__u64 sent;

	if (!flow || flow->flags & FLOW_DIRECT)
		return 0;
	key = syn_flow(flow);
	slot = syn_slot(key);
	if (!slot)
		return 0;
	sent = *(volatile __u64 *)&slot->flow;
	if ((__u32)sent != key)
		return 0;
	*(volatile __u64 *)&slot->flow = 0; /* the flow's second entry has its first answer, too */
	id = flow->backend;
	times = bpf_map_lookup_elem(&syn_times, &id);
	time = syn_now() - (__u32)(sent >> 32);
	if (flow->seen & SEEN_LOADS)
		syn_smooth(id, time);
	bucket = syn_bucket(time);
	if (bucket >= SYN_BUCKETS)
		bucket = SYN_BUCKETS - 1;
	if (times)
		__sync_fetch_and_add(&times->buckets[bucket & (SYN_BUCKETS - 1)], 1);
	return 0;
}
