// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// slotsOf are the ids in the one run that service number 1 has in use.
func (b *bench) slotsOf(t *testing.T) (ids []uint32) {
	t.Helper()
	var used []*run
	for _, p := range b.services[serviceNumber(1)].ports {
		for _, r := range p.runs {
			if r.refs > 0 {
				used = append(used, r)
			}
		}
	}
	if len(used) != 1 {
		t.Fatalf("%d runs", len(used))
	}
	for i := range used[0].count {
		ids = append(ids, b.store.slots.load(used[0].first+i, 0))
	}
	return ids
}

// A tier of turns has a slot for each backend, in one order; a restart knows it from Maglev's, writes nothing and finds nothing to mend; and
// when the Service wants Maglev's again, it has that.
func TestATierOfTurnsHasASlotForEachBackend(t *testing.T) {
	store := memoryStore(tinySizes())
	b := newBench(t, store)
	d := made(1, active(1, 2, 4)...)
	d.Balancing = lb.BalanceRoundRobin
	b.apply(t, d)
	slots := b.slotsOf(t)
	if len(slots) != 3 || !slices.IsSorted(slots) || len(slices.Compact(slices.Clone(slots))) != 3 {
		t.Fatalf("slots %v", slots)
	}
	b = newBench(t, store)
	if stats := b.apply(t, d); stats.Slots+stats.Records > 0 {
		t.Errorf("a restart wrote %+v", stats)
	}
	b.later()
	b.Reclaim(b.time)
	if drift, err := b.Audit(true); err != nil || len(drift) > 0 {
		t.Errorf("drift %v (%v)", drift, err)
	}
	if again := b.slotsOf(t); !slices.Equal(again, slots) {
		t.Errorf("slots %v, were %v", again, slots)
	}
	d.Balancing = ""
	b.apply(t, d)
	if slots := b.slotsOf(t); len(slots) != b.tableSize(3) {
		t.Errorf("%d slots of Maglev's", len(slots))
	}
}

// A Service may go while no agent runs: the one that starts finds it in the tables alone, with what it asked for.
func TestAServiceThatWentWhileNoAgentRanKeepsItsLostConnections(t *testing.T) {
	for _, keep := range []bool{false, true} {
		store := memoryStore(tinySizes())
		b := newBench(t, store)
		d := made(1, active(1)...)
		d.KeepLost = keep
		b.apply(t, d)
		id := b.suspectOf(t, 1).ID
		b = newBench(t, store)
		if _, err := b.Remove(d.Service); err != nil {
			t.Fatal(err)
		}
		want := map[bool]uint8{false: stateGone, true: stateGoneKept}[keep]
		if got := read[backendRow](b.store.backends, id).State; got != want {
			t.Errorf("keep %v: state %d, want %d", keep, got, want)
		}
	}
}
