// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"math"
	"sync/atomic"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// SYNTimes counts connections by how long their SYN had no answer: struct syn_times of bpf/lib/types.h. Sockets of the node itself are not
// in it: nothing sees their packets.
type SYNTimes struct {
	buckets [len(bpf.NearlbSynTimes{}.Buckets)]uint32
}

// synLeast is SYN_LEAST: in microseconds, what the first bucket is less than.
const synLeast = 16

// synFrom is where a bucket begins, in microseconds; that after the last one is where it is taken to end.
func synFrom(bucket int) float64 {
	if bucket == 0 {
		return 0
	}
	octave, quarter := (bucket-1)/4, (bucket-1)%4
	return synLeast * float64(uint64(1)<<octave) * (1 + float64(quarter)/4)
}

// count is how many connections were measured.
func (t *SYNTimes) count() (n uint64) {
	for _, b := range t.buckets {
		n += uint64(b)
	}
	return n
}

// Told is what rows tell: whole microseconds that half of the connections, and 99 of 100, did not take longer than; nil: none was measured.
func (t *SYNTimes) Told() (p50, p99 *float64) {
	whole := func(p *float64) *float64 {
		if p != nil {
			*p = math.Round(*p)
		}
		return p
	}
	return whole(t.Microseconds(0.5)), whole(t.Microseconds(0.99))
}

func (t *SYNTimes) add(o *SYNTimes) {
	for i, n := range o.buckets {
		t.buckets[i] += n
	}
}

// Microseconds is the time that a share of the connections, 0.5 or 0.99, did not take longer than, to an eighth of it; nil: none was
// measured.
func (t *SYNTimes) Microseconds(share float64) *float64 {
	if t == nil || t.count() == 0 {
		return nil
	}
	rank := share * float64(t.count())
	before := 0.0
	for i, n := range t.buckets {
		if after := before + float64(n); n > 0 && after >= rank {
			from, to := synFrom(i), synFrom(i+1)
			time := from + (to-from)*(rank-before)/float64(n)
			return &time
		} else {
			before = after
		}
	}
	return nil
}

// synTimes reads those of a backend id.
func (s *store) synTimes(id uint32) (t SYNTimes) {
	if id < s.syn.size {
		for i := range t.buckets {
			t.buckets[i] = s.syn.load(id, i)
		}
	}
	return t
}

// forgetAnswers begins anew with an id: another endpoint has it.
func (s *store) forgetAnswers(id uint32) {
	if s.health.in(id, 1) {
		s.health.store(id, wordAnswered, 0)
		s.forgetLoad(id)
	}
	if id >= s.syn.size {
		return
	}
	for i := range (SYNTimes{}).buckets {
		atomic.StoreUint32(s.syn.word(id, i), 0)
	}
}

// Since is what came after an earlier reading; nil: nothing.
func (t *SYNTimes) Since(before *SYNTimes) *SYNTimes {
	if t == nil {
		return nil
	}
	return t.since(before)
}

// since is what came after an earlier reading; the counters wrap.
func (t SYNTimes) since(before *SYNTimes) *SYNTimes {
	if before != nil {
		for i := range t.buckets {
			t.buckets[i] -= before.buckets[i]
		}
	}
	if t == (SYNTimes{}) {
		return nil
	}
	return &t
}
