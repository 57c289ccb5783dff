/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Out of the tunnel: what another node sent for a backend of this one, and answers for clients that came by this node. */
#pragma once

#include "create.h"
#include "icmp.h"
#include "slow.h"
#include "tunnel.h"
#include "work.h"

#ifndef BPF_F_ADJ_ROOM_DECAP_L3_IPV4 /* Linux 6.3 */
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#endif

#define ECN_MASK 3 /* of a class */
#define ECN_ECT1 1
#define ECN_ECT0 2
#define ECN_CE   3

/* The headers in front of a packet. */
struct arrival {
	struct packet packet; /* the outer one, then the inner one */
	__u32 size;           /* of what is in front of the inner one */
	__u8 family;          /* of the inner one */
	__u8 class;           /* of the outer one */
	__u8 pad[2];
};

/* The option names the backend. Every byte is as wrap_store_option writes it. */
static __always_inline bool arrival_option(struct frame frame, const struct arrival *arrival, struct tunnel_packet *in,
					   __u32 at)
{
	struct tunnel_option option = {};

	if (arrival->family == 4 ? frame_load(frame, at, &option, 12) : frame_load(frame, at, &option, 24))
		return false;
	if (option.class != bpf_htons(TUNNEL_OPTION_CLASS) || option.type != TUNNEL_OPTION_TYPE || option.zero ||
	    option.words != tunnel_option_size(arrival->family) / 4 - 1 || !option.port)
		return false;
	in->port = option.port;
	if (arrival->family == 4)
		address_from4(&in->backend, option.address[0]);
	else
		address_from6(&in->backend, (struct in6_addr *)option.address);
	return true;
}

static __always_inline bool arrival_kind(const struct geneve *geneve, struct tunnel_packet *in)
{
	__u32 kind = bpf_ntohl(geneve->kind);

	if (kind & 0xff || geneve->flags != (geneve->words ? GENEVE_CRITICAL : 0))
		return false;
	in->kind = kind >> 8;
	return kind == TUNNEL_FORWARD << 8 || kind == TUNNEL_DIRECT << 8 || kind == TUNNEL_REPLY << 8 ||
	       kind == TUNNEL_UNKNOWN << 8;
}

/* The cookie at an offset, of a header with options: VERDICT_CONTINUE: it is this node's, or none is asked for. cookie: the packet has one. */
static __always_inline enum verdict arrival_cookie(struct frame frame, __u32 at, __u32 words, bool *cookie)
{
	const struct tunnel_end *tunnel = tunnel_get();
	struct tunnel_cookie option = {};
	__u64 value = 0;

	*cookie = words * 4 >= sizeof(option) && !frame_load(frame, at, &option, sizeof(option)) &&
		  option.class == bpf_htons(TUNNEL_OPTION_CLASS) && option.type == TUNNEL_COOKIE_TYPE;
	if (*cookie) {
		value = (__u64)option.value[1] << 32 | option.value[0];
		if (option.words != sizeof(option) / 4 - 1 || !value)
			return VERDICT_DROP_TUNNEL_MALFORMED;
	}
	return tunnel && tunnel_accepts(tunnel, value) ? VERDICT_CONTINUE : VERDICT_DROP_TUNNEL_COOKIE;
}

static __always_inline bool arrival_class(struct frame frame, struct arrival *arrival)
{
	__u8 pair[2];

	if (frame_load(frame, link_header, pair, sizeof(pair)))
		return false;
	arrival->class = arrival->packet.family == 4 ? pair[1] : pair[0] << 4 | pair[1] >> 4;
	return true;
}

/* The options behind a header. */
static __always_inline enum verdict arrival_options(struct frame frame, const struct arrival *arrival,
						    struct tunnel_packet *in, __u32 words, __u32 at)
{
	bool cookie;
	enum verdict verdict = arrival_cookie(frame, at, words, &cookie);

	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (cookie) {
		words -= sizeof(struct tunnel_cookie) / 4;
		at += sizeof(struct tunnel_cookie);
	}
	if (!words)
		return VERDICT_CONTINUE;
	return (in->kind == TUNNEL_FORWARD || in->kind == TUNNEL_DIRECT) &&
			       words * 4 == tunnel_option_size(arrival->family) &&
			       arrival_option(frame, arrival, in, at)
		       ? VERDICT_CONTINUE
		       : VERDICT_DROP_TUNNEL_MALFORMED;
}

