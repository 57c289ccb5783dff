/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Another backend for a flow whose own refuses it or does not answer: which one is next, the count of datagrams without an answer, and the SYN
 * that is sent again in the place of a refusal. */
#pragma once

#include "answer.h"
#include "flow.h"
#include "health.h"
#include "packet.h"
#include "policy.h"
#include "rewrite.h"
#include "settings.h"
#include "work.h"

/* Flows of datagrams to which an answer is expected (FLOW_ASKS): how many were sent since the backend answered last. Where a Service asks for
 * that (udp_retry of its records), one that was not answered so often, and a second later, leaves its backend. An entry of the flow table has no
 * room for a count: it is in a table beside, in which another flow's may take its place, which only makes this flow wait for longer. */

static __always_inline struct asked_flow *asked_slot(__u32 flow)
{
	__u32 index = flow >> 1 & (ASKED_SLOTS - 1);

	return bpf_map_lookup_elem(&asked_flows, &index);
}

/* The first datagram after an answer, or of the flow. */
static __always_inline void asked_begin(struct asked_flow *slot, __u32 flow)
{
	slot->time = flow_now();
	slot->count = 1;
	flow_barrier();
	*(volatile __u32 *)&slot->flow = flow;
}

/* A datagram has made this flow. */
static __always_inline void asked_note(const struct flow *flow)
{
	__u32 key = syn_flow(flow);
	struct asked_flow *slot = asked_slot(key);

	if (slot && !trace_on)
		asked_begin(slot, key);
}

/* The backend has answered. */
static __always_inline void asked_answered(const struct flow *flow)
{
	__u32 key = syn_flow(flow);
	struct asked_flow *slot = asked_slot(key);

	if (slot && !trace_on && *(volatile __u32 *)&slot->flow == key)
		*(volatile __u32 *)&slot->flow = 0;
}

/* Counts a datagram. True: those before it were enough, and could be answered in the time since the last of so many; they are forgotten. The first
 * of them may be of long ago, and the others of a burst that is about to be answered. most: how many that is, 0 never. */
static __always_inline bool asked_enough(const struct flow *flow, __u32 most)
{
	__u32 key = syn_flow(flow);
	struct asked_flow *slot = asked_slot(key);
	__u32 before;

	if (!slot || trace_on)
		return false;
	if (*(volatile __u32 *)&slot->flow != key) {
		asked_begin(slot, key);
		return false;
	}
	before = __sync_fetch_and_add(&slot->count, 1);
	if (before < most)
		slot->time = flow_now();
	if (!most || before < most ||
	    health_age(slot->time, flow_now()) < jiffies_per_second * asked_milliseconds / 1000)
		return false;
	*(volatile __u32 *)&slot->flow = 0;
	return true;
}

/* A SYN that nobody answered or that a closed port refused comes again, or datagrams are not answered: the flow goes to the next backend
 * in Maglev's order that it has not been to, of the nearest tier that has one. */

/* How good a backend is for a SYN that comes again: above its id, so that a better one is the greater number. */
#define RETRY_OUT       (1u << 28) /* it is left out of new connections */
#define RETRY_SAME_NODE (2u << 28) /* it is on the node of the last one, which did not answer: that may have no power */
#define RETRY_BEST      (3u << 28)
#define RETRY_ID        (RETRY_OUT - 1)

/* A search. It is memory so that the verifier goes through each slot once. */
struct retry {
	__u32 service;
	__u32 tried;
	__u32 last;
	__u32 node;  /* of the last one, 0: it is no matter */
	__u32 found; /* the first one of the best that were seen, 0: none */
};

/* What a slot's backend is worth, with its id; 0: it may not be tried. The node's responder is never tried again: it comes first, so it has
 * refused already. */
static __always_inline __u32 retry_worth(const struct retry *retry, __u32 id)
{
	const struct backend *backend = backend_get(id);

	if (!backend || id == retry->last || tried_has(retry->tried, id) || backend->service != retry->service ||
	    !backend_serves_always(backend))
		return 0;
	if (health_out(id, backend->generation, false, false))
		return id | RETRY_OUT;
	return id | (retry->node && backend->node == retry->node ? RETRY_SAME_NODE : RETRY_BEST);
}

/* Not 0: there is none better than the slot's. A function of its own so that the verifier goes through it once. */
__noinline int retry_slot(struct retry *retry, __u32 slot)
{
	__u32 found;

	if (!retry)
		return true;
	found = retry_worth(retry, slot_backend(slot) & RETRY_ID);
	if (found >> 28 > retry->found >> 28)
		retry->found = found;
	return found >= RETRY_BEST;
}

