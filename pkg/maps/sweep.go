// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"sync/atomic"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Sweep frees the entries of connections that were over long ago, a piece of the flow table in each call. It returns true as long as the walk
// goes on, and at its end how many connections that are not over go through the tunnel between nodes. The programs overwrite what has expired, but its tag stays until they do: a table that nobody sweeps looks full once it has turned
// over, and each new flow reads its four homes to find one that has expired.
func (t *Tables) Sweep() (tunneled int, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, false
	}
	if t.swept == 0 {
		t.tunneled = 0
	}
	s, expiry := t.store, newExpiry(t.store.clock)
	for place := range s.walk(&t.swept, max(1, t.piece.sets/looksPerFree)) {
		if s.tagOf(place) == 0 {
			continue
		}
		f, ok := readJudged(s.flows, place)
		if f.Flags&flowTunneled != 0 && !expiry.expired(&f) {
			t.tunneled++ // one that changes hands may be one, too
		}
		if ok && expiry.longOver(&f) {
			s.freeFlow(place, f.Word)
		}
	}
	if t.swept < s.flows.size {
		return 0, true
	}
	t.swept = 0
	return t.tunneled, false
}

// flowTunneled are the flags of flows that go through the tunnel, at either end.
const flowTunneled = uint8(bpf.NearlbFlowFlagsFLOW_CARRY | bpf.NearlbFlowFlagsFLOW_CARRIED | bpf.NearlbFlowFlagsFLOW_DSR)

// looksPerFree is how many looks at an entry take as long as to free one: all of a piece may be free at its end.
const looksPerFree = 4

// How many seconds an entry is kept that has expired. What has failed, was reset, or is just silent is rare, and told from the table to who asks
// what became of it (Failed, Meter), on each scrape: there are some within ten minutes. An entry that saw a reset keeps its connection's server, too,
// if the reset was forged (create_tried).
const (
	keptAfter = 600
	keptEnded = 60 // both sides closed it, or it is UDP: so most end
)

// longOver: no packet is translated by the entry any more, and nobody misses it.
func (e expiry) longOver(f *bpf.NearlbFlow) bool {
	kept := uint32(keptAfter)
	if f.Protocol == uint8(lb.UDP) || closedByBoth(f.Seen) || mayBeClosed(f) {
		kept = keptEnded
	}
	return e.idle(f) > uint64(e.limit(f)+kept)*uint64(e.perSecond)
}

// freeFlow frees an entry that has this word, live or claimed: flow_free of bpf/lib/flow_insert.h. False: it is another flow's by now.
func (s *store) freeFlow(place, word uint32) bool {
	state := flowWord(s.flows, place, wordOfFlow)
	next := word&^flowPhase + flowClaim
	if !atomic.CompareAndSwapUint32(state, word, next|flowWriting) {
		return false
	}
	s.countOut(place)
	s.setTag(place, 0)
	atomic.StoreUint32(state, next|uint32(bpf.NearlbFlowPhaseFLOW_FREE))
	return true
}
