/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Questions for names that a pod asks by UDP of this node's responder, and that the table answers has the answer to: A and AAAA of names
 * of the cluster, and that there is no such record or name. The question becomes its answer, byte for byte what the responder says
 * (pkg/dns), but for the order of addresses that are equally near. Whatever is out of the ordinary is asked of the responder. */
#pragma once

#include "answer.h"
#include "conntrack.h"
#include "policy.h"

#define DNS_PORT         53
#define DNS_HEADER       12
#define DNS_NAME_MAX     255 /* bytes on the wire (RFC 1035 3.1) */
#define DNS_LABEL_MAX    63
#define DNS_OPTIONS      11 /* bytes of an OPT record without options (RFC 6891 6.1.2) */
#define DNS_QUERY_MIN    (DNS_HEADER + 1 + 4)
#define DNS_QUERY_MAX    (DNS_HEADER + DNS_NAME_MAX + 4 + DNS_OPTIONS)
#define DNS_PLAIN_MAX    512  /* bytes of an answer that every client takes (RFC 1035 4.2.1) */
#define DNS_ANSWER_MAX   1200 /* larger ones are left to the responder: they may not fit into a frame */
#define DNS_RECORD       10   /* bytes of a record behind its name */
#define DNS_SERVER_LABEL 7    /* bytes of "ns.dns" in front of a zone */
#define DNS_MAIL_LABEL   11   /* and of "hostmaster" */
#define DNS_SOA_NUMBERS  20
#define DNS_SOA_LONGEST  300 /* seconds of a SOA record's own lifetime, as pkg/dns has it */

#define DNS_CLASS_IN  1
#define DNS_TYPE_A    1
#define DNS_TYPE_SOA  6
#define DNS_TYPE_AAAA 28
#define DNS_TYPE_OPT  41

#define DNS_FLAG_RESPONSE  0x8000
#define DNS_FLAG_OWN_ZONE  0x0400 /* AA */
#define DNS_FLAG_RECURSE   0x0100 /* RD */
#define DNS_FLAG_AUTHENTIC 0x0020 /* AD */
#define DNS_FLAG_UNCHECKED 0x0010 /* CD */
#define DNS_NAME_ERROR     3
#define DNS_EDNS_DO        0x8000

enum dns_result {
	DNS_ASK = 0, /* the responder */
	DNS_FOUND,   /* the name exists; perhaps it has no record of the type */
	DNS_MISSING, /* there is no such name */
};

struct dns_header {
	__be16 id;
	__be16 flags;
	__be16 questions;
	__be16 answers;
	__be16 authorities;
	__be16 additional;
};

/* What follows a record's name. It has no alignment, so it is written by halves. */
struct dns_record {
	__be16 type;
	__be16 class;
	__be16 ttl[2];
	__be16 length;
};
_Static_assert(sizeof(struct dns_record) == DNS_RECORD, "as on the wire");

static __always_inline struct dns_work *dns_room(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&dns_works, &zero);
}

static __always_inline const struct answer_settings *dns_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&answer_config, &zero);
}

/* The question's bytes from an offset on, which the verifier is shown to be in bounds. */
static __always_inline void *dns_asked(struct dns_work *work, __u32 offset)
{
	return work->question + (offset & (DNS_QUESTION_ROOM - 1));
}

/* The same of the datagram that answers it. */
static __always_inline void *dns_told(struct dns_work *work, __u32 offset)
{
	return work->datagram + (offset & (DNS_DATAGRAM_ROOM - 1));
}

static __always_inline __u16 dns_half(struct dns_work *work, __u32 offset)
{
	return bpf_ntohs(*(__be16 *)dns_asked(work, offset));
}

/* An OPT record without options, of EDNS version 0, ends the message. */
static __always_inline bool dns_parse_options(struct dns_work *work, __u32 at)
{
	__u8 *root = dns_asked(work, at);

	if (*root || dns_half(work, at + 1) != DNS_TYPE_OPT || dns_half(work, at + 5) ||
	    dns_half(work, at + 7) & ~DNS_EDNS_DO || dns_half(work, at + 9))
		return false;
	work->limit = dns_half(work, at + 3);
	if (work->limit < DNS_PLAIN_MAX)
		work->limit = DNS_PLAIN_MAX;
	if (work->limit > DNS_ANSWER_MAX)
		work->limit = DNS_ANSWER_MAX;
	work->options = DNS_OPTIONS;
	return true;
}