/* VERDICT_CONTINUE: what is in front is as another node writes it; tunnel_packet_get says what that is. */
static __always_inline enum verdict arrival_check(struct frame frame, struct arrival *arrival)
{
	struct tunnel_packet *in = tunnel_packet_get();
	struct geneve geneve;
	struct udphdr udp;
	__u32 at;

	if (!in || !arrival || arrival->packet.malformed || arrival->packet.fragment != FRAGMENT_NONE ||
	    arrival->packet.l4 != link_header + ip_header_size(arrival->packet.family) ||
	    !arrival_class(frame, arrival))
		return VERDICT_DROP_TUNNEL_MALFORMED;
	at = arrival->packet.l4;
	if (frame_load(frame, at, &udp, sizeof(udp)) || bpf_ntohs(udp.len) != arrival->packet.l4_length ||
	    frame_load(frame, at + sizeof(udp), &geneve, sizeof(geneve)) || !arrival_kind(&geneve, in))
		return VERDICT_DROP_TUNNEL_MALFORMED;
	if (geneve.protocol != bpf_htons(ETH_P_IP) && geneve.protocol != bpf_htons(ETH_P_IPV6))
		return VERDICT_DROP_TUNNEL_MALFORMED;
	arrival->family = geneve.protocol == bpf_htons(ETH_P_IP) ? 4 : 6;
	arrival->size = tunnel_size(arrival->packet.family) + (__u32)geneve.words * 4;
	in->port = 0;
	if (arrival->packet.l4_length <
	    arrival->size - ip_header_size(arrival->packet.family) + ip_header_size(arrival->family))
		return VERDICT_DROP_TUNNEL_MALFORMED;
	return arrival_options(frame, arrival, in, geneve.words, at + sizeof(udp) + sizeof(geneve));
}

/* A function of its own for the sake of the stack, as the next one. */
__noinline int arrival_read(struct __sk_buff *skb, struct arrival *arrival)
{
	return arrival_check((struct frame){ skb, false }, arrival);
}

__noinline int arrival_read_xdp(struct xdp_md *ctx, struct arrival *arrival)
{
	return arrival_check((struct frame){ ctx, true }, arrival);
}

/* BPF_F_ADJ_ROOM_DECAP_L4_UDP, which Linux 6.18 does not have: what is cut into segments later is a tunnel's no more. Kernels that do not know it
 * refuse the call before they look at the packet; taken out as whole packets are, TCP is cut all the same, datagrams (UDP_SEGMENT) are lost. */
#define DECAP_L4_UDP (1ULL << 10)

/* Takes away what is in front. Before Linux 6.3 the kernel does not change a packet's family with that. */
static __always_inline bool arrival_open(struct __sk_buff *skb, const struct arrival *arrival)
{
	__be16 protocol = tunnel_protocol(arrival->family);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__s32 size = arrival->size;

	if (arrival->family != arrival->packet.family)
		flags |= arrival->family == 4 ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 : BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (!(skb->gso_size && !bpf_skb_adjust_room(skb, -size, BPF_ADJ_ROOM_MAC, flags | DECAP_L4_UDP)) &&
	    bpf_skb_adjust_room(skb, -size, BPF_ADJ_ROOM_MAC, flags))
		return false;
	return bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &protocol, sizeof(protocol), 0) == 0;
}

/* Makes ECT(1) of ECT(0), and leaves what is neither. A function of its own for the sake of the stack. */
__noinline int arrival_ect1(struct __sk_buff *skb, __u32 family)
{
	__u16 from, to;

	if (bpf_skb_load_bytes(skb, link_header, &from, sizeof(from)))
		return false;
	to = from ^ (family == 4 ? bpf_htons(ECN_ECT0 ^ ECN_ECT1) : bpf_htons((ECN_ECT0 ^ ECN_ECT1) << 4));
	if ((bpf_ntohs(from) >> (family == 4 ? 0 : 4) & ECN_MASK) != ECN_ECT0)
		return true;
	return store_ip_word(skb, family, link_header, from, to);
}

/* RFC 6040 4.2: congestion that was met on the way is told to who knows of that, and a packet of somebody else is gone. ECT(1) that the way has made
 * of ECT(0) stays. */
static __always_inline bool arrival_congestion(struct __sk_buff *skb, const struct arrival *arrival)
{
	__u8 met = arrival->class & ECN_MASK;

	if (met == ECN_CE)
		return bpf_skb_ecn_set_ce(skb);
	return met != ECN_ECT1 || arrival_ect1(skb, arrival->family);
}

/* The way has changed what the headers in front say, and what is inside is to follow. */
static __always_inline bool arrival_has_met(struct frame frame, const struct arrival *arrival)
{
	__u8 met = arrival->class & ECN_MASK, pair[2];

	if (met != ECN_ECT1)
		return met == ECN_CE;
	if (frame_load(frame, link_header + arrival->size, pair, sizeof(pair)))
		return true;
	return ((arrival->family == 4 ? pair[1] : pair[1] >> 4) & ECN_MASK) != ECN_ECT1;
}

#define HELLO_MARK 8 /* bytes behind the header, which mean something to the asker alone */

struct hello {
	struct udphdr udp;
	struct geneve geneve;
	struct tunnel_cookie
		cookie; /* of who sends it; value may be 0. No more than the header where the option is missing */
};

