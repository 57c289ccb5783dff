// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// flowMeter remembers which connections it has counted.
type flowMeter struct {
	words   []uint32                  // of each entry: its word when it was counted; its phase is then one of flowCounted
	counts  bool                      // there is something to compare with
	past    uint32                    // jiffies of the look before
	clients map[bpf.NearlbAddress]int // number of an address in gained
	gained  []ClientGain
}

// Phases in flowMeter.words: those of entries that are written, so that an entry that is live differs from one that never was.
const (
	flowCounted = 1 // its connection was counted
	flowFailed  = 2 // and that nothing came of it
)

// look counts what is open, new and failed, and marks the backends that had packets since the look before.
func (f *flowMeter) look(s *store, m *Meter) {
	expiry := newExpiry(s.clock)
	f.clients, f.gained = make(map[bpf.NearlbAddress]int, len(f.gained)), make([]ClientGain, 0, len(f.gained)) // about as many as before
	for set := range s.flows.size {
		if s.isEmptySet(set) {
			continue
		}
		for way := range flowWays {
			place := flowPlace(set, way)
			if flow, ok := readJudged(s.flows, place); ok && flow.Flags&(flowAlias|flowDirect) == 0 {
				f.count(m, place, &flow, &expiry)
			}
		}
	}
	f.counts, f.past = true, expiry.now
}

const wordOfClient = int(unsafe.Offsetof(bpf.NearlbFlow{}.Client) / 4)

func (f *flowMeter) count(m *Meter, place uint32, flow *bpf.NearlbFlow, expiry *expiry) {
	fresh, refused, unanswered := f.since(place, flow, expiry)
	open := oneIf(isOpen(flow, *expiry))
	if m.Clients && fresh+refused+unanswered+open > 0 {
		f.countOf(m.of.flows, place).add(fresh, open, refused, unanswered)
	}
	if int(flow.Service) < len(m.ports) {
		m.ports[flow.Service].gain.add(0, open, refused, unanswered) // their counters have the new ones
	}
	if touched := f.touched(flow, expiry); int(flow.Backend) < len(m.busy) && (refused+unanswered+open > 0 || touched) {
		gain := m.gainOf(flow.Backend)
		gain.add(0, open, refused, unanswered)
		gain.moved = gain.moved || touched
	}
}

func oneIf(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (g *Gain) add(fresh, open, refused, unanswered uint64) {
	g.Connections += fresh
	g.Open += open
	g.Refused += refused
	g.Unanswered += unanswered
}

// since tells whether the connection is a new one, and whether it failed since the look before. All are old to the first look.
func (f *flowMeter) since(place uint32, flow *bpf.NearlbFlow, expiry *expiry) (fresh, refused, unanswered uint64) {
	before, word := f.words[place], flow.Word&^flowPhase
	if before&flowPhase == 0 || before&^flowPhase != word {
		before = word | flowCounted
		fresh = oneIf(f.counts)
	}
	if before&flowPhase != flowFailed {
		if failed, byServer := expiry.failed(flow); failed {
			before = word | flowFailed
			refused, unanswered = oneIf(f.counts && byServer), oneIf(f.counts && !byServer)
		}
	}
	f.words[place] = before
	return fresh, refused, unanswered
}

// touched: the entry may have had a packet since the look before. The programs write its time when it differs by a second.
func (f *flowMeter) touched(flow *bpf.NearlbFlow, expiry *expiry) bool {
	return !f.counts || expiry.idle(flow) <= uint64(expiry.now-f.past)+2*uint64(expiry.perSecond)
}

// countOf is the gain of an entry's client. It is valid until the next one is asked for.
func (f *flowMeter) countOf(a *array, place uint32) *Gain {
	var address bpf.NearlbAddress
	for i := range wordsOf(&address) {
		wordsOf(&address)[i] = atomic.LoadUint32(flowWord(a, place, wordOfClient+i))
	}
	n, known := f.clients[address]
	if !known {
		n = len(f.gained)
		f.clients[address] = n
		f.gained = append(f.gained, ClientGain{Client: netip.AddrFrom16(address.Bytes).Unmap()})
	}
	return &f.gained[n].Gain
}