/* Takes the name apart. Its length, 0: it is no plain one. */
static __always_inline __u32 dns_parse_name(struct dns_work *work)
{
	__u32 at = DNS_HEADER;
	__u32 i;

	for (i = 0; i < DNS_LABELS; i++) {
		__u8 length = *(__u8 *)dns_asked(work, at);

		if (!length)
			break;
		if (length > DNS_LABEL_MAX || at > DNS_HEADER + DNS_NAME_MAX)
			return 0;
		work->starts[i] = at - DNS_HEADER;
		at += length + 1;
	}
	if (i == DNS_LABELS || at + 1 > DNS_HEADER + DNS_NAME_MAX)
		return 0;
	work->labels = i;
	return at + 1 - DNS_HEADER;
}

/* Not 0: the message, which has size bytes, is one question for A or AAAA and nothing else. A function of its own so that the verifier goes
 * through it once. */
__noinline int dns_parse(__u32 size)
{
	struct dns_work *work = dns_room();
	struct dns_header *header;
	__u32 at;

	if (!work)
		return false;
	header = (struct dns_header *)work->question;
	if (bpf_ntohs(header->flags) & ~(DNS_FLAG_RECURSE | DNS_FLAG_AUTHENTIC | DNS_FLAG_UNCHECKED) ||
	    header->questions != bpf_htons(1) || header->answers || header->authorities ||
	    bpf_ntohs(header->additional) > 1)
		return false;
	work->name = dns_parse_name(work);
	at = DNS_HEADER + work->name;
	work->type = dns_half(work, at);
	if (!work->name || dns_half(work, at + 2) != DNS_CLASS_IN ||
	    (work->type != DNS_TYPE_A && work->type != DNS_TYPE_AAAA))
		return false;
	work->limit = DNS_PLAIN_MAX;
	work->options = 0;
	if (!header->additional)
		return at + 4 == size;
	return at + 4 + DNS_OPTIONS == size && dns_parse_options(work, at + 4);
}

/* Capital letters of eight bytes become small ones (RFC 4343 3). */
static __always_inline __u64 dns_lower(__u64 word)
{
	const __u64 ones = 0x0101010101010101ULL, high = 0x80 * ones;
	__u64 low = word & ~high;
	__u64 from_a = low + (0x80 - 'A') * ones;
	__u64 past_z = low + (0x80 - 'Z' - 1) * ones;

	return word | ((from_a & ~past_z & ~word & high) >> 2);
}

/* pkg/maps has it again in Go. */
static __always_inline __u64 dns_mix(__u64 sum, __u64 word)
{
	sum = (sum ^ word) * HASH_A;
	return sum ^ sum >> 32;
}

/* Copies an element, and tells whether it is whole, and of the key whose sum is given: the kernel may hand it to another one while it is
 * read. */
static __always_inline bool dns_read(struct answer *found, const struct answer *live, __u64 sum)
{
	__u64 head = *(volatile const __u64 *)&live->number;
	__u64 tiers = *(volatile const __u64 *)live->tiers;

	__builtin_memcpy(&found->number, &head, sizeof(head));
	__builtin_memcpy(found->tiers, &tiers, sizeof(tiers));
	sum = dns_mix(dns_mix(sum, head), tiers);
	for (__u32 i = 0; i < ANSWER_ADDRESSES; i++) {
		if (i >= (__u32)found->count4 + found->count6)
			break;
		found->addresses[i].longs[0] = *(volatile const __u64 *)&live->addresses[i].longs[0];
		found->addresses[i].longs[1] = *(volatile const __u64 *)&live->addresses[i].longs[1];
		sum = dns_mix(dns_mix(sum, found->addresses[i].longs[0]), found->addresses[i].longs[1]);
	}
	return sum == *(volatile const __u64 *)&live->check;
}

/* Looks for the label that starts at an offset of the question below the name of number parent: enum dns_result, and found has it. A function
 * of its own so that the verifier goes through it once. */