/* Bytes of its options, negative: it is none. */
static __always_inline int hello_read(struct __sk_buff *skb, const struct packet *packet, struct hello *hello)
{
	__u32 plain = offsetof(struct hello, cookie), length = packet->l4_length - HELLO_MARK;

	if (packet->fragment != FRAGMENT_NONE || packet->malformed || (length != plain && length != sizeof(*hello)) ||
	    bpf_skb_load_bytes(skb, packet->l4, hello, length == plain ? plain : sizeof(*hello)) ||
	    hello->geneve.words * 4 != length - plain || hello->geneve.protocol ||
	    hello->geneve.flags != (length == plain ? GENEVE_OAM : GENEVE_OAM | GENEVE_CRITICAL) ||
	    hello->geneve.kind != bpf_htonl(TUNNEL_HELLO << 8))
		return -1;
	if (length != plain &&
	    (hello->cookie.class != bpf_htons(TUNNEL_OPTION_CLASS) || hello->cookie.type != TUNNEL_COOKIE_TYPE ||
	     hello->cookie.words != sizeof(hello->cookie) / 4 - 1))
		return -1;
	return length - plain;
}

/* A word of the cookie becomes this node's: an answer to who knows of cookies says what this node's packets have. */
static __always_inline bool hello_word(struct __sk_buff *skb, const struct packet *packet, __u32 word, __u32 from,
				       __u32 to)
{
	__u32 at = packet->l4 + offsetof(struct hello, cookie.value) + word * 4;

	return !bpf_l4_csum_replace(skb, packet->l4 + offsetof(struct udphdr, check), from, to,
				    BPF_F_MARK_MANGLED_0 | sizeof(to)) &&
	       !bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Turns a hello into its answer: addresses and ports change places, which no sum sees, and the kind is another. A function of its own for the
 * sake of the stack. */
__noinline int hello_answer(struct __sk_buff *skb, const struct packet *packet, __u32 answer)
{
	__be16 asked = bpf_htons(TUNNEL_HELLO << 8), answered = bpf_htons(TUNNEL_ANSWER << 8 | answer);
	__be16 ports[2];

	if (!packet)
		return false;
	ports[0] = packet->destination_port;
	ports[1] = packet->source_port;
	if (bpf_l4_csum_replace(skb, packet->l4 + offsetof(struct udphdr, check), asked, answered,
				BPF_F_MARK_MANGLED_0 | sizeof(asked)) ||
	    bpf_skb_store_bytes(skb, packet->l4 + sizeof(struct udphdr) + offsetof(struct geneve, kind) + 2, &answered,
				sizeof(answered), 0) ||
	    bpf_skb_store_bytes(skb, packet->l4, ports, sizeof(ports), 0))
		return false;
	return (packet->family == 4 ? echo_ip4(skb, packet) : echo_ip6(skb, packet)) && packet_pull(skb, ETH_HLEN) &&
	       swap_macs(skb);
}

/* What this node says of itself to one that sends a hello. */
static __always_inline __u32 hello_answers(struct __sk_buff *skb, const struct packet *packet)
{
	const struct tunnel_packet *in = tunnel_packet_get();

	return in && tunnel_room(skb, in->node, packet->family) ? TUNNEL_ANSWERS_DIRECT
								: TUNNEL_ANSWERS_DIRECT | TUNNEL_ANSWERS_NO_WAY;
}

/* VERDICT_CONTINUE: it is no hello. A node that serves answers, and one that is handed over to kube-proxy does not; nor does one whose packets
 * have a cookie where the asker has said nothing of cookies: it might not know them. A function of its own for the sake of the stack. */
__noinline int hello_take(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = settings_get();
	const struct tunnel_end *tunnel = tunnel_get();
	struct hello hello = {};
	__u64 cookie;
	int options;

	if (!packet || !settings || !tunnel)
		return VERDICT_CONTINUE;
	options = hello_read(skb, packet, &hello);
	if (options < 0)
		return VERDICT_CONTINUE;
	if (settings->disabled || settings->draining || tunnel->leaving)
		return VERDICT_PASS_DRAINING;
	cookie = tunnel->cookie;
	if (!tunnel_accepts(tunnel, (__u64)hello.cookie.value[1] << 32 | hello.cookie.value[0]) || (!options && cookie))
		return VERDICT_DROP_TUNNEL_COOKIE;
	if (options && !(hello_word(skb, packet, 0, hello.cookie.value[0], cookie) &&
			 hello_word(skb, packet, 1, hello.cookie.value[1], cookie >> 32)))
		return VERDICT_DROP_REWRITE;
	return hello_answer(skb, packet, hello_answers(skb, packet)) ? VERDICT_REJECT_HELLO : VERDICT_DROP_REWRITE;
}

/* VERDICT_CONTINUE: the packet, without what was in front, is described by arrival->packet. */
static __always_inline enum verdict arrival_inner(struct __sk_buff *skb, struct arrival *arrival,
						  const struct tunnel_packet *in)
{
	struct packet *packet = &arrival->packet;

	if (parse_full(skb, packet) != VERDICT_CONTINUE || packet->family != arrival->family || packet->malformed ||
	    !arrival_congestion(skb, arrival) ||
	    (in->kind == TUNNEL_UNKNOWN && is_icmp(packet->protocol, packet->family)))
		return VERDICT_DROP_TUNNEL_MALFORMED;
	return VERDICT_CONTINUE;
}

/* The same of a packet as it came. */
static __always_inline enum verdict arrival_take(struct __sk_buff *skb, struct arrival *arrival,
						 struct tunnel_packet *in)
{
	struct packet *packet = &arrival->packet;
	enum verdict verdict;

	if (parse_full(skb, packet) != VERDICT_CONTINUE)
		return VERDICT_DROP_TUNNEL_MALFORMED;
	in->length = skb->len;
	in->node = tunnel_node_at(&packet->source);
	if (!in->node)
		return VERDICT_DROP_TUNNEL_SOURCE;
	verdict = hello_take(skb, packet);
	if (verdict == VERDICT_CONTINUE)
		verdict = arrival_read(skb, arrival);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (!arrival_open(skb, arrival))
		return VERDICT_DROP_REWRITE;
	__builtin_memset(packet, 0, sizeof(*packet));
	packet->hook = HOOK_FROM_NET;
	return arrival_inner(skb, arrival, in);
}

/* VERDICT_CONTINUE: the same of a packet that the program at XDP took out of the tunnel. from_net has read what that says of it, which ends here:
 * a packet that came by this node again would be taken for another one. */
static __always_inline enum verdict arrival_opened(struct __sk_buff *skb, struct arrival *arrival,
						   const struct tunnel_packet *in)
{
	struct opened *opened = (void *)(long)skb->data_meta;

	if ((void *)(opened + 1) <= (void *)(long)skb->data)
		opened->salt = 0;
	arrival->family = skb->protocol == bpf_htons(ETH_P_IP) ? 4 : 6;
	return arrival_inner(skb, arrival, in);
}

/* A client's packet, on the backend's node. */

/* The record of a frontend as another node has it: a NodePort is at that node's address there, and at this one's here. A function of its own
 * for the sake of the stack. */
__noinline int tunnel_record(const struct packet *packet, __u32 node)
{
	const struct settings *settings = settings_get();
	struct frontend_key key = {};
	const struct record *record;
	int number;

	if (!packet || !settings)
		return 0;
	frontend_key_of(&key, packet);
	number = frontend_number(&key);
	if (number || tunnel_node_at(&packet->destination) != (int)node)
		return number;
	key.address = packet->family == 4 ? settings->node_port4 : settings->node_port6;
	number = frontend_number(&key);
	record = number ? record_get(number) : NULL;
	return record && record->kind == KIND_NODE_PORT ? number : 0;
}

/* The packet names the backend. */
static __always_inline bool tunnel_names(const struct tunnel_packet *in, const struct backend *backend)
{
	return backend->port == in->port && address_equal(&backend->address, &in->backend);
}

/* Id of the backend that the packet names, 0: it is none of this node's. An id that the table gives may be of another key that has just got the
 * element. A function of its own for the sake of the stack. */
__noinline int tunnel_backend(__u32 service)
{
	const struct tunnel_packet *in = tunnel_packet_get();
	struct local_key key = {};
	const struct backend *backend;
	const __u32 *id;

	if (!in || !in->port)
		return 0;
	key.address = in->backend;
	key.port = in->port;
	key.service = service;
	id = bpf_map_lookup_elem(&local_backends, &key);
	backend = id ? backend_get(*id) : NULL;
	return backend && backend->service == service && backend->tier == TIER_NODE && tunnel_names(in, backend) ? *id
														 : 0;
}

static __always_inline bool tunnel_choose(struct choice *choice, const struct packet *packet, __u32 service)
{
	__u32 id = tunnel_backend(service);
	const struct backend *backend = backend_get(id);

	if (!id || !backend || (opens_connection(packet) && !backend_serves_always(backend)))
		return false;
	return backend_choose(choice, id, backend);
}

/* Index of the device that a strict reverse path filter expects a client's packets to the backend by, 0: of none. It asks as for what the host
 * sends itself. A function of its own for the sake of the stack. */
__noinline int tunnel_expects(struct __sk_buff *skb, const struct packet *packet, const struct address *backend)
{
	struct bpf_fib_lookup fib = {};

	if (!packet || !backend || !route_lookup)
		return 0;
	fib_describe(&fib, LOOPBACK_IFINDEX, packet, backend, &packet->source, 0);
	return fib_found(bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) ? fib.ifindex : 0;
}

/* Of that device, what a flow has in seen. CARRIED_NEAR: it is a pod's of this node, over the network nothing comes from there. CARRIED_ASIDE: it
 * is another network device than that of the tunnel. A function of its own for the sake of the stack. */
__noinline int tunnel_side(struct __sk_buff *skb, __u32 expects)
{
	const struct device *device;
	__u32 ifindex = expects;

	if (!ifindex || ifindex == skb->ifindex)
		return 0;
	device = bpf_map_lookup_elem(&devices, &ifindex);
	return device && !device->pod ? CARRIED_ASIDE : CARRIED_NEAR;
}

/* Of the flow of a packet that came through the tunnel. Whatever answers a SYN goes back: the other node does not know yet that the backend
 * answers, nor whether the connection before is over. */
static __always_inline __u8 tunnel_flags(const struct packet *packet, const struct tunnel_packet *in)
{
	return in->kind == TUNNEL_DIRECT && !(packet->tcp_flags & TCP_SYN) ? FLOW_CARRIED | FLOW_DSR : FLOW_CARRIED;
}

/* The same where this node's own record has a word in it: whoever passes for a node has no answers sent past it to Services that are not
 * answered so. */
static __always_inline __u8 tunnel_flags_of(const struct packet *packet, const struct tunnel_packet *in,
					    const struct record *record)
{
	return record && record->flags & RECORD_DSR ? tunnel_flags(packet, in) : FLOW_CARRIED;
}

/* This node does not know the Service or the backend, as its agent is behind or dead, or has no way for the packet to the backend or for answers
 * back: the other node reaches that by SNAT none the less. Only of what opens a connection, as the other node named the backend then, and has told the client nothing yet. */
static __always_inline struct step tunnel_unknown(const struct packet *packet, const struct tunnel_packet *in)
{
	if (!opens_connection(packet) || packet->fragment != FRAGMENT_NONE || !in->port)
		return step_finish(VERDICT_DROP_TUNNEL_STRAY);
	return (struct step){ NEXT_TUNNEL, VERDICT_TRANSLATE_RETURNED };
}

/* Of a packet that opens a connection: answers have a way back to the node that it came from. The server is told what fits that, of the client's
 * segments: its answers carry no option, or do not take the tunnel at all. */
static __always_inline bool tunnel_leads_back(struct __sk_buff *skb, const struct packet *packet,
					      const struct tunnel_packet *in)
{
	__u32 room = tunnel_room(skb, in->node, packet->family);

	if (in->kind == TUNNEL_FORWARD)
		tunnel_clamp(skb, packet, room);
	return room;
}

/* What the entry of a flow to the backend says of the last one's, which the other node has found silent. */
static __always_inline __u32 tunnel_left(const struct found *found, __u32 backend)
{
	const struct flow *last = found_flow(found);

	if (!last || last->seen & SEEN_REPLY)
		return 0;
	return last->backend != backend || (last->flags & FLOW_CARRIED && last->seen & CARRIED_LEFT) ? CARRIED_LEFT : 0;
}

/* Describes a flow to the backend that the other node has chosen. NEXT_FINISH: it is refused. NEXT_TUNNEL: it goes back. */
static __always_inline struct step tunnel_describe(struct __sk_buff *skb, struct work *work,
						   const struct record *record, const struct tunnel_packet *from)
{
	struct packet *packet = &work->packet;
	struct insertion *in = &work->in;
	struct choice choice = {};

	work->service = record->service;
	trace_frontend(record, SIDE_EXTERNAL);
	if (!source_allowed(record, &packet->source))
		return step_finish(VERDICT_DROP_SOURCE_RANGE);
	if (record->sides[SIDE_EXTERNAL].action != ACTION_BALANCE || !tunnel_choose(&choice, packet, record->service))
		return tunnel_unknown(packet, from);
	create_describe(in, packet);
	in->flow.seen |= tunnel_side(skb, tunnel_expects(skb, packet, &choice.address));
	if (in->flow.seen & CARRIED_NEAR &&
	    tunnel_is_host(skb, packet, &choice.address)) /* it cannot be routed, nor pass the filter */
		return tunnel_unknown(packet, from);
	if (opens_connection(packet) && !tunnel_leads_back(skb, packet, from))
		return tunnel_unknown(packet, from);
	in->flow.backend = choice.backend;
	in->flow.generation = choice.generation;
	in->flow.service = record->service;
	in->flow.side = SIDE_EXTERNAL;
	in->flow.flags = tunnel_flags_of(packet, from, record);
	in->flow.touched = flow_now(); /* tunnel_aside */
	in->flow.seen |= (__u32)from->node << CARRIED_NODE_SHIFT | create_loads(record, packet) |
			 tunnel_left(&work->found, choice.backend);
	in->to.destination = choice.address;
	in->to.destination_port = choice.port;
	create_routed(work->settings, record);
	return (struct step){ NEXT_CREATE,
			      opens_connection(packet) ? VERDICT_TRANSLATE_BALANCE : VERDICT_TRANSLATE_RECOVER };
}

/* NEXT_TRANSLATE: work->in has the flow. */
static __always_inline struct step tunnel_create(struct __sk_buff *skb, struct work *work,
						 const struct tunnel_packet *in)
{
	__u32 number = tunnel_record(&work->packet, in->node);
	const struct record *record = number ? record_get(number) : NULL;
	struct step step;

	if (!record || record->flags & RECORD_ADDRESS)
		return tunnel_unknown(&work->packet, in);
	step = tunnel_describe(skb, work, record, in);
	return step.next == NEXT_CREATE ? create_new(point_tc(skb), work, step.verdict) : step;
}

/* The flow is to a backend of this node, and to the one that the other node has chosen where the connection is new. */
static __always_inline bool tunnel_agrees(const struct flow *flow, const struct packet *packet,
					  const struct tunnel_packet *in)
{
	const struct backend *backend = flow_backend(flow);

	if (!backend || flow->flags & ~(FLOW_CARRIED | FLOW_DSR | FLOW_ALIAS))
		return false;
	return !in->port || !opens_connection(packet) || tunnel_names(in, backend);
}

/* Of seen, what stays when another node becomes the one that the connection came from: a flow that came from none has tried there. */
static __always_inline __u32 seen_carried(const struct flow *flow, __u32 seen)
{
	return flow->flags & FLOW_CARRIED ? seen & ~CARRIED_NODE : seen & SEEN_UNCARRIED;
}

/* Answers go where the last packet says. */
static __always_inline bool tunnel_has_claimed(const struct flow *flow, __u8 flags, __u16 node)
{
	return (flow->flags & (FLOW_CARRIED | FLOW_DSR)) == flags && flow_carried_by(flow) == node;
}

/* False: the entry has seen something else meanwhile, and the next packet is to try again. */
static __always_inline bool tunnel_claim(struct flow *flow, __u8 flags, __u16 node)
{
	__u32 seen = flow->seen;

	if (tunnel_has_claimed(flow, flags, node))
		return true;
	if (__sync_val_compare_and_swap(&flow->seen, seen,
					seen_carried(flow, seen) | (__u32)node << CARRIED_NODE_SHIFT) != seen)
		return false;
	*(volatile __u8 *)&flow->flags = (flow->flags & FLOW_ALIAS) | flags;
	return true;
}

/* Of both entries of a flow. The one that packets find comes last, as it tells whether there is anything to do. */
static __always_inline void tunnel_claim_both(const struct settings *settings, struct flow *flow, __u8 flags,
					      __u16 node)
{
	struct flow *twin = flow_twin(settings, flow);

	if (!twin || tunnel_claim(twin, flags, node))
		tunnel_claim(flow, flags, node);
}

/* The node that a flow's packet came from is the one that its answers go to from now on, or past it. */
static __always_inline void tunnel_follow(const struct settings *settings, struct flow *flow,
					  const struct packet *packet, const struct tunnel_packet *in)
{
	__u8 flags = tunnel_flags(packet, in);
	int number;

	if (tunnel_has_claimed(flow, flags, in->node))
		return;
	if (flags & ~flow->flags & FLOW_DSR) {
		number = tunnel_record(packet, in->node);
		flags = tunnel_flags_of(packet, in, number ? record_get(number) : NULL);
	}
	tunnel_claim_both(settings, flow, flags, in->node);
}

/* The client's pod is on this node: its packet is routed, past a reverse path filter. */
static __always_inline struct step tunnel_translated(const struct work *work, enum verdict verdict)
{
	if (work->in.flow.seen & CARRIED_NEAR && verdict_is_translate(verdict))
		return (struct step){ NEXT_ROUTE, verdict };
	return step_finish(verdict);
}

/* The routing tables are other ones since the flow's entry was told by which device its packets come. before: its seen. */
static __always_inline void tunnel_note_side(const struct found *found, __u32 before, __u32 side)
{
	struct flow *flow = found_flow(found);

	if (!((side ^ before) & CARRIED_ASIDE) || !flow || flow_word(flow) != found->word || trace_on)
		return;
	if (side & CARRIED_ASIDE)
		__sync_fetch_and_or(&flow->seen, CARRIED_ASIDE);
	else
		__sync_fetch_and_and(&flow->seen, ~CARRIED_ASIDE);
}

/* Index of the device by which a packet that was translated comes in, 0: by that of the tunnel. That is asked for each packet of a flow that has
 * another one, and for what comes a second after the last packet of those that have not. made: as it was before the packet. A function of its own
 * for the sake of the stack. */
__noinline int tunnel_aside(struct __sk_buff *skb, const struct packet *packet, const struct insertion *made,
			    const struct found *found)
{
	__u32 expects, side;

	if (!packet || !made || !found || made->flow.seen & CARRIED_NEAR ||
	    !(made->flow.seen & CARRIED_ASIDE || flow_age(&made->flow, flow_now()) >= jiffies_per_second))
		return 0;
	expects = tunnel_expects(skb, packet, &made->to.destination);
	side = tunnel_side(skb, expects);
	tunnel_note_side(found, made->flow.seen, side);
	return side == CARRIED_ASIDE ? expects : 0;
}

/* It passes, translated. */
static __always_inline bool step_lets_in(struct step step)
{
	return step.next == NEXT_FINISH && verdict_is_translate(step.verdict);
}

/* The same of an error that was translated, whose sender may be any router. */
static __always_inline __u32 tunnel_error_aside(struct __sk_buff *skb, const struct icmp *icmp, struct step step)
{
	const struct backend *backend = flow_backend(&icmp->match.flow);
	__u32 expects;

	if (!step_lets_in(step) || !backend)
		return 0;
	expects = tunnel_expects(skb, &icmp->outer, &backend->address);
	return tunnel_side(skb, expects) == CARRIED_ASIDE ? expects : 0;
}

/* In tc_index of a packet that left the tunnel, was translated and counted, and comes in by another device. */
#define TUNNEL_ASIDE 0x6e74

/* True: it is one, and passes. The mark ends here. Its frame is to the tunnel's device. */
static __always_inline bool tunnel_came_aside(struct __sk_buff *skb)
{
	if (!tunnel_there || skb->tc_index != TUNNEL_ASIDE)
		return false;
	skb->tc_index = 0;
	bpf_skb_change_type(skb, PACKET_HOST);
	return true;
}

/* Counts a packet, and lets it in by that device. */
static __always_inline int finish_aside(struct __sk_buff *skb, enum verdict verdict, __u32 length, __u32 ifindex)
{
	skb->tc_index = TUNNEL_ASIDE;
	return finish_resent(HOOK_FROM_NET, verdict, length, ifindex);
}

static __always_inline struct step tunnel_established(struct __sk_buff *skb, struct work *work,
						      const struct tunnel_packet *in)
{
	struct flow *live = found_flow(&work->found);
	enum verdict verdict;

	if (live)
		tunnel_follow(work->settings, live, &work->packet, in);
	if (work->packet.tcp_flags & TCP_SYN)
		tunnel_leads_back(skb, &work->packet, in);
	verdict = forward_established(skb, work->settings, &work->packet, &work->found, &work->in.flow, &work->in.to);
	return verdict == VERDICT_CONTINUE ? step_again(VERDICT_DROP_FLOW_RACE) : tunnel_translated(work, verdict);
}

/* Not 0: the node has answered a hello, so its programs keep its pods from the tunnel. Pods of a node without any may pass for that node. A
 * function of its own for the sake of the stack. */
__noinline int tunnel_is_heard(__u32 number)
{
	const struct tunnel_node *node = tunnel_node_get(number);

	return node && !node->unheard;
}

/* The flow came from the node before. */
static __always_inline bool tunnel_brought(const struct flow *flow, __u16 node)
{
	return flow->flags & FLOW_CARRIED && flow_carried_by(flow) == node;
}

/* What opens a connection goes back, and on by SNAT if that node has a tunnel. */
static __always_inline struct step tunnel_unheard(const struct packet *packet, const struct tunnel_packet *in)
{
	struct step step = tunnel_unknown(packet, in);

	return step.next == NEXT_FINISH ? step_finish(VERDICT_DROP_TUNNEL_UNHEARD) : step;
}

static __always_inline struct step tunnel_ports(struct __sk_buff *skb, struct work *work,
						const struct tunnel_packet *in)
{
	struct insertion *made = &work->in;
	struct packet *packet = &work->packet;
	struct flow *flow;
	struct step step;
	bool known;

	if (!forward_find(skb, &work->found, packet, &work->query))
		return step_finish(VERDICT_DROP_TUNNEL_STRAY);
	flow = found_flow(&work->found);
	known = work->found.usable && flow && tunnel_agrees(flow, packet, in);
	if (!(known && tunnel_brought(flow, in->node)) && !tunnel_is_heard(in->node))
		return tunnel_unheard(packet, in);
	if (known)
		return tunnel_established(skb, work, in);
	if (packet->fragment == FRAGMENT_LATER)
		return step_finish(VERDICT_DROP_FRAGMENT);
	step = tunnel_create(skb, work, in);
	if (step.next != NEXT_TRANSLATE)
		return step;
	if (!forward_target(&made->to, work->settings, &made->flow, packet))
		return step_finish(VERDICT_DROP_NO_BACKEND);
	flow_count_first(work->settings, made, skb->len);
	return tunnel_translated(work, forward_rewrite(skb, packet, &made->flow, &made->to, step.verdict));
}

static __always_inline struct step tunnel_deliver(struct __sk_buff *skb, struct work *work,
						  const struct tunnel_packet *in)
{
	struct packet *packet = &work->packet;

	work->settings = settings_get();
	packet->hook = HOOK_FROM_NET;
	if (!work->settings || work->settings->disabled)
		return step_finish(VERDICT_DROP_TUNNEL_STRAY);
	if (parse_full(skb, packet) != VERDICT_CONTINUE || packet->malformed)
		return step_finish(VERDICT_DROP_TUNNEL_MALFORMED);
	if (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet))
		return step_finish(VERDICT_DROP_FRAGMENT);
	if (packet->protocol != IPPROTO_TCP && packet->protocol != IPPROTO_UDP)
		return step_finish(VERDICT_DROP_TUNNEL_MALFORMED);
	return tunnel_ports(skb, work, in);
}

