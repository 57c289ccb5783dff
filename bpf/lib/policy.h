/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From a destination to a backend: the record of the frontend, what it refuses, this node's responder, session affinity, and the choice by
 * Maglev. */
#pragma once

#include "config.h"
#include "health.h"
#include "load.h"
#include "maps.h"
#include "packet.h"
#include "settings.h"

/* This node's responder answers names: a process of the host, and the backend of state BACKEND_RESPONDER. It is asked while its heart
 * beats and a socket takes the question: a process that was killed seems to live for a while yet, but has no socket. */

/* Its heart beats. A function of its own so that the verifier goes through it once. */
__noinline int responder_alive(void)
{
	const struct settings *settings = settings_get();
	__u64 beat = settings ? *(volatile const __u64 *)&settings->responder : 0;

	return beat && bpf_ktime_get_ns() - beat < responder_silence;
}

static __always_inline bool responder_socket(void *ctx, struct bpf_sock_tuple *tuple, __u32 size, __u8 protocol)
{
	struct bpf_sock *sk;

	if (protocol == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_skc_lookup_tcp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/* A socket takes what comes from anybody for this address. ctx is the program's, and of the host's network namespace. */
static __always_inline bool responder_hears(void *ctx, const struct address *address, __be16 port, __u8 protocol)
{
	struct bpf_sock_tuple tuple = {};

	if (address_family(address) == 4) {
		tuple.ipv4.daddr = address_to4(address);
		tuple.ipv4.dport = port;
		return responder_socket(ctx, &tuple, sizeof(tuple.ipv4), protocol);
	}
	__builtin_memcpy(tuple.ipv6.daddr, address, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.dport = port;
	return responder_socket(ctx, &tuple, sizeof(tuple.ipv6), protocol);
}

/* The same for a packet: not 0 if so. A function of its own for the sake of the stack. */
__noinline int responder_listens(struct __sk_buff *skb, const struct address *address, __u32 port, __u32 protocol)
{
	return address && responder_hears(skb, address, port, protocol);
}

/* The record of a frontend, and what no frontend takes. */

#define FRONTEND_TRIES 4

static __always_inline bool frontend_key_equal(const struct frontend_key *a, const struct frontend_key *b)
{
	return address_equal(&a->address, &b->address) && a->port == b->port && a->protocol == b->protocol;
}

static __always_inline const struct record *record_get(__u32 number)
{
	return bpf_map_lookup_elem(&records, &number);
}

/* Number of the record in force, 0 none: that one is nobody's. The kernel may hand a hash element to another key while it is read here: then the
 * record repeats another key. key: on the caller's stack, as kernels before 6.2 take no argument's memory for a map's key. */
static __always_inline __u32 frontend_number_on_stack(const struct frontend_key *key)
{
	for (int i = 0; i < FRONTEND_TRIES; i++) {
		const __u32 *number = bpf_map_lookup_elem(&frontends, key);
		const struct record *record;
		__u32 found;

		if (!number)
			return 0;
		found = *(volatile const __u32 *)number;
		record = record_get(found);
		if (record && frontend_key_equal(&record->key, key))
			return found;
	}
	return 0;
}

/* The same of a key that may be anywhere. A function of its own so that the verifier goes through it once. */
__noinline int frontend_number(const struct frontend_key *key)
{
	struct frontend_key own;

	if (!key)
		return 0;
	own = *key;
	return frontend_number_on_stack(&own);
}

static __always_inline const struct record *frontend_find(const struct frontend_key *key)
{
	__u32 number = frontend_number(key);

	return number ? record_get(number) : NULL;
}

static __always_inline void frontend_key_of(struct frontend_key *key, const struct packet *packet)
{
	key->address = packet->destination;
	key->port = packet->destination_port;
	key->protocol = packet->protocol;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* The record of a packet's destination. Its number is found in a function of its own for the sake of the stack. */
__noinline int frontend_number_of(const struct packet *packet)
{
	struct frontend_key key;

	if (!packet)
		return 0;
	frontend_key_of(&key, packet);
	return frontend_number_on_stack(&key);
}

static __always_inline const struct record *frontend_of(const struct packet *packet)
{
	__u32 number = frontend_number_of(packet);

	return number ? record_get(number) : NULL;
}

/* The entry that says an address belongs to a service, whatever the port. */
static __always_inline const struct record *frontend_find_address(const struct address *address)
{
	struct frontend_key key = { .address = *address };

	return frontend_find(&key);
}

/* What no frontend takes, whatever the protocol, as kube-proxy in nftables mode. VERDICT_CONTINUE: not refused, as an external or a
 * load balancer's address may be a node's as well. A function of its own so that the verifier goes through it once. */
__noinline int refuse_unknown(const struct address *address)
{
	const struct record *record;

	if (!address || node_drains())
		return VERDICT_CONTINUE;
	record = known_frontend(address, filter_seed()) ? frontend_find_address(address) : NULL;
	if (record)
		return record->kind == KIND_CLUSTER_IP ? VERDICT_REJECT_UNKNOWN_PORT : VERDICT_CONTINUE;
	return service_cidr_has(address) ? VERDICT_DROP_UNALLOCATED : VERDICT_CONTINUE;
}

/* Not 0: one of the ranges of the service port has the address. A function of its own for the sake of the stack. */
__noinline int source_in_ranges(__u32 service, const struct address *source)
{
	struct source_range_key key = { .prefix_bits = 32 + 128, .service = bpf_htonl(service) };

	if (!source)
		return false;
	key.source = *source;
	return bpf_map_lookup_elem(&source_ranges, &key) != NULL;
}

static __always_inline bool source_allowed(const struct record *record, const struct address *source)
{
	return !(record->flags & RECORD_SOURCE_RANGES) || source_in_ranges(record->service, source);
}

static __always_inline enum verdict reject_verdict(__u8 reason)
{
	return reason == REASON_NO_TOPOLOGY_MATCH ? VERDICT_REJECT_NO_TOPOLOGY_MATCH : VERDICT_REJECT_NO_ENDPOINTS;
}

/* Backends, and the choice of one for a new flow: the tiers in order, each by its Maglev table. */

#define BACKEND_PROBES 8 /* slots of a tier that are looked at when the first has no usable backend */

/* Slots of a tier that are searched for another backend, in place of one that is left out, and for a repeated SYN. Maglev's table mixes its
 * backends: of four equal ones the last is missed once in 10^8 times, one with a hundredth of the slots every second time. */
#define NEXT_SLOTS 64

/* How a backend is chosen. */
enum pick {
	PICK_RESPONDER = 1, /* it may be this node's responder */
	PICK_NEW = 2,       /* for a new connection: not one that is left out */
	PICK_TRIAL = 4,     /* whose answer will be seen: it may try one whose time is over */
	PICK_TURN = 8,      /* by a number from turn_take in the place of a hash */
	PICK_LOAD = 16,     /* the less loaded one of two */
	PICK_LOOK = 32,     /* at XDP: TC may have to choose again, and a trial is its */
};

/* A backend as a flow will remember it. */
struct choice {
	struct address address;
	__u32 backend;
	__u16 generation;
	__be16 port;
};

static __always_inline const struct backend *backend_get(__u32 id)
{
	return bpf_map_lookup_elem(&backends, &id);
}

/* Whatever the time is: what the fast path asks of a backend before it lets a datagram go there. */
static __always_inline bool backend_serves_always(const struct backend *backend)
{
	__u8 state = *(volatile const __u8 *)&backend->state;

	return state == BACKEND_ACTIVE || state == BACKEND_DRAINING;
}

/* For new flows, and for every packet of UDP. */
static __always_inline bool backend_serving(const struct backend *backend)
{
	if (*(volatile const __u8 *)&backend->state == BACKEND_RESPONDER)
		return responder_alive();
	return backend_serves_always(backend);
}

/* Number in names of the node that it is on, 0: not known. */
static __always_inline __u16 backend_node(__u32 id)
{
	const struct backend *backend = backend_get(id);

	return backend ? backend->node : 0;
}

/* Its packets need no way over the network. */
static __always_inline bool backend_is_local(__u32 id)
{
	const struct backend *backend = backend_get(id);

	return backend && backend->tier == TIER_NODE;
}

static __always_inline bool backend_choose(struct choice *choice, __u32 id, const struct backend *backend)
{
	choice->backend = id;
	choice->generation = backend->generation;
	choice->address = backend->address;
	choice->port = backend->port;
	return true;
}

/* The choice is this node's responder: the caller asks whether it listens. */
static __always_inline bool choice_is_responder(const struct choice *choice)
{
	const struct backend *backend = backend_get(choice->backend);

	return backend && backend->state == BACKEND_RESPONDER;
}

/* Backend id in a slot; 0, nobody's, past the end of the table. */
static __always_inline __u32 slot_backend(__u32 slot)
{
	__u32 number = slot / SLOTS_PER_LINE;
	const struct slot_line *line = bpf_map_lookup_elem(&slots, &number);

	return line ? line->ids[slot % SLOTS_PER_LINE] : 0;
}

/* The backend of a slot if it serves and is not left out; 0: it does not. A function of its own so that the verifier goes through it once. */
__noinline int backend_of_slot(__u32 slot, __u32 service)
{
	__u32 id = slot_backend(slot);
	const struct backend *backend = backend_get(id);

	if (!backend || backend->service != service || !backend_serves_always(backend) ||
	    health_out(id, backend->generation, false, false))
		return 0;
	return id;
}

/* Id of the next backend of a tier in Maglev's order that is not left out, 0: none is in these slots. A function of its own so that the
 * verifier goes through it once. */
__noinline int backend_next(const struct tier *tier, __u32 hash, __u32 service)
{
	__u32 first, count;

	if (!tier)
		return 0;
	first = tier->first;
	count = tier->count;
	for (__u32 i = 1; i < NEXT_SLOTS && i < count; i++) {
		__u32 id = backend_of_slot(first + (hash + i) % count, service);

		if (id)
			return id;
	}
	return 0;
}

#define BACKEND_SEARCHES 16 /* of NEXT_SLOTS - 1 each */

/* The same where several probes found none that serves: a tier in force may have many that serve no more, as long as what is to follow it does not
 * fit the tables. A function of its own for the sake of the stack. */
__noinline int backend_search(const struct tier *tier, __u32 hash, __u32 service)
{
	__u32 count;

	if (!tier)
		return 0;
	count = tier->count;
	if (!count)
		return 0;
	for (__u32 i = 0; i < BACKEND_SEARCHES; i++) {
		__u32 id = backend_next(tier, hash - 1 + i * (NEXT_SLOTS - 1), service);

		if (id)
			return id;
	}
	return backend_of_slot(tier->first + (hash - 1) % count, service); /* which small tiers may leave to the last */
}

#define PROBE_OUT (1u << 28) /* beside an id: the backend is left out of new connections */

/* The backend of a slot if it serves, with PROBE_OUT; 0: it does not. how: enum pick. A function of its own so that the verifier goes through
 * it once. */
__noinline int backend_probe(__u32 slot, __u32 service, int how)
{
	__u32 id = slot_backend(slot);
	const struct backend *backend = backend_get(id);

	if (!backend || backend->service != service ||
	    !(how & PICK_RESPONDER ? backend_serving(backend) : backend_serves_always(backend)))
		return 0;
	if (how & PICK_NEW && health_out(id, backend->generation, how & PICK_TRIAL, how & PICK_LOOK))
		return id | PROBE_OUT;
	return id;
}

/* How new connections of the frontend are balanced. A trace takes no turn: it shows one of the backends that a connection may get. */
static __always_inline int pick_balance(const struct record *record)
{
	if (record->balance == BALANCE_LEAST_CONNECTIONS)
		return PICK_LOAD;
	return record->balance == BALANCE_ROUND_ROBIN && !trace_on ? PICK_TURN : 0;
}

/* The number of a new connection among those of its service port: the slots of a tier are in the order of turns then. again: the slow path
 * begins anew with the same packet. */
static __always_inline __u32 turn_take(__u32 service, bool again)
{
	__u32 index = service & (TURNS - 1);
	__u32 *turn = bpf_map_lookup_elem(&turns, &index);

	if (!turn)
		return 0;
	return again ? *(volatile __u32 *)turn - 1 : __sync_fetch_and_add(turn, 1);
}

/* The number that the next new connection gets, until turn_move takes it. */
static __always_inline __u32 turn_look(__u32 service)
{
	return turn_take(service, true) + 1;
}

/* Takes it, or gives it back. 0: another connection has taken one. A function of its own for the sake of the stack. */
__noinline int turn_move(__u32 service, __u32 from, __u32 to)
{
	__u32 index = service & (TURNS - 1);
	__u32 *turn = bpf_map_lookup_elem(&turns, &index);

	return !turn || __sync_val_compare_and_swap(turn, from, to) == from;
}

/* Id of a backend of the tier, 0: none. out: gets the first choice where all that were looked at are left out. A function of its own so that
 * the verifier goes through it once. */
__noinline int backend_pick_tier(const struct tier *tier, __u32 service, __u32 hash, int how, __u32 *out)
{
	__u32 count;

	if (!tier || !out)
		return 0;
	count = tier->count;
	if (!count)
		return 0;
	for (int i = 0; i < BACKEND_PROBES; i++) {
		__u32 id = backend_probe(tier->first + hash % count, service, how);

		if (id & PROBE_OUT) {
			if (!*out)
				*out = id & ~PROBE_OUT;
			/* after one that is left out not always the same has its turn */
			return backend_next(tier, how & PICK_TURN ? hash_next(hash) : hash, service);
		}
		if (id)
			return id;
		hash = hash_next(hash);
	}
	return backend_search(tier, hash, service);
}

#define LOAD_SLOTS \
	8 /* of a tier that are searched for a second backend: of two equal ones it is missed once in 128 times */

/* Id of the backend that takes a new connection: the one that was picked, or the next in Maglev's order if that has less load. One that the
 * connection is to try, as its time is over, stays; and so does this node's responder. A function of its own so that the verifier goes through
 * it once. */
__noinline int backend_less_loaded(const struct tier *tier, __u32 hash, __u32 service, __u32 id)
{
	const struct backend_health *health = health_get(id), *other_health;
	const struct backend *backend = backend_get(id);
	__u32 first, count;

	if (!tier || !health || !backend || backend->state == BACKEND_RESPONDER)
		return id;
	if (health->until && health->generation == backend->generation)
		return id;
	count = tier->count;
	if (!count)
		return id;
	first = tier->first;
	for (__u32 i = 0; i < LOAD_SLOTS && i < count; i++) {
		__u32 slot = first + (hash + i) % count;
		__u32 other = slot_backend(slot);

		if (other == id || !backend_of_slot(slot, service))
			continue;
		other_health = health_get(other);
		return other_health && load_is_more(health, other_health, load_asks_others(hash)) ? other : id;
	}
	return id;
}

/* Not 0: choice has the backend. how: enum pick. A function of its own so that the verifier goes through it
 * once. */
__noinline int backend_pick(struct choice *choice, const struct side *side, __u32 service, __u32 hash, int how)
{
	__u32 id = 0, out = 0;
	const struct backend *backend;

	if (!choice || !side)
		return false;
	for (int i = 0; i < TIERS_MAX && !id; i++) {
		id = backend_pick_tier(&side->tiers[i], service, hash, how, &out);
		if (id && how & PICK_LOAD)
			id = backend_less_loaded(&side->tiers[i], hash, service, id);
	}
	if (!id)
		id = out; /* rather one that does not answer than none */
	backend = backend_get(id);
	return id && backend && backend_choose(choice, id, backend);
}

/* Session affinity ClientIP: a client keeps its backend of a service port while it comes back in time. */

#define NANOSECONDS 1000000000ULL

/* Nanoseconds since the last new connection. Another processor may have read a later clock: that is no age. */
static __always_inline __u64 affinity_age(const struct affinity_value *value, __u64 now)
{
	__u64 age = now - *(volatile const __u64 *)&value->touched;

	return (__s64)age < 0 ? 0 : age;
}

enum affinity {
	AFFINITY_OVER = -1, /* the client's time is over: it is a new one, and may come to another backend */
	AFFINITY_NONE,      /* nothing is remembered that may be used: its address says the backend, as it did before */
	AFFINITY_FOUND,
};

/* The remembered backend, if it still is in the side's list and may be used (enum affinity). The window slides. A function of its own
 * for the sake of the stack. */
__noinline int affinity_find(struct choice *choice, const struct record *record, const struct side *side,
			     const struct address *client, int how)
{
	struct affinity_key key = {};
	struct affinity_value *value;
	const struct backend *backend;
	__u64 now;

	if (!choice || !record || !side || !client)
		return AFFINITY_NONE;
	key.client = *client;
	key.service = record->service;
	value = bpf_map_lookup_elem(&affinity, &key);
	if (!value)
		return AFFINITY_NONE;
	now = bpf_ktime_get_boot_ns();
	if (how & PICK_NEW && affinity_age(value, now) >= record->affinity * NANOSECONDS)
		return AFFINITY_OVER; /* what goes on, and has lost its flow, stays where it is, however old */
	backend = backend_get(value->backend);
	if (!backend || backend->generation != value->generation || backend->service != record->service)
		return AFFINITY_NONE;
	if (!(backend->member & side->member) || !backend_serving(backend))
		return AFFINITY_NONE;
	if (how & PICK_NEW && health_out(value->backend, value->generation, how & PICK_TRIAL, how & PICK_LOOK))
		return AFFINITY_NONE;
	value->touched = now;
	return backend_choose(choice, value->backend, backend) ? AFFINITY_FOUND : AFFINITY_NONE;
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

/* The same if the backend that is remembered is the one with the id from. A function of its own for the sake of the stack. */
__noinline int affinity_move(const struct choice *choice, const struct address *client, __u32 service, __u32 from)
{
	struct affinity_key key = {};
	const struct affinity_value *value;

	if (!choice || !client)
		return 0;
	key.client = *client;
	key.service = service;
	value = bpf_map_lookup_elem(&affinity, &key);
	return value && value->backend == from ? affinity_remember(choice, client, service) : 0;
}
