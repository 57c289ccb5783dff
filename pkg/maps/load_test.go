// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// openFlow puts an established connection to a backend into the table.
func (b *bench) openFlow(place uint32, backend uint32, seen uint32) {
	row := read[backendRow](b.store.backends, backend)
	putFlow(b.store, place, bpf.NearlbFlow{Word: flowLive, Touched: b.store.clock.jiffies(), Protocol: 6, Backend: backend, Generation: row.Generation,
		Service: row.Service, Seen: seen | uint32(bpf.NearlbFlowSeenSEEN_REPLY|bpf.NearlbFlowSeenSEEN_ESTABLISHED)})
}

func (b *bench) recount() {
	for b.Recount() {
	}
}

// F6: counts that are wrong, whatever came about, are right after two walks of the flow table: those of a restart too. A walk alone corrects
// nothing, as connections come and go while it takes its time.
func TestARecountMakesCountsWhatTheFlowTableHas(t *testing.T) {
	store := memoryStore(tinySizes())
	d := made(1, active(1, 2)...)
	d.Balancing = lb.BalanceLeastConnections
	b := newBench(t, store)
	b.piece.sets = 1 // several calls
	b.apply(t, d)
	id := b.suspectOf(t, 1).ID
	for place := range uint32(3) {
		b.openFlow(place, id, 0)
	}
	b.openFlow(3, id, uint32(bpf.NearlbFlowSeenSEEN_RESET))
	b.openFlow(4, id, uint32(bpf.NearlbFlowSeenSEEN_RESET)|seenCounted)
	store.addOpen(id, 1)
	if b.recount(); store.open(id) != 3 {
		t.Errorf("%d connections count, want 3", store.open(id))
	}
	store.addOpen(id, 7)
	if b.recount(); store.open(id) != 10 {
		t.Errorf("%d connections count after one walk, want 10 as before", store.open(id))
	}
	if b.recount(); store.open(id) != 3 {
		t.Errorf("%d connections count after two walks, want 3", store.open(id))
	}
	store.addOpen(id, -5)
	b = newBench(t, store)
	b.apply(t, d)
	b.recount()
	if b.recount(); store.open(id) != 3 {
		t.Errorf("%d connections count after a restart, want 3", store.open(id))
	}
	for _, n := range []struct{ a, b, want int32 }{{3, 5, 3}, {-3, -5, -3}, {3, -5, 0}, {0, 5, 0}, {-1, 0, 0}} {
		if got := agreement(n.a, n.b); got != n.want {
			t.Errorf("agreement of %d and %d is %d", n.a, n.b, got)
		}
	}
}

// What a backend is due is written where its Service compares by that, and nowhere else; a new endpoint begins with nothing.
func TestTheProgramsKnowTheWeightsOfBackendsThatAreComparedByLoad(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	d := made(1, weighted(2, 5)...)
	b.apply(t, d)
	first, second := b.suspectOf(t, 0).ID, b.suspectOf(t, 1).ID
	weight := func(id uint32) uint32 { return b.store.health.load(id, wordWeight) }
	if weight(first)+weight(second) != 0 {
		t.Errorf("weights %d and %d of backends that nobody compares", weight(first), weight(second))
	}
	d.Balancing = lb.BalanceLeastConnections
	b.apply(t, d)
	if 5*weight(first) != 2*weight(second) || weight(first) == 0 {
		t.Errorf("weights %d and %d, want 2 to 5", weight(first), weight(second))
	}
	d = made(1, weighted(2, 7)...)
	d.Balancing = lb.BalanceLeastConnections
	b.apply(t, d)
	if 7*weight(first) != 2*weight(second) {
		t.Errorf("weights %d and %d, want 2 to 7", weight(first), weight(second))
	}
	b.store.addOpen(first, 4)
	b.store.forgetAnswers(first)
	if weight(first) != 0 || b.store.open(first) != 0 {
		t.Errorf("another endpoint begins with weight %d and %d connections", weight(first), b.store.open(first))
	}
}