/* An answer, on the node that the client came by. */

/* The connection that an answer, or the answer to a quoted packet, is of: it went to the node that the answer comes from. */
static __always_inline bool tunnel_find_back(struct __sk_buff *skb, struct found *found, struct flow_query *query,
					     const struct packet *answer, __u16 node)
{
	struct packet asked = *answer;
	const struct backend *backend;
	struct flow *flow;

	asked.source = answer->destination;
	asked.source_port = answer->destination_port;
	asked.destination = answer->source;
	asked.destination_port = answer->source_port;
	asked.tcp_flags = TCP_ACK;
	if (!forward_find(skb, found, &asked, query) || !(found->usable | found->lost))
		return false;
	flow = found_flow(found);
	backend = flow ? flow_backend(flow) : NULL;
	return backend && flow->flags & FLOW_CARRY && backend->node == node && flow_word(flow) == found->word;
}

/* Notes the answer. VERDICT_CONTINUE: it is the connection's. */
static __always_inline enum verdict tunnel_answer(struct __sk_buff *skb, struct packet *packet, struct found *found,
						  struct flow_query *query, __u16 node)
{
	const struct settings *settings = settings_get();
	struct flow *flow;

	packet->hook = HOOK_FROM_NET;
	if (parse_full(skb, packet) != VERDICT_CONTINUE || packet->malformed)
		return VERDICT_DROP_TUNNEL_MALFORMED;
	if (packet->fragment == FRAGMENT_LATER && !fragment_recall(packet))
		return VERDICT_DROP_FRAGMENT;
	if (!has_ports(packet->protocol) || !tunnel_find_back(skb, found, query, packet, node))
		return VERDICT_DROP_TUNNEL_STRAY;
	flow = found_flow(found);
	if (!flow)
		return VERDICT_DROP_TUNNEL_STRAY;
	fragment_remember(packet);
	reply_note(flow, flow, packet);
	if (settings)
		flow_count_received(settings, found->at, found->word, skb->len);
	count_from_backend(flow->backend, skb->len);
	return VERDICT_CONTINUE;
}

