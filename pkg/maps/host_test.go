// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Programs look for connections of the host that went to another backend as long as there is one, however it came: one that begins while the table is
// searched, behind or before where the search is, has said so.
func TestProgramsLookForConnectionsOfTheHostWhileThereAreAny(t *testing.T) {
	store := memoryStore(tinySizes())
	last := store.flows.size*uint32(flowWays) - 1
	b := newBench(t, store)
	b.piece.sets = 1
	connect := func(place uint32, side bpf.NearlbSideIndex, seen uint32) {
		putFlow(store, place, bpf.NearlbFlow{Word: flowLive, Touched: store.clock.jiffies(), Protocol: 6, Flags: flowSNAT, Side: uint8(side), Seen: seen})
	}
	end := func(place uint32) {
		putFlow(store, place, bpf.NearlbFlow{})
	}
	begins := func() { writeModes(store.settings, func(m *modes) { m.routed |= routedHost | routedBegan }) }
	looks := func() bool { return read[bpf.NearlbSettings](store.settings, 0).Routed&routedHost != 0 }
	if b.recount(); looks() {
		t.Error("nothing began, and programs look")
	}
	writeModes(store.settings, func(m *modes) { m.routed |= routedHere })
	connect(5, bpf.NearlbSideIndexSIDE_EXTERNAL, 0)
	begins()
	connect(last, bpf.NearlbSideIndexSIDE_INTERNAL, 0)
	if b.recount(); !looks() {
		t.Error("there is one, and programs do not look")
	}
	end(last)
	if !b.Recount() {
		t.Fatal("the search is over at once")
	}
	begins()
	connect(0, bpf.NearlbSideIndexSIDE_INTERNAL, 0)
	if b.recount(); !looks() {
		t.Error("one began during a search, and programs do not look")
	}
	end(0)
	if !b.Recount() {
		t.Fatal("the search is over at once")
	}
	connect(0, bpf.NearlbSideIndexSIDE_INTERNAL, 0)
	(&Carrier{store: store}).look(routedHost)
	if b.recount(); !looks() {
		t.Error("one was carried over during a search, and programs do not look")
	}
	end(0)
	if b.recount(); looks() {
		t.Error("the last one is gone, and programs look")
	}
	if read[bpf.NearlbSettings](store.settings, 0).Routed&routedHere == 0 {
		t.Error("another bit is gone")
	}
}
