// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// What a connection has seen says whether anything came of it; each that failed is told once.
func TestFailedConnectionsAreToldOnce(t *testing.T) {
	const (
		reply, reset = uint32(bpf.NearlbFlowSeenSEEN_REPLY), uint32(bpf.NearlbFlowSeenSEEN_RESET)
		established  = uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)
	)
	b := published(t)
	place := uint32(0)
	add := func(change func(*bpf.NearlbFlow)) {
		f := bpf.NearlbFlow{Word: flowLive, Touched: b.store.clock.jiffies(), Protocol: 6, Backend: place + 1, Generation: 1, Service: 1}
		change(&f)
		putFlow(b.store, place, f)
		place++
	}
	old := func(f *bpf.NearlbFlow) { f.Touched -= 11 * b.store.clock.perSecond() }
	add(func(f *bpf.NearlbFlow) { f.Seen = reply | reset })                    // 1: refused
	add(func(f *bpf.NearlbFlow) { old(f) })                                    // 2: nobody answers
	add(func(f *bpf.NearlbFlow) { f.Seen = reset })                            // 3: the client gave up
	add(func(f *bpf.NearlbFlow) {})                                            // 4: an answer may come
	add(func(f *bpf.NearlbFlow) { f.Seen = reply | established | reset })      // 5: was used
	add(func(f *bpf.NearlbFlow) { f.Seen = reply; old(f) })                    // 6: answered
	add(func(f *bpf.NearlbFlow) { f.Seen, f.Flags = reply|reset, flowAlias })  // 7: the second entry of another one
	add(func(f *bpf.NearlbFlow) { f.Seen, f.Flags = reply|reset, flowDirect }) // 8: no service's
	add(func(f *bpf.NearlbFlow) { f.Protocol = 17; old(f) })                   // 9: datagrams need no answer
	add(func(f *bpf.NearlbFlow) { f.Seen, f.Flags = reply|reset, flowSNAT })   // 10: refused
	add(func(f *bpf.NearlbFlow) { f.Seen, f.Word = reply|reset, flowClaimed }) // 11: not in use yet
	var once FailedOnce
	want := []FailedRow{{1, 1, 1, true}, {1, 2, 1, false}, {1, 3, 1, false}, {1, 10, 1, true}}
	compare(t, slices.Collect(b.Reader().Failed(&once)), want)
	compare(t, slices.Collect(b.Reader().Failed(&once)), nil)
	again := bpf.NearlbFlow{Word: flowLive + 4, Protocol: 6, Seen: reply | reset, Backend: 9, Generation: 2, Service: 3}
	putFlow(b.store, 0, again) // another connection in the same place
	compare(t, slices.Collect(b.Reader().Failed(&once)), []FailedRow{{3, 9, 2, true}})
}

// A look at larger tables follows one at smaller ones: those of an agent that waits for its first list have one set.
func TestFailedConnectionsThatLargerTablesTookOverAreNotToldAgain(t *testing.T) {
	refused := bpf.NearlbFlow{Word: flowLive, Protocol: 6, Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_RESET), Backend: 1, Generation: 1, Service: 1}
	sizes := bpf.Sizes{FlowSets: 1}.WithDefaults()
	small := NewFake(sizes)
	sizes.FlowSets = 64
	large := NewFake(sizes)
	var once FailedOnce
	putFlow(small.store, 0, refused)
	compare(t, slices.Collect(small.Reader().Failed(&once)), []FailedRow{{1, 1, 1, true}})
	last := uint32(64*flowWays - 1)
	putFlow(large.store, last, refused) // has another place there
	compare(t, slices.Collect(large.Reader().Failed(&once)), nil)
	putFlow(large.store, last-1, refused)
	compare(t, slices.Collect(large.Reader().Failed(&once)), []FailedRow{{1, 1, 1, true}})
}
