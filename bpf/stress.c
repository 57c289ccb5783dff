// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Wrapper for tests/packet: runs the programs over packets of many flows as fast as they go, on several processors at once,
 * and looks at each packet that they leave. BPF_PROG_TEST_RUN hands a repeated packet on as the last run left it: each run
 * first judges that, then makes another packet of it. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/types.h"

#define FRAME_WORDS 12
#define SAMPLES     1024 /* a power of two */

#define FRAME_ROOM  16 /* a power of two, for the verifier */
#define CONNECTIONS 256

/* A packet, and what it is when it was translated. One that was not translated stays as it is. */
struct sample {
	__u64 before[FRAME_WORDS];
	__u64 after[FRAME_WORDS];
	__u32 hook;       /* enum hook: the program that it is for */
	__u16 port_at;    /* offset of the port that the server knows, in a packet of its flow; 0: it is the client's */
	__u16 check_at;   /* of the checksum over it */
	__u16 connection; /* number */
	__u16 port;       /* of the client, as in the packet */
	__u32 pad;
};

struct tally {
	__u64 translated;
	__u64 moved; /* of these, from another port than the client's */
	__u64 back;  /* of these, answers to such a port */
	__u64 kept;
	__u64 wrong;
	__u64 seen[FRAME_WORDS]; /* the last wrong packet, */
	__u32 wrong_sample;      /* and the one that it was made of */
	__u32 sample;            /* being run */
	__u32 asked;             /* port of the answer that is being run, 0: the client's */
	__u32 pad;
	__u64 sent[FRAME_ROOM]; /* the packet as it went in */
	__u64 came[FRAME_ROOM]; /* and as it came out */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct sample);
	__uint(max_entries, SAMPLES);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct tally);
	__uint(max_entries, 1);
} tallies SEC(".maps");

/* The port that a connection had last, 0: its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, CONNECTIONS);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 2);
} hooks SEC(".maps");

static __always_inline __u64 difference(const __u64 *words, const __u64 *others)
{
	__u64 different = 0;

#pragma unroll
	for (int i = 0; i < FRAME_WORDS; i++)
		different |= words[i] ^ others[i];
	return different;
}

static __always_inline void copy(__u64 *to, const __u64 *from)
{
#pragma unroll
	for (int i = 0; i < FRAME_WORDS; i++)
		to[i] = from[i];
}

/* Sixteen bits of a frame. */
static __always_inline __u32 half(const __u64 *frame, __u32 at)
{
	return frame[at / 8 & (FRAME_ROOM - 1)] >> (at % 8 * 8) & 0xffff;
}

static __always_inline void put_half(__u64 *frame, __u32 at, __u32 value)
{
	__u64 *word = &frame[at / 8 & (FRAME_ROOM - 1)];

	*word = (*word & ~(0xffffULL << (at % 8 * 8))) | (__u64)value << (at % 8 * 8);
}

/* The checksum that follows when one half becomes another (RFC 1624). */
static __always_inline __u32 sum_after(__u32 sum, __u32 from, __u32 to)
{
	__u32 x = (~sum & 0xffff) + (~from & 0xffff) + to;

	x = (x & 0xffff) + (x >> 16);
	x = (x & 0xffff) + (x >> 16);
	return ~x & 0xffff;
}

/* Gives a frame another port, and the checksum that follows. */
static __always_inline void put_port(__u64 *frame, const struct sample *sample, __u32 port)
{
	__u32 sum = sum_after(half(frame, sample->check_at), half(frame, sample->port_at), port);

	put_half(frame, sample->check_at, sum ? sum : 0xffff);
	put_half(frame, sample->port_at, port);
}

/* The packet in came is what it should be but for its source port, and for the checksum, which is right as well. */
static __always_inline bool moved(struct tally *tally, const struct sample *sample)
{
	__u32 port = half(tally->came, sample->port_at);
	__u32 connection = sample->connection;
	__u32 *last = bpf_map_lookup_elem(&ports, &connection);

	if (!sample->port_at || sample->hook != HOOK_FROM_POD || !last)
		return false;
	put_port(tally->came, sample, sample->port);
	if (difference(tally->came, sample->after))
		return false;
	*last = port;
	return true;
}

/* The packet came from the client's own port. */
static __always_inline void stays(const struct sample *sample)
{
	__u32 connection = sample->connection;
	__u32 *last = bpf_map_lookup_elem(&ports, &connection);

	if (last && sample->hook == HOOK_FROM_POD)
		*last = 0;
}

/* A run's first packet is of no sample: its source address begins so. A run that a signal interrupts begins anew with it. */
static __always_inline bool starts(const __u64 *words)
{
	return words[0] >> 48 == 0xffff;
}

static __always_inline void judge(struct tally *tally, const __u64 *words)
{
	__u32 last = tally->sample;
	const struct sample *sample = bpf_map_lookup_elem(&samples, &last);

	if (!sample)
		return;
	copy(tally->came, words);
	if (!difference(words, sample->after)) {
		tally->translated++;
		tally->back += !!tally->asked;
		stays(sample);
	} else if (!difference(words, tally->sent)) {
		tally->kept++;
	} else if (moved(tally, sample)) {
		tally->translated++;
		tally->moved++;
	} else {
		tally->wrong++;
		tally->wrong_sample = last;
		copy(tally->seen, words);
	}
}

/* Makes the packet of a sample; an answer goes to the port that the connection had last. */
static __always_inline void make(struct tally *tally, const struct sample *sample)
{
	__u32 connection = sample->connection;
	const __u32 *port = bpf_map_lookup_elem(&ports, &connection);

	copy(tally->sent, sample->before);
	tally->asked = 0;
	if (!sample->port_at || sample->hook == HOOK_FROM_POD || !port || !*port)
		return;
	tally->asked = *port;
	put_port(tally->sent, sample, *port);
}

SEC("tc")
int crowd(struct __sk_buff *skb)
{
	__u64 *words = (void *)(long)skb->data;
	__u32 next = bpf_get_prandom_u32() & (SAMPLES - 1);
	const struct sample *sample = bpf_map_lookup_elem(&samples, &next);
	__u32 zero = 0;
	struct tally *tally = bpf_map_lookup_elem(&tallies, &zero);

	if (!sample || !tally || (void *)(words + FRAME_WORDS) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	if (!starts(words))
		judge(tally, words);
	tally->sample = next;
	make(tally, sample);
	copy(words, tally->sent);
	bpf_tail_call(skb, &hooks, sample->hook);
	return TC_ACT_SHOT;
}

char __license[] SEC("license") = "Dual BSD/GPL";