/* Not 0: the tier has one that is not left out. A function of its own so that the verifier goes through it once. */
__noinline int retry_tier(struct retry *retry, const struct tier *tier, __u32 hash)
{
	__u32 count;

	if (!retry || !tier)
		return false;
	count = tier->count;
	for (__u32 i = 0; i < NEXT_SLOTS && i < count; i++) {
		if (retry_slot(retry, tier->first + (hash + i) % count))
			break;
	}
	return retry->found >= RETRY_SAME_NODE;
}

/* The node that may have no power, as the last backend is there and did not answer; 0: none, or this one. */
static __always_inline __u32 retry_node(const struct flow *flow)
{
	const struct backend *backend = flow->seen & SEEN_REFUSED ? NULL : flow_backend(flow);

	return backend && backend->tier != TIER_NODE ? backend->node : 0;
}

/* To which backends the flow went before. Of datagrams an answer ends that, and so does the last of four, as their flow may go on for long. */
static __always_inline __u32 retry_tried(const struct flow *flow)
{
	__u32 tried = flow_tried(flow);

	if (flow->protocol == IPPROTO_UDP && (flow->seen & SEEN_REPLY || tried_count(tried) >= TRIED_MAX))
		return 0;
	return tried;
}

/* Id of the backend after those that a flow has been to, 0: none is left. hash: of the first choice. */
static __always_inline __u32 retry_next(const struct record *record, enum side_index side_index, __u32 hash,
					struct retry *retry)
{
	const struct side *side = &record->sides[side_index];

	if (record->flags & RECORD_ADDRESS || side->action != ACTION_BALANCE)
		return 0;
	for (int i = 0; i < TIERS_MAX; i++) {
		if (retry_tier(retry, &side->tiers[i], hash))
			break;
	}
	return retry->found & RETRY_ID;
}

static __always_inline __u32 retry_hash(const struct packet *packet, const struct record *record)
{
	return record->affinity ? maglev_hash_client(&packet->source)
				: maglev_hash(&packet->source, packet->source_port, &record->key);
}

/* Not 0: the flow's SYN may go to another backend, which is told to the create chain. A function of its own for the sake of the stack. */
__noinline int retry_find(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	const struct settings *settings = settings_get();
	const struct record *record;
	struct retry retry = {};
	struct flow *flow;
	__u32 id;

	if (!settings || settings->draining || !packet || !found)
		return false;
	flow = found_flow(found);
	record = frontend_of(packet);
	if (!flow || !record)
		return false;
	retry.service = record->service;
	retry.tried = retry_tried(flow);
	retry.last = flow->backend;
	retry.node = retry_node(flow);
	id = retry_next(record, packet_side(packet), retry_hash(packet, record), &retry);
	if (!id)
		return false;
	handed(skb)->slow.backend = id;
	handed(skb)->slow.tried = tried_add(retry.tried, retry.last);
	return true;
}

/* Frees the second entry of a flow that moves to another backend. A late answer of the first backend then finds no flow, and the client's
 * host, or under SNAT this one, refuses it. over: not 0 where the connection has ended. 0: the flow has changed, or the server has answered one
 * that has not. A function of its own for the sake of the stack. */
__noinline int retry_leave(const struct found *found, int over)
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
	if (!over && twin->protocol == IPPROTO_TCP && (twin->seen & (SEEN_REPLY | SEEN_REFUSED)) == SEEN_REPLY)
		return false;
	flow_free(twin, at, word);
	return true;
}

/* Not 0: the flow's datagrams were not answered for so long, and so often, that another backend is to get this one. A packet that goes through
 * the slow path again is counted once. A function of its own for the sake of the stack. */
__noinline int retry_is_due(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	const struct record *record;
	const struct flow *flow;

	if (!packet || !found || handed(skb)->slow.tries)
		return false;
	flow = found_flow(found);
	record = frontend_of(packet);
	return flow && record && asked_enough(flow, record->udp_retry) && flow_word(flow) == found->word;
}

/* The first time that the slow path comes here with a packet: a flow is counted once. Of datagrams there is no evidence. */
static __always_inline void retry_count(const struct found *found)
{
	const struct flow *flow = found_flow(found);

	if (flow && flow_word(flow) == found->word && flow->protocol == IPPROTO_TCP && !(flow->seen & SEEN_REPLY))
		health_unanswered(flow);
}

