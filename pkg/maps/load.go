// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// The load of the backends of Services that balance by connections: bpf/lib/load.h. The programs count connections as they open and close;
// what they cannot see is mended here.

const (
	wordOpen    = int(unsafe.Offsetof(healthRow{}.Open) / 4)
	wordWeight  = int(unsafe.Offsetof(healthRow{}.Weight) / 4)
	wordSynTime = int(unsafe.Offsetof(healthRow{}.SynTime) / 4)
	wordOfPort  = int(unsafe.Offsetof(bpf.NearlbFlow{}.Service) / 4)
	seenLoads   = uint32(bpf.NearlbFlowLoadSEEN_LOADS)
	seenCounted = uint32(bpf.NearlbFlowLoadSEEN_COUNTED)
	flowCarried = uint8(bpf.NearlbFlowFlagsFLOW_CARRIED)
)

// addOpen counts connections of a backend in or out; programs do so at the same time.
func (s *store) addOpen(id uint32, connections int32) {
	atomic.AddUint32(s.health.word(id, wordOpen), uint32(connections))
	s.health.written()
}

// countOut counts the connection out that an entry had which is being written: load_leave of bpf/lib/load.h.
func (s *store) countOut(place uint32) {
	if atomic.AndUint32(flowWord(s.flows, place, wordSeen), ^seenCounted)&seenCounted == 0 {
		return
	}
	if f := copyFlow(s.flows, place); s.hasBackend(&f) {
		s.addOpen(f.Backend, -1)
	}
}

// hasBackend: the id that the entry names has not gone to another endpoint since.
func (s *store) hasBackend(f *bpf.NearlbFlow) bool { return s.hasID(f.Backend, f.Generation) }

// open is how many connections count.
func (s *store) open(id uint32) int32 { return int32(s.health.load(id, wordOpen)) }

// forgetLoad begins anew with an id: another endpoint has it.
func (s *store) forgetLoad(id uint32) {
	for _, word := range []int{wordOpen, wordWeight, wordSynTime, wordOthersAt} {
		s.health.store(id, word, 0)
	}
}

// writeWeights tells the programs what each backend is due, where they compare connections by that.
func (c *change) writeWeights() error {
	if c.decision.Balancing != lb.BalanceLeastConnections {
		return nil
	}
	for i := range c.members {
		for _, m := range c.members[i].all {
			if health := c.t.store.health; health.load(m.id, wordWeight) != m.due {
				health.store(m.id, wordWeight, m.due)
			}
		}
	}
	return nil
}

// recount is a walk of the flow table for the connections that count.
type recount struct {
	ports   map[uint32]bool  // ids of the service ports that balance by connections
	found   map[uint32]int32 // connections that count, by backend
	carried map[uint32]int32 // of these, those that came through the tunnel
	set     uint32           // where to go on
}

// Recount compares the connections that count for their backends with the flow table, a piece of it in each call, and makes up for what is
// not so: it counts those out that have expired, and those in that were there before their Service asked for it. It returns true as long as
// the walk goes on. Where no Service balances by connections it does nothing of that. It looks for connections of the host as well (leaveHost).
func (t *Tables) Recount() (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	host := t.leaveHost()
	return t.recount() || host
}

func (t *Tables) recount() (more bool) {
	if t.recounting == nil {
		t.recounting = &recount{ports: map[uint32]bool{}, found: map[uint32]int32{}, carried: map[uint32]int32{}}
		for p := range t.portsByLoad() {
			t.recounting.ports[p.id] = true
		}
	}
	r := t.recounting
	if len(r.ports) > 0 && !t.recountSome(r) {
		return true
	}
	t.recounting = nil
	t.settleLoad(r)
	return false
}

// portsByLoad are the service ports that balance by connections.
func (t *Tables) portsByLoad() iter.Seq[*port] {
	return func(yield func(*port) bool) {
		for _, s := range t.services {
			if s.balancing != lb.BalanceLeastConnections {
				continue
			}
			for _, p := range s.ports {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// recountSome looks at the next sets of the flow table. It returns true at the end of the table.
func (t *Tables) recountSome(r *recount) bool {
	s, expiry := t.store, newExpiry(t.store.clock)
	for place := range s.walk(&r.set, t.piece.sets) {
		if r.ports[atomic.LoadUint32(flowWord(s.flows, place, wordOfPort))] {
			r.entry(s, place, expiry)
		}
	}
	return r.set == s.flows.size
}

// entry has a connection count if it is open, and not if it has ended. The programs may change the entry at the same time: then it stays as
// they have it until the next walk.
func (r *recount) entry(s *store, place uint32, e expiry) {
	f, ok := readFlow(s.flows, place)
	if !ok || f.Word&flowPhase != flowLive || f.Flags&(flowAlias|flowDirect) != 0 || !r.ports[f.Service] || !s.hasBackend(&f) {
		return
	}
	counts, open := f.Seen&seenCounted != 0, isOpen(&f, e)
	seen := flowWord(s.flows, place, wordSeen)
	switch {
	case open && !counts && atomic.CompareAndSwapUint32(seen, f.Seen, f.Seen|seenLoads|seenCounted):
		s.addOpen(f.Backend, 1)
		counts = true
	case !open && counts && atomic.CompareAndSwapUint32(seen, f.Seen, f.Seen&^seenCounted):
		s.addOpen(f.Backend, -1)
		counts = false
	}
	if counts {
		r.found[f.Backend]++
	}
	if counts && f.Flags&flowCarried != 0 {
		r.carried[f.Backend]++
	}
}

// settleLoad corrects the counts at the end of a walk. Connections open and close while it goes on, so that the two always differ on a busy
// node: as much is corrected as this walk and the one before agree about.
func (t *Tables) settleLoad(r *recount) {
	drifts := map[uint32]int32{}
	for p := range t.portsByLoad() {
		if !r.ports[p.id] {
			continue // since the walk began
		}
		for i := range p.backends {
			id := p.backends[i].id
			drift := r.found[id] - t.store.open(id)
			if agreed := agreement(drift, t.drifts[id]); agreed != 0 {
				t.store.addOpen(id, agreed)
				drift -= agreed
			}
			if drift != 0 {
				drifts[id] = drift
			}
		}
	}
	t.drifts, t.carried = drifts, r.carried
}

// agreement is the smaller one of two differences in the same direction, else 0.
func agreement(a, b int32) int32 {
	switch {
	case a > 0 && b > 0:
		return min(a, b)
	case a < 0 && b < 0:
		return max(a, b)
	}
	return 0
}
