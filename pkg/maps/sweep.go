// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"sync/atomic"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Sweep frees the entries of connections that were over long ago, a piece of the flow table in each call. It returns true as long as the walk
// goes on. The programs overwrite what has expired, but its tag stays until they do: a table that nobody sweeps looks full once it has turned
// over, and a new flow reads five lines of it in place of two.
func (t *Tables) Sweep() (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	s, expiry := t.store, newExpiry(t.store.clock)
	for end := min(s.flows.size, t.swept+t.piece.sets); t.swept < end; t.swept++ {
		if !s.isEmptySet(t.swept) {
			s.sweepSet(t.swept, expiry)
		}
	}
	if t.swept < s.flows.size {
		return true
	}
	t.swept = 0
	return false
}

func (s *store) sweepSet(set uint32, e expiry) {
	for way := range flowWays {
		place := flowPlace(set, way)
		if s.tagOf(place) == 0 {
			continue
		}
		if f, ok := readJudged(s.flows, place); ok && e.longOver(&f) {
			s.freeFlow(place, f.Word)
		}
	}
}

// How many seconds an entry is kept that has expired. By a minute all who tell what became of connections have seen it (Failed, Meter). That
// of an established connection tells the port that the server knows, should the client go on: it is kept until it was silent for as long
// as connection tracking waits (nf_conntrack_tcp_timeout_established, five days). Its 32 bits of jiffies have not come round by then.
const (
	keptAfter  = 60
	keptSilent = 4 * 86400
)

// longOver: no packet is translated by the entry any more, and nobody misses it.
func (e expiry) longOver(f *bpf.NearlbFlow) bool {
	const established = uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)
	kept := uint32(keptAfter)
	if f.Protocol != uint8(lb.UDP) && f.Seen&established != 0 && !closed(f.Seen) && !mayBeClosed(f) {
		kept = keptSilent
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