/* A client's packet that the backend's node sent back, as it does not know the backend. */

/* The connection went to that node, which has not answered it, or goes by SNAT already since another packet of it came back. */
static __always_inline bool tunnel_may_turn(const struct flow *flow, __u16 node)
{
	const struct backend *backend = flow_backend(flow);

	if (!backend || backend->node != node)
		return false;
	return flow->flags & FLOW_SNAT || (flow->flags & FLOW_CARRY && !(flow->seen & SEEN_REPLY));
}

/* VERDICT_CONTINUE: the slow path goes on with it, as if it came from the client: by SNAT, to the same backend if that serves. */
static __always_inline enum verdict tunnel_turn(struct __sk_buff *skb, struct packet *packet, struct found *found,
						struct flow_query *query, __u16 node)
{
	struct flow *flow;

	packet->hook = HOOK_FROM_NET;
	if (parse_full(skb, packet) != VERDICT_CONTINUE || packet->malformed)
		return VERDICT_DROP_TUNNEL_MALFORMED;
	if (!has_ports(packet->protocol) || packet->fragment != FRAGMENT_NONE || !opens_connection(packet) ||
	    !forward_find(skb, found, packet, query) || !(found->usable | found->lost))
		return VERDICT_DROP_TUNNEL_STRAY;
	flow = found_flow(found);
	if (!flow || !tunnel_may_turn(flow, node) || flow_word(flow) != found->word)
		return VERDICT_DROP_TUNNEL_STRAY;
	handed(skb)->slow.lost = LOST_WAY;
	if (flow->flags & FLOW_CARRY) {
		handed(skb)->slow.backend = flow->backend;
		handed(skb)->slow.tried = flow_tried(flow);
	}
	return VERDICT_CONTINUE;
}