/* False: there is no other backend, and the flow stays as it is. */
static __always_inline bool retry_choose(struct __sk_buff *skb, const struct packet *packet, const struct found *found)
{
	bool again = handed(skb)->slow.backend;

	if (!retry_find(skb, packet, found))
		return false;
	if (retry_leave(found, false)) {
		if (!again)
			retry_count(found);
		return true;
	}
	handed(skb)->slow.backend = 0;
	return false;
}

/* The backend that retry_choose found, or that another node does not know (tunnel_turn). */
static __always_inline bool retry_chosen(struct entry_point point, struct choice *choice, __u32 service)
{
	__u32 id = point.handed->slow.backend;
	const struct backend *backend = backend_get(id);

	if (!id || !backend || backend->service != service || !backend_serves_always(backend))
		return false;
	return backend_choose(choice, id, backend);
}

/* SYNs that are kept until their backend has answered, where a Service asks for that (RECORD_RETRY_REFUSED): a refusal becomes the SYN again, as if
 * its client had sent it a moment later, and that goes to the next backend as any SYN of a connection that was refused. */

#define KEPT_SENT_MAX 3 /* with the client's own, four SYNs: as many as backends are tried */

/* What tells a connection by either of its entries, whatever its backend. Never 0. */
static __always_inline __u32 kept_hash(const struct address *client, const struct address *frontend, __be16 client_port,
				       __be16 frontend_port)
{
	return flow_pair_hash(client, client_port, frontend, frontend_port, IPPROTO_TCP, filter_seed()) >> 32 | 1;
}

static __always_inline __u32 kept_flow(const struct flow *flow)
{
	__be16 port = flow->flags & FLOW_ALIAS ? flow->twin_port : flow->key_port;

	return kept_hash(&flow->client, &flow->frontend, port, flow->frontend_port);
}

static __always_inline struct kept_syn *kept_slot(__u32 flow)
{
	__u32 index = flow >> 1 & (KEPT_SYNS - 1);

	return bpf_map_lookup_elem(&kept_syns, &index);
}

/* A SYN alone, whose headers are of the usual kinds: others are refused as ever. */
static __always_inline bool kept_is_plain(const struct packet *packet)
{
	return is_plain_syn(packet) && packet->protocol == IPPROTO_TCP && packet->fragment == FRAGMENT_NONE &&
	       packet->l4 == link_header + ip_header_size(packet->family) &&
	       packet->l4_length >= sizeof(struct tcphdr) && packet->l4_length <= KEPT_TCP_ROOM;
}

/* length: of the TCP header, which has no bytes behind it. */
static __always_inline bool kept_read(struct __sk_buff *skb, struct kept_syn *kept, const struct packet *packet,
				      __u32 length)
{
	__u32 last = length - 1;

	if (link_header && bpf_skb_load_bytes(skb, 0, kept->mac, sizeof(kept->mac)))
		return false;
	if (packet->family == 4 ? bpf_skb_load_bytes(skb, link_header, kept->ip, sizeof(struct iphdr))
				: bpf_skb_load_bytes(skb, link_header, kept->ip, sizeof(struct ipv6hdr)))
		return false;
	__builtin_memset(kept->tcp, 0, sizeof(kept->tcp));
	/* the bounds that a helper wants come last: before Linux 6.8 the verifier learns nothing from size != 0 */
	asm volatile("" : "+r"(last));
	if (last >= KEPT_TCP_ROOM || bpf_skb_load_bytes(skb, packet->l4, kept->tcp, last + 1))
		return false;
	((struct tcphdr *)kept->tcp)->check = 0;
	return ((struct tcphdr *)kept->tcp)->doff * 4 == length;
}

/* Keeps a SYN that is not translated yet; once more the same one: how often it was sent stays. It says last whose it is. A function of its
 * own for the sake of the stack. */
__noinline int kept_note(struct __sk_buff *skb, const struct packet *packet)
{
	struct kept_syn *kept;
	__u32 flow, sequence;

	if (!packet || trace_on || !kept_is_plain(packet) ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, seq), &sequence, sizeof(sequence)))
		return false;
	flow = kept_hash(&packet->source, &packet->destination, packet->source_port, packet->destination_port);
	kept = kept_slot(flow);
	if (!kept)
		return false;
	if (kept->flow != flow || kept->sequence != sequence)
		kept->sent = 0;
	*(volatile __u32 *)&kept->flow = 0;
	flow_barrier();
	if (!kept_read(skb, kept, packet, packet->l4_length))
		return false;
	kept->sequence = sequence;
	kept->ifindex = skb->ifindex;
	kept->family = packet->family;
	kept->length = packet->l4_length;
	flow_barrier();
	*(volatile __u32 *)&kept->flow = flow;
	return true;
}