__noinline int dns_step(__u32 parent, __u32 at)
{
	struct dns_work *work = dns_room();
	struct answer_key key = {};
	const struct answer *live;
	__u32 length;
	__u64 sum;

	if (!work)
		return DNS_ASK;
	length = *(__u8 *)dns_asked(work, at);
	key.parent = parent;
	key.length = length;
	sum = dns_mix(0, (__u64)length << 32 | parent);
	for (__u32 i = 0; i < ANSWER_LABEL_WORDS; i++) {
		__u64 word;

		if (i * 8 >= length)
			break;
		word = *(__u64 *)(dns_asked(work, at + 1) + i * 8);
		if (length - i * 8 < 8)
			word &= (1ULL << (length - i * 8) * 8) - 1;
		key.label[i] = dns_lower(word);
		sum = dns_mix(sum, key.label[i]);
	}
	live = bpf_map_lookup_elem(&answers, &key);
	if (!live)
		return DNS_MISSING;
	return dns_read(&work->found, live, sum) ? DNS_FOUND : DNS_ASK;
}

/* Follows the name's labels from the last one on: enum dns_result. A function of its own so that the verifier goes through it once. */
__noinline int dns_find(void)
{
	struct dns_work *work = dns_room();
	__u8 flags = ANSWER_ASK_BELOW;
	__u32 parent = 0;

	if (!work)
		return DNS_ASK;
	for (__u32 i = 0; i < DNS_LABELS; i++) {
		__u32 at, left = work->labels - i;
		int result;

		if (!left)
			break;
		at = DNS_HEADER + work->starts[(left - 1) & (DNS_LABELS - 1)];
		result = dns_step(parent, at);
		if (result == DNS_MISSING)
			return flags & ANSWER_ASK_BELOW ? DNS_ASK : DNS_MISSING;
		if (result != DNS_FOUND)
			return DNS_ASK;
		parent = work->found.number;
		flags = work->found.flags;
		if (flags & ANSWER_ZONE)
			work->zone = at;
	}
	if (!parent || flags & (work->type == DNS_TYPE_A ? ANSWER_ASK_A : ANSWER_ASK_AAAA))
		return DNS_ASK;
	return flags & ANSWER_MISSING ? DNS_MISSING : DNS_FOUND;
}

/* Copies size bytes of the question into the datagram, and some more, over which the next ones are written. Returns the offset behind them.
 * A function of its own so that the verifier goes through it once. */
__noinline int dns_copy(__u32 to, __u32 from, __u32 size)
{
	struct dns_work *work = dns_room();

	if (!work)
		return 0;
	for (__u32 i = 0; i < (DNS_NAME_MAX + 4 + 7) / 8; i++) {
		if (i * 8 >= size)
			break;
		*(__u64 *)(dns_told(work, to) + i * 8) = *(__u64 *)(dns_asked(work, from) + i * 8);
	}
	return to + size;
}

static __always_inline void dns_put(struct dns_work *work, __u32 to, __u32 value)
{
	__be16 *halves = dns_told(work, to);

	halves[0] = bpf_htons(value >> 16);
	halves[1] = bpf_htons(value);
}

/* Writes what follows a record's name. */
static __always_inline __u32 dns_head(struct dns_work *work, __u32 to, __u16 type, __u32 ttl, __u16 length)
{
	struct dns_record *record = dns_told(work, to);

	record->type = bpf_htons(type);
	record->class = bpf_htons(DNS_CLASS_IN);
	record->ttl[0] = bpf_htons(ttl >> 16);
	record->ttl[1] = bpf_htons(ttl);
	record->length = bpf_htons(length);
	return to + sizeof(*record);
}

/* The address of a tier's number-th record where any of them comes first. */
static __always_inline __u32 dns_turn(const struct dns_work *work, __u32 number)
{
	__u8 tier = work->found.tiers[number & (ANSWER_ADDRESSES - 1)];
	__u32 first = tier >> 4, count = tier & 15;

	return count ? first + (number - first + work->turn) % count : number;
}

/* Writes the record of an address; number: of those that were found. Returns the offset behind it. A function of its own so that the verifier
 * goes through it once. */
