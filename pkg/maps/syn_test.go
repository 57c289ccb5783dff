// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"math"
	"testing"
)

// bucketOf is syn_bucket of bpf/lib/health.h.
func bucketOf(microseconds uint64) int {
	rest := microseconds / synLeast
	if rest == 0 {
		return 0
	}
	exponent := 63 - int(leadingZeros(rest))
	return min(1+exponent*4+int(microseconds*4/synLeast>>exponent&3), len(SYNTimes{}.buckets)-1)
}

func leadingZeros(n uint64) (zeros int) {
	for ; n>>63 == 0; n <<= 1 {
		zeros++
	}
	return zeros
}

func TestBucketsOfSYNTimesBeginWhereTheProgramsTurn(t *testing.T) {
	for bucket := range (SYNTimes{}).buckets {
		from := uint64(synFrom(bucket))
		if got := bucketOf(from); got != bucket {
			t.Errorf("%d us are in bucket %d, want %d", from, got, bucket)
		}
		if got := bucketOf(uint64(synFrom(bucket+1)) - 1); got != bucket {
			t.Errorf("%d us are in bucket %d, want %d", uint64(synFrom(bucket+1))-1, got, bucket)
		}
	}
}

func TestSYNTimesHaveTheirQuantiles(t *testing.T) {
	var times SYNTimes
	if (*SYNTimes)(nil).Microseconds(0.5) != nil || times.Microseconds(0.99) != nil {
		t.Error("there is a time where none was measured")
	}
	for us := uint64(100); us <= 10_000; us++ { // each once
		times.buckets[bucketOf(us)]++
	}
	for share, want := range map[float64]float64{0.01: 199, 0.5: 5050, 0.99: 9901} {
		if got := *times.Microseconds(share); math.Abs(got-want) > want/8 {
			t.Errorf("%v of them took %v us, want about %v", share, got, want)
		}
	}
	var slow SYNTimes
	slow.buckets[bucketOf(3_000_000)]++
	if got := *slow.Microseconds(0.5); got < 786_432 {
		t.Errorf("what was sent again took %v us", got)
	}
	later := times
	later.buckets[3] += 2
	if came := later.since(&times); came.count() != 2 || times.since(&times) != nil {
		t.Errorf("%d came since", came.count())
	}
}

// A meter tells the times of SYNs that were answered between two looks, and forgets those of an id's endpoint before.
func TestAMeterTellsSYNTimes(t *testing.T) {
	c := newCounting(t)
	answered := func(us uint64, times uint32) { *c.store.syn.word(2, bucketOf(us)) += times }
	answered(100, 50)
	c.flow(0, 1, 2, "10.244.1.7", seenEstablished)
	if first := c.look(); first.Ports[0].SYN != nil {
		t.Errorf("the first look tells %d", first.Ports[0].SYN.count())
	}
	answered(5000, 3)
	g := c.look()
	for _, got := range []*SYNTimes{g.Ports[0].SYN, g.Backends[0].SYN} {
		if got == nil || got.count() != 3 || *got.Microseconds(0.99) < 4096 {
			t.Errorf("got %+v, want 3 of about 5 ms", got)
		}
	}
	if g := c.look(); g.Ports[0].SYN != nil {
		t.Errorf("nothing came, and %d are told", g.Ports[0].SYN.count())
	}
	c.store.forgetAnswers(2)
	if times := c.store.synTimes(2); times.count() != 0 {
		t.Errorf("%d are left", times.count())
	}
}
