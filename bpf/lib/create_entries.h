/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The entries of a new flow: one, or two where the server sees another source than the client's. */
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

static __always_inline enum verdict create_again(struct work *work, enum insert result)
{
	work->again = true;
	work->clash = result == INSERT_PORT;
	return work->clash ? VERDICT_DROP_PORTS_FULL : VERDICT_DROP_FLOW_RACE;
}

/* A source port to try where the client's own is taken. Not a well-known one; another in each try. */
static __always_inline __be16 create_port(__be16 port, __u32 try)
{
	__u32 hash = hash_next(port * 64 + try);

	return bpf_htons(1024 + hash % (65536 - 1024));
}

/* What tells the two entries of a flow with another source port apart. */
static __always_inline void create_turn(struct insertion *in)
{
	__be16 port = in->flow.port;

	in->flow.port = in->flow.other_port;
	in->flow.other_port = port;
	in->flow.flags ^= FLOW_ALIAS;
}

/* The second entry, found by what the server sees. It is shown before the first packet leaves. */
static __always_inline enum insert create_alias(struct insertion *in, const struct settings *settings)
{
	struct flow_place place;
	enum insert result;

	create_turn(in);
	if (!flow_find_place(&place, flow_alias_address(settings, &in->flow), in->flow.port, in->flow.protocol,
			     settings->seed))
		return INSERT_FULL;
	in->set = place.index;
	in->start = place.start;
	in->replace = FLOW_WAYS;
	in->wire_port = in->flow.port;
	result = flow_insert(in);
	if (result == INSERT_DONE)
		flow_publish(in, FLOW_LIVE);
	create_turn(in);
	return result;
}

static __always_inline enum insert create_main(struct insertion *in, const struct work *work)
{
	in->set = work->found.set;
	in->start = work->found.start;
	in->replace = work->found.way;
	in->replace_word = work->found.word;
	in->wire_port = flow_wire_port(&in->flow);
	return flow_insert(in);
}

static __always_inline enum insert create_entries(struct insertion *in, const struct work *work)
{
	enum insert result = create_main(in, work);
	__u32 made = in->made;

	if (result != INSERT_DONE)
		return result;
	if (flow_has_twin(&in->flow))
		result = create_alias(in, work->settings);
	if (result == INSERT_FULL)
		result = INSERT_PORT; /* another port is in another set */
	in->set = work->found.set;
	in->start = work->found.start;
	in->made = made;
	flow_publish(in, result == INSERT_DONE ? FLOW_LIVE : FLOW_FREE);
	return result;
}