__noinline int dns_record(__u32 to, __u32 number, __u32 ttl)
{
	struct dns_work *work = dns_room();
	const struct address *address;
	__be32 *data;

	if (!work)
		return 0;
	to = dns_copy(to, DNS_HEADER, work->name);
	to = dns_head(work, to, work->type, ttl, work->type == DNS_TYPE_A ? 4 : 16);
	address = &work->found.addresses[dns_turn(work, number) & (ANSWER_ADDRESSES - 1)];
	data = dns_told(work, to);
	if (work->type == DNS_TYPE_A) {
		data[0] = address->words[3];
		return to + 4;
	}
	for (int i = 0; i < 4; i++)
		data[i] = address->words[i];
	return to + 16;
}

/* Writes the zone's SOA record: who denies says by it for how long (RFC 2308 3). Returns the offset behind it. A function of its own so that
 * the verifier goes through it once. */
__noinline int dns_authority(__u32 to)
{
	const struct answer_settings *settings = dns_settings();
	struct dns_work *work = dns_room();
	__u32 zone, serial;
	__u64 *label;

	if (!work || !settings)
		return 0;
	zone = DNS_HEADER + work->name - work->zone;
	serial = *(volatile const __u32 *)&settings->serial;
	to = dns_copy(to, work->zone, zone);
	to = dns_head(work, to, DNS_TYPE_SOA, settings->ttl < DNS_SOA_LONGEST ? settings->ttl : DNS_SOA_LONGEST,
		      DNS_SERVER_LABEL + zone + DNS_MAIL_LABEL + zone + DNS_SOA_NUMBERS);
	label = dns_told(work, to);
	__builtin_memcpy(label, "\2ns\3dns", 8);
	to = dns_copy(to + DNS_SERVER_LABEL, work->zone, zone);
	label = dns_told(work, to);
	__builtin_memcpy(label, "\12hostmaster\0\0\0\0", 16);
	to = dns_copy(to + DNS_MAIL_LABEL, work->zone, zone);
	dns_put(work, to, serial);
	dns_put(work, to + 4, settings->refresh);
	dns_put(work, to + 8, settings->retry);
	dns_put(work, to + 12, settings->expire);
	dns_put(work, to + 16, settings->ttl);
	return to + DNS_SOA_NUMBERS;
}

/* Repeats what the client said of itself, as the responder does. */
static __always_inline __u32 dns_options(struct dns_work *work, __u32 to)
{
	if (!work->options)
		return to;
	return dns_copy(to, DNS_HEADER + work->name + 4, DNS_OPTIONS);
}

/* How many addresses of the type were found, and which is the first. */
static __always_inline __u32 dns_count(const struct dns_work *work, __u32 *first)
{
	*first = work->type == DNS_TYPE_A ? 0 : work->found.count4;
	return work->type == DNS_TYPE_A ? work->found.count4 : work->found.count6;
}

/* Bytes of the message that answers with count records, 0: that denies. */
static __always_inline __u32 dns_size(const struct dns_work *work, __u32 count)
{
	__u32 size = DNS_HEADER + work->name + 4 + work->options;
	__u32 zone = DNS_HEADER + work->name - work->zone;

	if (count)
		return size + count * (work->name + DNS_RECORD + (work->type == DNS_TYPE_A ? 4 : 16));
	return size + 3 * zone + DNS_RECORD + DNS_SERVER_LABEL + DNS_MAIL_LABEL + DNS_SOA_NUMBERS;
}

static __always_inline void dns_begin(struct dns_work *work, enum dns_result result, __u32 count)
{
	const struct dns_header *asked = (struct dns_header *)work->question;
	struct dns_header *header = dns_told(work, sizeof(struct udphdr));

	header->id = asked->id;
	header->flags = (asked->flags & bpf_htons(DNS_FLAG_RECURSE | DNS_FLAG_UNCHECKED)) |
			bpf_htons(DNS_FLAG_RESPONSE | DNS_FLAG_OWN_ZONE | (result == DNS_MISSING ? DNS_NAME_ERROR : 0));
	header->questions = bpf_htons(1);
	header->answers = bpf_htons(count);
	header->authorities = bpf_htons(!count);
	header->additional = asked->additional;
}

