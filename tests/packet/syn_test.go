// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"math"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// synTimes adds up what was measured of all backends.
func (r *rig) synTimes() (sum bpf.NearlbSynTimes, total uint32) {
	r.Helper()
	for id := range r.objects.SynTimes.MaxEntries() {
		var times bpf.NearlbSynTimes
		check(r, r.objects.SynTimes.Lookup(id, &times))
		for i, n := range times.Buckets {
			sum.Buckets[i] += n
			total += n
		}
	}
	return sum, total
}

// sentBefore makes the SYNs that are remembered so much older.
func (r *rig) sentBefore(d time.Duration) {
	r.Helper()
	for i := range r.objects.SynSent.MaxEntries() {
		var sent bpf.NearlbSynSent
		check(r, r.objects.SynSent.Lookup(i, &sent))
		if sent.Flow != 0 {
			sent.Time -= uint32(d.Microseconds())
			check(r, r.objects.SynSent.Put(i, &sent))
		}
	}
}

// spendSYNs has every processor have timed as many SYNs as it may, so many jiffies ago.
func (r *rig) spendSYNs(ago uint32) {
	r.Helper()
	var budgets []bpf.NearlbSynBudget
	check(r, r.objects.SynBudgets.Lookup(uint32(0), &budgets))
	for i := range budgets {
		budgets[i].Since -= ago
		budgets[i].Timed = math.MaxUint32
	}
	check(r, r.objects.SynBudgets.Put(uint32(0), budgets))
}

// A server's first SYN-ACK ends the wait that the client's SYN began, at every door, whether or not the flow has a second entry. What comes
// later, and a reset, is no such answer.
func TestHowLongAServerTakesToAnswerASYNIsCountedOnce(t *testing.T) {
	forEachDoor(t, bpf.Options{Sizes: bpf.Sizes{Backends: 64}}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		before, already := r.synTimes()
		counted := func(step string, want uint32) {
			t.Helper()
			if _, now := r.synTimes(); now-already != want {
				t.Fatalf("%s: %d connections were measured, want %d", step, now-already, want)
			}
		}
		c := r.open(w, 41000)
		counted("after the SYN", 0)
		c.again(r, retryAfter/4, "translate_established")
		const took = 40 * time.Millisecond
		r.sentBefore(took)
		c.connects(r)
		counted("after the SYN-ACK", 1)
		after, _ := r.synTimes()
		for i := range after.Buckets {
			// four buckets for each doubling from 16 microseconds on
			if least := 16 * time.Microsecond << (i / 4); i < len(after.Buckets)-1 && after.Buckets[i] != before.Buckets[i] && 2*least < took {
				t.Errorf("an answer after %v is in bucket %d, below %v", took, i, 2*least)
			}
		}
		r.open(w, 41001).refused(r)
		counted("after a reset", 1)
		r.evict()
	}, lb.TCP)
}

// Between two SYNs of one place, the later one is measured, and the other one is not.
func TestAnAnswerWhoseSYNWasForgottenIsNotCounted(t *testing.T) {
	forEachDoor(t, bpf.Options{Sizes: bpf.Sizes{Backends: 64}}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		_, before := r.synTimes()
		c := r.open(w, 41000)
		for i := range r.objects.SynSent.MaxEntries() {
			check(r, r.objects.SynSent.Put(i, &bpf.NearlbSynSent{Flow: 2, Time: 1}))
		}
		c.connects(r)
		if _, now := r.synTimes(); now != before {
			t.Errorf("%d answers were counted whose SYN another flow's took the place of", now-before)
		}
		r.evict()
	}, lb.TCP)
}

// A processor that has timed its share of SYNs leaves the others out until the next sixteenth of a second.
func TestOfManySYNsAtOnceAPartIsTimed(t *testing.T) {
	forEachDoor(t, bpf.Options{Sizes: bpf.Sizes{Backends: 64}}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		port := uint16(41000)
		timed := func() bool {
			_, before := r.synTimes()
			r.open(w, port).connects(r)
			port++
			_, after := r.synTimes()
			return after != before
		}
		for tries := 1; ; tries++ {
			timed() // a sixteenth begins, or goes on
			if r.spendSYNs(0); !timed() {
				break
			}
			if tries == 100 {
				t.Fatalf("%d times a SYN was timed that was one too many", tries)
			}
		}
		if r.spendSYNs(math.MaxInt32); !timed() {
			t.Error("a SYN is not timed when the sixteenth of a second of others is over")
		}
		r.evict()
	}, lb.TCP)
}
