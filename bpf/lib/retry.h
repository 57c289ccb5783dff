/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A SYN that nobody answered, or that a closed port refused, comes again: it goes to the next backend in Maglev's order that it has not
 * been to, of the nearest tier that has one. */
#pragma once

#include "flow_room.h"
#include "forward.h"
#include "policy.h"
#include "settings.h"
#include "work.h"

/* The slot's backend if it may be tried; below 0: it is left out of new connections; 0: it may not be tried. The node's responder is never
 * tried again: it comes first, so it has refused already. A function of its own so that the verifier goes through it once. */
__noinline int retry_slot(__u32 slot, __u32 service, __u32 tried, __u32 last)
{
	__u32 id = slot_backend(slot);
	const struct backend *backend = backend_get(id);

	if (!backend || id == last || tried_has(tried, id) || backend->service != service ||
	    !backend_serves_always(backend))
		return 0;
	return health_out(id, backend->generation, false) ? -(int)id : (int)id;
}

/* out: gets the first one that is left out. */
static __always_inline __u32 retry_tier(const struct tier *tier, __u32 service, __u32 hash, __u32 tried, __u32 last,
					int *out)
{
	__u32 count = tier->count;

	for (__u32 i = 0; i < NEXT_SLOTS && i < count; i++) {
		int id = retry_slot(tier->first + (hash + i) % count, service, tried, last);

		if (id > 0)
			return id;
		if (id < 0 && !*out)
			*out = -id;
	}
	return 0;
}

/* Id of the backend after those that a flow has been to, 0: none is left. */
static __always_inline __u32 retry_next(const struct packet *packet, const struct record *record, __u32 tried,
					__u32 last)
{
	const struct side *side = &record->sides[packet_side(packet)];
	__u32 hash, id;
	int out = 0;

	if (record->flags & RECORD_ADDRESS || side->action != ACTION_BALANCE)
		return 0;
	hash = record->affinity ? maglev_hash_client(&packet->source)
				: maglev_hash(&packet->source, packet->source_port, &record->key);
	for (int i = 0; i < TIERS_MAX; i++) {
		id = retry_tier(&side->tiers[i], record->service, hash, tried, last, &out);
		if (id)
			return id;
	}
	return out;
}

/* Not 0: the flow's SYN may go to another backend, which is told to the create chain. A function of its own for the sake of the stack. */
__noinline int retry_find(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	const struct settings *settings = settings_get();
	const struct record *record;
	struct flow *flow;
	__u32 tried, last, id;

	if (!settings || settings->draining || !packet || !found)
		return false;
	flow = found_flow(found);
	record = frontend_of(packet);
	if (!flow || !record)
		return false;
	tried = flow->seen >> TRIED_SHIFT;
	last = flow->backend;
	id = retry_next(packet, record, tried, last);
	if (!id)
		return false;
	handed(skb)->slow.backend = id;
	handed(skb)->slow.tried = tried_add(tried, last);
	return true;
}

/* Frees the second entry of a flow that moves to another backend. A late answer of the first backend then finds no flow, and the client's
 * host, or under SNAT this one, refuses it. 0: the flow has changed, or the server has answered. A function of its own for the sake of the
 * stack. */
__noinline int retry_leave(const struct found *found)
{
	const struct settings *settings = settings_get();
	struct flow *flow, *twin;
	__u32 word;
	int at;

	if (!settings || !found)
		return false;
	flow = found_flow(found);
	if (!flow || flow_word(flow) != found->word)
		return false;
	at = flow_twin_at(settings, flow);
	twin = at < 0 ? NULL : flow_entry(at);
	if (!twin)
		return true;
	word = flow_word(twin);
	if (!flow_is_twin(flow, at))
		return true;
	if ((twin->seen & (SEEN_REPLY | SEEN_REFUSED)) == SEEN_REPLY)
		return false;
	flow_free(twin, at, word);
	return true;
}

/* The first time that the slow path comes here with a packet: a flow is counted once. */
static __always_inline void retry_count(const struct found *found)
{
	const struct flow *flow = found_flow(found);

	if (flow && flow_word(flow) == found->word && !(flow->seen & SEEN_REPLY))
		health_unanswered(flow);
}

/* False: there is no other backend, and the flow stays as it is. */
static __always_inline bool retry_choose(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	bool again = handed(skb)->slow.backend;

	if (!retry_find(skb, packet, found))
		return false;
	if (retry_leave(found)) {
		if (!again)
			retry_count(found);
		return true;
	}
	handed(skb)->slow.backend = 0;
	return false;
}

/* The backend that retry_choose found. */
static __always_inline bool retry_chosen(struct __sk_buff *skb, struct choice *choice, __u32 service)
{
	__u32 id = handed(skb)->slow.backend;
	const struct backend *backend = backend_get(id);

	if (!id || !backend || backend->service != service || !backend_serves_always(backend))
		return false;
	return backend_choose(choice, id, backend);
}