/* Writes the message behind room for a UDP header. Its size, 0: it does not fit. A function of its own so that the verifier goes through it
 * once. */
__noinline int dns_write(int result)
{
	const struct answer_settings *settings = dns_settings();
	struct dns_work *work = dns_room();
	__u32 first = 0, count, size, to;

	if (!work || !settings)
		return 0;
	count = result == DNS_FOUND ? dns_count(work, &first) : 0;
	size = dns_size(work, count);
	if (count > ANSWER_ADDRESSES || size > work->limit)
		return 0;
	work->turn = bpf_get_prandom_u32();
	dns_begin(work, result, count);
	to = dns_copy(sizeof(struct udphdr) + DNS_HEADER, DNS_HEADER, work->name + 4);
	for (__u32 i = 0; i < ANSWER_ADDRESSES; i++) {
		if (i >= count)
			break;
		to = dns_record(to, first + i, settings->ttl);
	}
	if (!count)
		to = dns_authority(to);
	to = dns_options(work, to);
	dns_put(work, to, 0); /* the checksum is one of whole words */
	return to == sizeof(struct udphdr) + size ? size : 0;
}

#define DNS_SUM_PIECE 512 /* the most that the helper takes before Linux 6.13 */

/* The sum of the first size bytes of the datagram, not folded. A function of its own so that the verifier goes through it once. */
__noinline int dns_sum(__u32 size, __u64 *sum)
{
	struct dns_work *work = dns_room();

	if (!work || !sum)
		return false;
	for (__u32 at = 0; at < DNS_ANSWER_MAX + sizeof(struct udphdr); at += DNS_SUM_PIECE) {
		__u32 left = size - at;
		__s64 part;

		if (at >= size)
			break;
		left = left > DNS_SUM_PIECE ? DNS_SUM_PIECE : (left + 3) & ~3u;
		asm volatile("" : "+r"(left));
		if (left > DNS_SUM_PIECE)
			return false;
		part = bpf_csum_diff(NULL, 0, dns_told(work, at), left, 0);
		if (part < 0)
			return false;
		*sum += (__u32)part;
	}
	return true;
}

/* The checksum of a packet that came with one will be completed by somebody else. The kernel refuses to cut it before that; what is cut off
 * is written anew. */
static __always_inline bool dns_partial(struct __sk_buff *skb, const struct packet *packet)
{
	enum summed summed = packet_summed(skb);

	if (summed == SUMMED_UNKNOWN)
		return bpf_skb_change_tail(skb, packet->l4 + offsetof(struct udphdr, check) + 1, 0) != 0;
	return summed == SUMMED_PARTIAL;
}

static __always_inline bool dns_udp(struct __sk_buff *skb, struct dns_work *work, const struct packet *packet,
				    __u32 length)
{
	struct udphdr *udp = (struct udphdr *)work->datagram;
	__u64 sum = csum_pseudo(packet, IPPROTO_UDP, length);

	udp->source = packet->destination_port;
	udp->dest = packet->source_port;
	udp->len = bpf_htons(length);
	udp->check = 0;
	if (dns_partial(skb, packet)) {
		udp->check = csum_fold(sum);
		return true;
	}
	if (!dns_sum(length, &sum))
		return false;
	udp->check = ~csum_fold(sum);
	if (!udp->check)
		udp->check = 0xffff; /* RFC 768: 0 is none */
	return true;
}

/* The packet becomes the answer, whose message has size bytes. VERDICT_CONTINUE: it is left as it was. */
static __always_inline enum verdict dns_send(struct __sk_buff *skb, struct dns_work *work, const struct packet *packet,
					     __u32 size)
{
	__u32 length = sizeof(struct udphdr) + size;
	__u32 last;

	if (!answer_allowed(skb, packet) || !packet_pull(skb, ETH_HLEN))
		return VERDICT_CONTINUE;
	if (!dns_udp(skb, work, packet, length) || bpf_skb_change_tail(skb, packet->l4 + length, 0))
		return VERDICT_DROP_REWRITE;
	if (!answer_ip(skb, packet, IPPROTO_UDP, length))
		return VERDICT_DROP_REWRITE;
	/* the bounds that a helper wants come last, and as one: the compiler makes one of two, of which old verifiers learn half */
	last = length - 1;
	asm volatile("" : "+r"(last));
	if (last >= DNS_DATAGRAM_ROOM)
		return VERDICT_DROP_REWRITE;
	if (!answer_store(skb, packet->l4, work->datagram, last + 1) || !packet_pull(skb, ETH_HLEN) || !swap_macs(skb))
		return VERDICT_DROP_REWRITE;
	return VERDICT_REJECT_NAME;
}

