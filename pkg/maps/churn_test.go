// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"math"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// Nothing leaks: whatever was published, refused, crashed or taken over, once all is removed and reclaimed every number is free
// again and no bit of the address filter is set.
func TestWhenAllIsRemovedNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := tinySizes()
		sizes.Slots = rapid.Uint32Range(48, 200).Draw(t, "slots")
		sizes.Backends = rapid.Uint32Range(10, 30).Draw(t, "backends")
		sizes.Frontends = rapid.Uint32Range(4, 20).Draw(t, "frontends")
		sizes.Records = sizes.Frontends + rapid.Uint32Range(1, 8).Draw(t, "spare records")
		s := memoryStore(sizes)
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			b = churn(t, b, s, decisions)
			if flows := rapid.IntRange(0, 3).Draw(t, "connections"); flows > 0 {
				connect(t, s, map[uint32]backendRow{})
			}
		}
		clear(s.flows.words)
		for _, name := range b.Published() {
			if _, err := b.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		b.later()
		empty(t, b.Tables)
	})
}

// churn takes one step, which may be refused half-way, may not fit, or is cut short by a crash and a new start.
func churn(t *rapid.T, b *bench, s *store, decisions map[lb.ServiceName]lb.Decision) *bench {
	step := drawStep(t, decisions)
	switch rapid.SampledFrom([]string{"done", "done", "refused", "crash"}).Draw(t, "fate") {
	case "crash":
		crashAfter(b, s, rapid.IntRange(1, 60).Draw(t, "writes"), step)
		return newBench(t, s)
	case "refused":
		s.refuseAfter(rapid.IntRange(0, 20).Draw(t, "writes"), errors.New("out of memory"))
		_ = step(b)
		s.refuseAfter(math.MaxInt, nil)
	default:
		if err := step(b); err != nil {
			if _, full := asFull(err); !full {
				t.Fatal(err)
			}
		}
	}
	return b
}

// empty checks every allocator and every table.
func empty(t *rapid.T, tables *Tables) {
	s := tables.store
	for what, count := range map[string]int{
		"services": len(tables.services), "records": tables.recordIDs.used, "backends": tables.backendIDs.used,
		"slots": int(s.sizes.Slots - tables.slots.left), "names": tables.names.count, "ranges": tables.rangeCount,
		"bits": tables.bits.used, "stale bits": len(tables.stale), "removed backends": len(tables.gone), "behind": len(tables.behind),
		"claims": len(tables.claims.owners) + len(tables.claims.waiting) + len(tables.claims.external), "problems": len(tables.Problems()),
		"idle ports": len(tables.idle) + len(tables.leaving) + len(tables.names.unused), "waiting runs": len(tables.runs) + len(tables.records),
		"entries of frontends": count(s.frontends), "entries of source_ranges": count(s.ranges), "entries of names": count(s.names),
	} {
		if count != 0 {
			t.Fatalf("%d %s are left", count, what)
		}
	}
	for kind, ids := range tables.names.ids {
		if ids.used != 0 {
			t.Fatalf("%d ids of names of kind %d are left", ids.used, kind)
		}
	}
	for bit := range setBits(s.filter) {
		t.Fatalf("bit %v of the address filter is left", bit)
	}
	for id := range s.backends.size {
		if state := read[backendRow](s.backends, id).State; state != stateFree {
			t.Fatalf("backend %d is left (%s)", id, bpf.StateName(state))
		}
	}
}
