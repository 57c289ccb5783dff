// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"math/bits"
	"net/netip"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// What other nodes have open to a backend: their agents tell (pkg/agent load.go), and the programs compare it with what they count themselves.

const (
	wordOthers    = int(unsafe.Offsetof(healthRow{}.Others) / 4)
	wordSynTimed  = int(unsafe.Offsetof(healthRow{}.SynTimed) / 4)
	wordOthersAt  = int(unsafe.Offsetof(healthRow{}.OthersAt) / 4)
	othersShift   = int(bpf.NearlbOthersOTHERS_SHIFT)
	othersCount   = uint32(bpf.NearlbOthersOTHERS_COUNT)
	othersSeconds = uint32(bpf.NearlbOthersOTHERS_SECONDS)
	othersUnsure  = 31 // the greatest value of what is above the count
)

// Load is what a backend of a Service that balances by connections has of this node.
type Load struct {
	ID          uint32
	Generation  uint16 // of the id
	Port        uint32 // id of its service port
	Address     netip.AddrPort
	Protocol    lb.Protocol
	Node        string // its node's name, "": not known
	Local       bool   // it is on this node
	Open        uint32 // connections
	Carried     uint32 // of these, of which the node that they came by knows as well
	Answered    uint32 // moves when a SYN of this node is answered
	Connections uint64 // that were opened so far
}

// Others is what other nodes have open to a backend, and as many as they may have opened since they said so.
type Others struct {
	ID         uint32
	Generation uint16 // of the id
	Open       uint32
	Unsure     uint32
}

// Loads lists the backends that take connections of Services that balance by connections, those of a service port side by side, if they may be
// others than they were when it returned since as now. It takes time with the number of Services then.
func (t *Tables) Loads(since uint64) (all []Load, now uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || since == t.loads {
		return nil, since
	}
	for p := range t.portsByLoad() {
		for i := range p.backends {
			if b := &p.backends[i]; takes(&b.row) {
				all = append(all, Load{ID: b.id, Generation: b.row.Generation, Port: p.id, Address: AddrPortOf(b.row), Protocol: p.key.Value().Protocol,
					Node: t.nodeName(b.row.Node), Local: b.row.Tier == tierNode})
			}
		}
	}
	return all, t.loads
}

// loadsChange is that the backends of a Service may change, which Loads lists if it balances by connections.
func (t *Tables) loadsChange(s *service) {
	if s.balancing == lb.BalanceLeastConnections {
		t.loads++
	}
}

// CountOpen brings the connections that are open, and whether some were answered, up to date, but for backends whose ids are other endpoints' by now.
func (t *Tables) CountOpen(all []*Load) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for _, l := range all {
		if t.store.hasID(l.ID, l.Generation) {
			l.Open = uint32(max(0, t.store.open(l.ID)))
			l.Carried = min(l.Open, uint32(t.carried[l.ID]))
			l.Answered = t.store.health.load(l.ID, wordSynTimed)
		}
	}
}

// CountOpened brings those up to date that were opened so far: a call of the kernel for each backend, or for very many at once.
func (t *Tables) CountOpened(all []*Load) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(all) == 0 {
		return nil
	}
	ids := make([]uint32, len(all))
	for i, l := range all {
		ids[i] = l.ID
	}
	i := 0
	for counter, err := range t.store.backendCounters.readEach(ids) {
		if err != nil {
			return fmt.Errorf("read counters of backend %s: %w", all[i].Address, err)
		}
		if l := all[i]; t.store.hasID(l.ID, l.Generation) {
			l.Connections = counter.Connections
		}
		i++
	}
	return nil
}

// hasID says whether an id is of this generation.
func (s *store) hasID(id uint32, generation uint16) bool {
	return s.health.in(id, 1) && s.backends.in(id, 1) && uint16(s.backends.load(id, wordMembership)) == generation
}

// TellOthers has the programs compare backends by what other nodes have as well, for the next seconds.
func (t *Tables) TellOthers(all []Others) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	now := max(1, t.store.clock.jiffies())
	for _, o := range all {
		if !t.store.hasID(o.ID, o.Generation) {
			continue
		}
		t.store.health.store(o.ID, wordOthers, min(o.Open, othersCount)|uint32(powerAbove(o.Unsure))<<othersShift)
		t.store.health.store(o.ID, wordOthersAt, now)
	}
}

// powerAbove is the least power of two that is not below n, plus one; 0 for 0.
func powerAbove(n uint32) int {
	if n == 0 {
		return 0
	}
	return min(bits.Len32(n-1)+1, othersUnsure)
}

// others is what is known of a backend; false: nothing that counts yet.
func (s *store) others(id uint32) (open uint32, known bool) {
	at := s.health.load(id, wordOthersAt)
	if at == 0 || age(s.clock.jiffies(), at, s.clock.perSecond()) > uint64(othersSeconds*s.clock.perSecond()) {
		return 0, false
	}
	return s.health.load(id, wordOthers) & othersCount, true
}