/* An error about either. */

/* It goes on to a backend of this node, about its answer, or by the program route to a client that came by this node. */
static __always_inline struct step tunnel_error(struct __sk_buff *skb, struct icmp *icmp,
						const struct tunnel_packet *in)
{
	const struct settings *settings = settings_get();
	struct found found = {};
	__u8 type = 0;

	if (!settings || icmp_parse(skb, icmp, &type) != VERDICT_CONTINUE || !is_icmp_error(&icmp->outer, type) ||
	    !quote_parse(skb, icmp))
		return step_finish(VERDICT_DROP_TUNNEL_MALFORMED);
	if (in->kind == TUNNEL_REPLY) {
		if (!tunnel_find_back(skb, &found, &icmp->query, &icmp->answer, in->node))
			return step_finish(VERDICT_DROP_TUNNEL_STRAY);
		return (struct step){ NEXT_ROUTE, VERDICT_TRANSLATE_ICMP };
	}
	if (!icmp_find_forward(skb, icmp, settings) || icmp->match.flow.flags & ~(FLOW_CARRIED | FLOW_DSR | FLOW_ALIAS))
		return step_finish(VERDICT_DROP_TUNNEL_STRAY);
	if (!tunnel_brought(&icmp->match.flow, in->node) && !tunnel_is_heard(in->node))
		return step_finish(VERDICT_DROP_TUNNEL_UNHEARD);
	return icmp_translate(skb, icmp, HOOK_FROM_NET);
}