static __always_inline void dns_count_answer(const struct dns_work *work, enum dns_result result)
{
	__u32 index =
		(work->type == DNS_TYPE_A ? 0 : ANSWER_COUNT_AAAA) + (result == DNS_MISSING ? ANSWER_COUNT_MISSING : 0);
	struct answer_counter *counter = bpf_map_lookup_elem(&answer_counters, &index);

	if (counter)
		counter->questions++;
}

/* Not 0: this node's responder would be asked, which lives and says that the names here are in force. A function of its own for the sake of
 * the stack. */
__noinline int dns_responds(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = settings_get();
	const struct answer_settings *names = dns_settings();
	const struct record *record;
	const struct backend *backend;
	const struct side *side;

	if (!packet || !settings || settings->disabled || !names || !*(volatile const __u32 *)&names->on ||
	    !responder_alive())
		return false;
	record = frontend_of(packet);
	if (!record || record->affinity || record->flags & (RECORD_ADDRESS | RECORD_SOURCE_RANGES))
		return false;
	side = &record->sides[SIDE_INTERNAL];
	if (side->action != ACTION_BALANCE || !side->tiers[0].count)
		return false;
	backend = backend_get(slot_backend(side->tiers[0].first));
	return backend && backend->state == BACKEND_RESPONDER && backend->service == record->service &&
	       leave(skb, packet) == VERDICT_CONTINUE;
}

/* packet: parsed here, whose headers have nothing out of the ordinary. */
static __always_inline bool dns_packet(struct __sk_buff *skb, __u32 start, struct packet *packet)
{
	struct span span = span_of(skb);
	struct headers headers;

	if (is_tagged(skb))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return parse_plain4(&span, start, packet, &headers) && packet->protocol == IPPROTO_UDP;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return parse_plain6(&span, start, packet, &headers) && packet->protocol == IPPROTO_UDP;
	return false;
}

/* Reads the message into work. Its size, 0: it cannot be one for us. */
static __always_inline __u32 dns_load(struct __sk_buff *skb, struct dns_work *work, const struct packet *packet)
{
	__u32 above = packet->l4_length - sizeof(struct udphdr) - DNS_QUERY_MIN;
	__be16 length;

	if (bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct udphdr, len), &length, sizeof(length)) ||
	    bpf_ntohs(length) != packet->l4_length)
		return 0;
	/* the bounds that a helper wants come last */
	asm volatile("" : "+r"(above));
	if (above > DNS_QUERY_MAX - DNS_QUERY_MIN)
		return 0;
	if (bpf_skb_load_bytes(skb, packet->l4 + sizeof(struct udphdr), work->question, above + DNS_QUERY_MIN))
		return 0;
	return above + DNS_QUERY_MIN;
}

/* VERDICT_CONTINUE: the slow path has the question, as it came. */
static __always_inline enum verdict dns_answer(struct __sk_buff *skb, struct packet *packet)
{
	struct dns_work *work = dns_room();
	enum verdict verdict;
	__u32 size;
	int result;

	if (!work || !(link_header ? dns_packet(skb, ETH_HLEN, packet) : dns_packet(skb, 0, packet)))
		return VERDICT_CONTINUE;
	size = dns_load(skb, work, packet);
	if (!size || !dns_parse(size) || !dns_responds(skb, packet))
		return VERDICT_CONTINUE;
	result = dns_find();
	size = result == DNS_ASK ? 0 : dns_write(result);
	if (!size)
		return VERDICT_CONTINUE;
	verdict = dns_send(skb, work, packet, size);
	if (verdict == VERDICT_REJECT_NAME)
		dns_count_answer(work, result);
	return verdict;
}