/* kept_flow of the SYN that a reset refuses, 0: none is kept, or it was sent often enough. A function of its own for the sake of the stack. */
__noinline int kept_refused(struct __sk_buff *skb, const struct packet *packet, const struct flow *flow)
{
	struct kept_syn *kept;
	__u32 key, acked;

	if (!packet || !flow || trace_on || flow->flags & ~(FLOW_ALIAS | FLOW_SNAT) ||
	    packet->fragment != FRAGMENT_NONE)
		return 0;
	key = kept_flow(flow);
	kept = kept_slot(key);
	if (!kept || *(volatile __u32 *)&kept->flow != key || kept->sent >= KEPT_SENT_MAX ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, ack_seq), &acked, sizeof(acked)) ||
	    bpf_ntohl(acked) != bpf_ntohl(kept->sequence) + 1)
		return 0;
	kept->sent++;
	return key;
}

/* The server's first answer is a reset. packet: of TCP. */
static __always_inline bool kept_asked(const struct packet *packet, const struct flow *flow)
{
	return packet->tcp_flags & TCP_RST && packet->protocol == IPPROTO_TCP && !(flow->seen & SEEN_REPLY);
}

static __always_inline struct step step_resend(struct __sk_buff *skb, __u32 flow, enum hook hook)
{
	handed(skb)->resend.flow = flow;
	handed(skb)->resend.hook = hook;
	return (struct step){ NEXT_RESEND, VERDICT_DROP_NO_PROGRAM };
}

/* The sum of the pseudo header of a kept SYN. */
static __always_inline __u64 kept_pseudo(const struct kept_syn *kept)
{
	__u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(kept->length);

	if (kept->family == 4)
		return sum + csum_words((const __u32 *)&((const struct iphdr *)kept->ip)->saddr, 2);
	return sum + csum_words((const __u32 *)&((const struct ipv6hdr *)kept->ip)->saddr, 8);
}

/* Bytes behind the TCP header are zero. */
static __always_inline __u16 kept_check(const struct kept_syn *kept, bool partial)
{
	__u64 sum = kept_pseudo(kept);

	if (partial)
		return csum_fold(sum);
	return ~csum_fold(sum + csum_words((const __u32 *)kept->tcp, KEPT_TCP_ROOM / 4));
}

/* Copies a SYN whose row nobody has written meanwhile. */
static __always_inline bool kept_copy(struct kept_syn *to, __u32 flow)
{
	struct kept_syn *kept = kept_slot(flow);

	if (!kept || *(volatile __u32 *)&kept->flow != flow)
		return false;
	flow_barrier();
	*to = *kept;
	flow_barrier();
	return *(volatile __u32 *)&kept->flow == flow;
}

static __always_inline bool kept_write(struct __sk_buff *skb, const struct kept_syn *kept)
{
	__u32 l4 = link_header + ip_header_size(kept->family);
	__u32 length = kept->length;
	__u32 last = length - 1;

	if (bpf_skb_change_tail(skb, l4 + length, 0) ||
	    !(kept->family == 4 ? answer_store(skb, link_header, kept->ip, sizeof(struct iphdr))
				: answer_store(skb, link_header, kept->ip, sizeof(struct ipv6hdr))))
		return false;
	asm volatile("" : "+r"(last));
	if (last >= KEPT_TCP_ROOM)
		return false;
	return answer_store(skb, l4, kept->tcp, last + 1) &&
	       (!link_header || bpf_skb_store_bytes(skb, 0, kept->mac, sizeof(kept->mac), 0) == 0);
}

/* Makes the kept SYN of a refusal. The device by which it came, 0: it cannot be made. */
static __always_inline __u32 kept_send(struct __sk_buff *skb, struct kept_syn *kept)
{
	struct packet packet = {};
	bool partial;

	if (!kept_copy(kept, handed(skb)->resend.flow) || parse_full(skb, &packet) != VERDICT_CONTINUE ||
	    packet.malformed || packet.family != kept->family ||
	    packet.l4 != link_header + ip_header_size(packet.family))
		return 0;
	partial = reject_tcp_partial(skb, &packet);
	((struct tcphdr *)kept->tcp)->check = kept_check(kept, partial);
	return kept_write(skb, kept) ? kept->ifindex : 0;
}
