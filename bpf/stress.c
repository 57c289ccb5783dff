// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Wrapper for tests/packet: runs the programs over packets of many flows as fast as they go, on several processors at once,
 * and looks at each packet that they leave. BPF_PROG_TEST_RUN hands a repeated packet on as the last run left it: each run
 * first judges that, then makes another packet of it. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/types.h"

#define FRAME_WORDS 12
#define SAMPLES     256 /* a power of two */

/* A packet, and what it is when it was translated. One that was not translated stays as it is. */
struct sample {
	__u64 before[FRAME_WORDS];
	__u64 after[FRAME_WORDS];
	__u32 hook; /* enum hook: the program that it is for */
	__u32 pad;
};

struct tally {
	__u64 translated;
	__u64 kept;
	__u64 wrong;
	__u64 seen[FRAME_WORDS]; /* the last wrong packet, */
	__u32 wrong_sample;      /* and the one that it was made of */
	__u32 sample;            /* being run */
	__u32 started;
	__u32 pad;
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

static __always_inline void judge(struct tally *tally, const __u64 *words)
{
	__u32 last = tally->sample;
	const struct sample *sample = bpf_map_lookup_elem(&samples, &last);

	if (!sample)
		return;
	if (!difference(words, sample->after)) {
		tally->translated++;
	} else if (!difference(words, sample->before)) {
		tally->kept++;
	} else {
		tally->wrong++;
		tally->wrong_sample = last;
		copy(tally->seen, words);
	}
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
	if (tally->started)
		judge(tally, words);
	tally->started = 1;
	tally->sample = next;
	copy(words, sample->before);
	bpf_tail_call(skb, &hooks, sample->hook);
	return TC_ACT_SHOT;
}

char __license[] SEC("license") = "Dual BSD/GPL";
