// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// Whatever is published, withdrawn, restored or carried over from tables that did not tell, and after each single write of it: the
// programs know every backend that a frontend other than a ClusterIP leads to, or led to as long as the id was its, as connections by
// that frontend may go on. At the end nothing else passes for one.
func TestTheProgramsKnowEveryBackendThatClientsOffTheNodeReach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		led := map[uint32]uint16{} // id -> generation, of those that were reached
		b, decisions := newBench(t, s), map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"change", "change", "change", "restart", "crash", "upgrade"}).Draw(t, "kind") {
			case "change":
				step := drawStep(t, decisions)
				s.watch(func() { reachedAreKnown(t, s, led) })
				if err := step(b); err != nil {
					t.Fatal(err)
				}
				s.watch(func() {})
			case "crash":
				crashAfter(b, s, rapid.IntRange(1, 60).Draw(t, "writes"), drawStep(t, decisions))
				b = newBench(t, s)
				reapply(t, b, decisions)
			case "restart":
				b = newBench(t, s)
				reapply(t, b, decisions)
			case "upgrade":
				s = carriedFromAFormerLayout(t, s)
				b = newBench(t, s)
			}
			reachedAreKnown(t, s, led)
		}
		b.later()
		reachedAreKnown(t, s, led)
		needed := newBitCounts()
		for id := uint32(1); id < s.backends.size; id++ {
			row := read[backendRow](s.backends, id)
			if row.State == stateFree {
				continue
			}
			for _, k := range s.ofBackend(&row) {
				for _, bit := range k.bits() {
					needed.need(bit)
				}
			}
		}
		for bit := range setBits(s.filter) {
			if plane(bit>>21) == backendPlane && needed.count(bit) == 0 {
				t.Fatalf("bit %d is set and stands for no backend", bit)
			}
		}
	})
}

// reachedAreKnown looks at the memory as the programs do, and keeps in led what it has seen.
func reachedAreKnown(t *rapid.T, s *store, led map[uint32]uint16) {
	for key, number := range s.frontends.all() {
		record := read[recordValue](s.records, number)
		if record.Kind == kindOf(lb.KindClusterIP) || isAddressKey(key) {
			continue
		}
		for _, side := range record.Sides {
			for _, tier := range side.Tiers {
				for slot := range tier.Count {
					id := s.slots.load(tier.First+slot, 0)
					led[id] = read[backendRow](s.backends, id).Generation
				}
			}
		}
	}
	for id, generation := range led {
		row := read[backendRow](s.backends, id)
		if row.State == stateFree || row.Generation != generation {
			delete(led, id)
			continue
		}
		if !s.exposedKnown(AddrPortOf(row)).isSet(s.filter) {
			t.Fatalf("clients off the node reach backend %d, %s, and the programs take it for one of ClusterIPs only", id, AddrPortOf(row))
		}
	}
}

// carriedFromAFormerLayout is what Carrier makes of tables that tell no backend of ClusterIPs only from others.
func carriedFromAFormerLayout(t *rapid.T, s *store) *store {
	for id := uint32(1); id < s.backends.size; id++ {
		row := read[backendRow](s.backends, id)
		row.ClusterOnly = 0
		write(s.backends, id, row)
	}
	for bit := range setBits(s.filter) {
		bit.put(s.filter, false)
	}
	if err := (&Carrier{store: s}).fillFilter(); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABackendOfAClusterIPAloneIsToldFromOthers(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	exposed := func(host int) bool { return s.exposedKnown(hostAddress(host)).isSet(s.filter) }
	inside, outside := made(1, active(1)...), made(1, active(1, 2)...)
	addFrontend(&outside, outside.Frontends[0].Internal, lb.KindNodePort, hostAddress(9))
	b.apply(t, inside)
	if exposed(1) {
		t.Error("a ClusterIP alone exposes its backend")
	}
	b.apply(t, outside)
	if !exposed(1) || !exposed(2) {
		t.Error("a NodePort does not expose its backends")
	}
	b.apply(t, inside)
	if !exposed(1) || !exposed(2) {
		t.Error("connections by the NodePort may go on, and its backends are exposed no more")
	}
	b.later() // nobody names the second, which is free now
	if !exposed(1) || exposed(2) {
		t.Errorf("exposed: the one that stays %v, the one that went %v", exposed(1), exposed(2))
	}
}
