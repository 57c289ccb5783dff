// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// An entry is free a minute after it has expired if its connection ended as it should, and after ten minutes if not.
func TestASweepFreesWhatIsLongOver(t *testing.T) {
	const (
		tcp, udp    = uint8(lb.TCP), uint8(lb.UDP)
		reply       = uint32(bpf.NearlbFlowSeenSEEN_REPLY)
		established = reply | uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)
		reset       = established | uint32(bpf.NearlbFlowSeenSEEN_RESET)
		clientFIN   = established | uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN)
		fins        = clientFIN | uint32(bpf.NearlbFlowSeenSEEN_SERVER_FIN)
		waits       = fins | uint32(bpf.NearlbFlowSeenSEEN_SERVER_WAITS)
		direct      = uint8(bpf.NearlbFlowFlagsFLOW_CARRY | bpf.NearlbFlowFlagsFLOW_DSR)
		longer      = 9 * time.Minute
	)
	rows := []struct {
		name     string
		protocol uint8
		flags    uint8
		seen     uint32
		over     time.Duration // after which it has expired, and nine minutes where ten more are due
	}{
		{"TCP without an answer", tcp, 0, 0, longer + time.Minute},
		{"TCP refused", tcp, 0, reply | uint32(bpf.NearlbFlowSeenSEEN_RESET), longer + 10*time.Second},
		{"TCP reset", tcp, 0, reset, longer + 10*time.Second},
		{"TCP closed by both", tcp, 0, fins, 10 * time.Second},
		{"TCP closed by one", tcp, 0, clientFIN, longer + 24*time.Hour},
		{"TCP closed by the client of a server that answers past this node", tcp, direct, clientFIN, 3 * time.Minute},
		{"TCP whose port the server remembers", tcp, flowSNAT | flowAlias, waits, 62 * time.Second},
		{"silent TCP", tcp, 0, established, longer + 24*time.Hour},
		{"a question over UDP", udp, 0, reply, 30 * time.Second},
		{"a stream over UDP", udp, 0, established, 3 * time.Minute},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			store := memoryStore(tinySizes())
			b := newBench(t, store)
			const kept, gone = 1, 2
			old := func(place uint32, d time.Duration) {
				touched := store.clock.jiffies() - uint32(d/time.Second)*store.clock.perSecond()
				putFlow(store, place, bpf.NearlbFlow{Word: flowLive, Touched: touched, Protocol: row.protocol, Flags: row.flags, Seen: row.seen})
			}
			old(kept, row.over+50*time.Second) // ten seconds are for a machine that stands still
			old(gone, row.over+61*time.Second)
			b.sweep()
			if word := *flowWord(store.flows, kept, wordOfFlow); word != flowLive || store.tagOf(kept) == 0 {
				t.Errorf("an entry that is to stay has word %d, tag %d", word, store.tagOf(kept))
			}
			word, tag := *flowWord(store.flows, gone, wordOfFlow), store.tagOf(gone)
			if word&flowPhase != 0 || word == 0 || tag != 0 {
				t.Errorf("an entry that is to be freed has word %d, tag %d; want a free one that was claimed once more, and no tag", word, tag)
			}
		})
	}
}

// A connection that is freed counts no more for its backend; entries that somebody writes stay his.
func TestASweepCountsOutAndLeavesWhatIsWritten(t *testing.T) {
	store := memoryStore(tinySizes())
	b := newBench(t, store)
	b.piece.sets = 1 // several calls
	b.apply(t, made(1, active(1, 2)...))
	id := b.suspectOf(t, 1).ID
	b.openFlow(3, id, uint32(bpf.NearlbFlowSeenSEEN_RESET)|seenCounted)
	store.addOpen(id, 1)
	*flowWord(store.flows, 3, wordTouched) -= 700 * store.clock.perSecond()
	for place, phase := range map[uint32]uint32{4: flowWriting, 5: flowClaimed} {
		putFlow(store, place, bpf.NearlbFlow{Word: phase, Touched: store.clock.jiffies() - 700*store.clock.perSecond(), Protocol: uint8(lb.UDP)})
	}
	calls := b.sweep()
	if open, seen := store.open(id), *flowWord(store.flows, 3, wordSeen); open != 0 || store.tagOf(3) != 0 || seen&seenCounted != 0 {
		t.Errorf("%d connections count, tag %d, the entry says %#x; want none, and that it does not count", open, store.tagOf(3), seen)
	}
	for place, phase := range map[uint32]uint32{4: flowWriting, 5: flowClaimed} {
		if word := *flowWord(store.flows, place, wordOfFlow); word != phase {
			t.Errorf("an entry that is written has word %d, want %d", word, phase)
		}
	}
	next := uint32(flowLive + flowClaim) // another flow has the entry since it was judged
	putFlow(store, 6, bpf.NearlbFlow{Word: next, Touched: store.clock.jiffies(), Protocol: uint8(lb.UDP)})
	if freed := store.freeFlow(6, flowLive); freed || *flowWord(store.flows, 6, wordOfFlow) != next || store.tagOf(6) == 0 {
		t.Errorf("freed %v: an entry that another flow has taken has word %d, tag %d", freed, *flowWord(store.flows, 6, wordOfFlow), store.tagOf(6))
	}
	if calls != int(store.flows.size) {
		t.Errorf("a walk of %d sets took %d calls", store.flows.size, calls)
	}
	b.openFlow(3, id, uint32(bpf.NearlbFlowSeenSEEN_RESET))
	*flowWord(store.flows, 3, wordTouched) -= 700 * store.clock.perSecond()
	b.sweep()
	if store.tagOf(3) != 0 {
		t.Error("a second walk frees nothing")
	}
}

// A walk tells at its end how many connections go through the tunnel, at either end of it, and are not over.
func TestASweepCountsConnectionsThroughTheTunnel(t *testing.T) {
	store := memoryStore(tinySizes())
	store.clock = standing{}
	b := newBench(t, store)
	b.piece.sets = 1
	for place, flags := range map[uint32]uint8{1: 0, 2: flowSNAT, 3: uint8(bpf.NearlbFlowFlagsFLOW_CARRY), 9: flowCarried,
		17: flowCarried | uint8(bpf.NearlbFlowFlagsFLOW_DSR)} {
		putFlow(store, place, bpf.NearlbFlow{Word: flowLive, Protocol: 6, Flags: flags, Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)})
	}
	over := bpf.NearlbFlow{Word: flowLive, Protocol: uint8(lb.UDP), Flags: flowCarried}
	over.Touched -= 3600 * standing{}.perSecond()
	putFlow(store, 10, over)
	for _, want := range []int{3, 3} {
		got := 0
		for more := true; more; {
			got, more = b.Sweep()
		}
		if got != want {
			t.Errorf("%d connections, want %d", got, want)
		}
	}
	for place := range liveFlows(store) {
		putFlow(store, place, bpf.NearlbFlow{})
	}
	if b.sweep(); b.tunneled != 0 {
		t.Errorf("of none there are %d", b.tunneled)
	}
}

// sweep walks through the whole table, and tells in how many calls.
func (b *bench) sweep() (calls int) {
	for more := true; more; calls++ {
		_, more = b.Sweep()
	}
	return calls
}
