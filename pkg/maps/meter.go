// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Meter tells what came between two looks at the tables, for people who look every second. A look costs what happened: the flow table
// says which backends had packets, and only their counters are read. Its zero value is ready; of one goroutine.
//
// It knows what the tables know: connections of the node's own sockets count as new ones of Services and backends, but no program sees
// their packets, so they are none of those that are open, and of no client.
type Meter struct {
	AllPorts    bool   // rows also of service ports that are idle
	AllBackends bool   // likewise of backends, of which there may be very many
	Clients     bool   // rows of clients
	Zone        string // this node's; "": as the tables' backends on this node say

	of       *store // the tables that were looked at last
	at       time.Time
	flows    flowMeter
	names    meterNames
	ports    []portMeter          // by id
	backends []backendMeter       // by id
	known    []bool               // by id: backends has its counters
	moved    bool                 // some of ports did
	busy     []uint32             // by id of a backend: number of its gain, 0: it has none
	gains    []backendGain        // of this look; the first one is nobody's
	syn      map[uint32]*SYNTimes // by id of a backend: as read last, where there were any
}

// Gain is what came between two looks, and what is open at the second.
type Gain struct {
	Connections uint64 // new ones
	Open        uint64 // connections that have not ended, at the second look
	BytesTo     uint64 // from clients to backends, with the Ethernet header
	BytesFrom   uint64
	CrossZone   uint64 // of both: those exchanged with backends that are known to be in other zones
	Refused     uint64 // TCP connections that the backend refused
	Unanswered  uint64 // TCP connections that had no answer for ten seconds
	Rejected    uint64 // packets that no backend got, answered with a refusal
	Dropped     uint64 // likewise, not answered

	SYN *SYNTimes // of connections whose SYN was answered; nil: of none
}

// Failed is what went wrong, connections and packets together.
func (g *Gain) Failed() uint64 { return g.Refused + g.Unanswered + g.Rejected + g.Dropped }

// Add adds another gain.
func (g *Gain) Add(o *Gain) {
	g.Connections += o.Connections
	g.Open += o.Open
	g.BytesTo += o.BytesTo
	g.BytesFrom += o.BytesFrom
	g.CrossZone += o.CrossZone
	g.Refused += o.Refused
	g.Unanswered += o.Unanswered
	g.Rejected += o.Rejected
	g.Dropped += o.Dropped
	g.addSYN(o.SYN)
}

func (g *Gain) addSYN(times *SYNTimes) {
	if times == nil {
		return
	}
	if g.SYN == nil {
		g.SYN = &SYNTimes{}
	}
	g.SYN.add(times)
}

// PortGain is the gain of a service port.
type PortGain struct {
	Port lb.PortName
	Gain
}

// BackendGain is the gain of a backend: nothing is rejected or dropped that got one.
type BackendGain struct {
	Port       lb.PortName
	Address    netip.AddrPort
	Node, Zone string // "" unknown
	State      string
	Gain
}

// ClientGain is what the flow table shows of a client's connections: their number, and those that failed. Of a client that opens
// connections faster than the table remembers ended ones, some of the new ones are missing.
type ClientGain struct {
	Client netip.Addr
	Gain
}

// Gains is what a look tells, in no order.
type Gains struct {
	Zone     string // of this node; "" unknown
	Time     time.Time
	Interval time.Duration // since the look before; 0: there was none
	Ports    []PortGain
	Backends []BackendGain
	Clients  []ClientGain
}

type portMeter struct {
	counter bpf.NearlbServiceCounter
	gain    Gain
	moved   bool // its counters did, since the look before
}

type backendMeter struct {
	counter    bpf.NearlbBackendCounter
	generation uint16 // that they are of
}

type backendGain struct {
	id    uint32
	moved bool // it had packets
	Gain
}

// Look compares the tables with what they were at the look before. The first one tells what is open, and no gains.
func (m *Meter) Look(r *Reader, now time.Time) (g Gains, err error) {
	s := r.store.again()
	first := m.at.IsZero()
	m.turn(r.store)
	if err := m.names.follow(s, now); err != nil {
		return g, err
	}
	m.flows.look(s, m)
	if err := m.lookAtPorts(s, first); err != nil {
		return g, err
	}
	g.Zone = m.ownZone(s)
	if g.Backends, err = m.lookAtBackends(s, first, g.Zone); err != nil {
		return g, err
	}
	g.Ports, g.Clients = m.portGains(), m.flows.gained
	if g.Time = now; !first {
		g.Interval = now.Sub(m.at)
	}
	m.at = now
	return g, nil
}

// turn readies it for these tables. Ids and counters outlive an exchange of tables by larger ones, places of flows do not.
func (m *Meter) turn(s *store) {
	if m.of != s {
		m.flows = flowMeter{words: make([]uint32, int(s.flows.size)*flowWays)}
		m.names, m.syn = meterNames{}, map[uint32]*SYNTimes{} // those begin anew
		m.of = s
	}
	m.ports = lengthened(m.ports, int(s.sizes.Services))
	m.backends = lengthened(m.backends, int(s.backends.size))
	m.busy, m.known = lengthened(m.busy, int(s.backends.size)), lengthened(m.known, int(s.backends.size))
	m.moved = false
	for i := range m.ports {
		m.ports[i].gain, m.ports[i].moved = Gain{}, false
	}
	for _, g := range m.gains {
		m.busy[g.id] = 0
	}
	m.gains = append(m.gains[:0], backendGain{})
}

// gainOf is the gain of a backend, which counts as busy from then on. It is valid until the next one is asked for.
func (m *Meter) gainOf(id uint32) *backendGain {
	if m.busy[id] == 0 {
		m.busy[id] = uint32(len(m.gains))
		m.gains = append(m.gains, backendGain{id: id})
	}
	return &m.gains[m.busy[id]]
}

func lengthened[T any](all []T, size int) []T {
	if len(all) >= size {
		return all
	}
	return append(all, make([]T, size-len(all))...)
}

func (m *Meter) lookAtPorts(s *store, first bool) error {
	ids := m.names.portIDs
	i := 0
	for c, err := range s.serviceCounters.readEach(ids) {
		id := ids[i]
		i++
		if err != nil {
			return fmt.Errorf("read counters of %s: %w", m.names.port(s, id), err)
		}
		p := &m.ports[id]
		before := p.counter
		if c.Connections < before.Connections || c.Rejected < before.Rejected || c.Dropped < before.Dropped {
			before = bpf.NearlbServiceCounter{} // the id went to another one, whose counters began at zero
			m.names.forget()
		}
		if p.moved = c != p.counter; p.moved && !first {
			p.gain.Connections += c.Connections - before.Connections
			p.gain.Rejected += c.Rejected - before.Rejected
			p.gain.Dropped += c.Dropped - before.Dropped
		}
		p.counter, m.moved = c, m.moved || p.moved
	}
	return nil
}

// lookAtBackends reads the counters of those that may have moved: they had packets, or their service port had new connections.
func (m *Meter) lookAtBackends(s *store, first bool, zone string) (all []BackendGain, err error) {
	moved, still := m.mayHaveMoved(s)
	v := &view{store: s}
	tell := func(gain Gain, row *backendRow) {
		if told := m.backendGain(s, gain, row, zone); told.Gain != (Gain{}) || m.AllBackends {
			all = append(all, told)
		}
	}
	i := 0
	for c, err := range s.backendCounters.readEach(moved) {
		id := moved[i]
		i++
		row, used := v.backend(id)
		if err != nil {
			return nil, fmt.Errorf("read counters of backend %s: %w", AddrPortOf(row), err)
		}
		if used {
			tell(m.gained(s, id, row.Generation, &c, first), &row)
		}
	}
	for _, id := range still {
		if row, used := v.backend(id); used {
			tell(m.gains[m.busy[id]].Gain, &row)
		}
	}
	return all, nil
}

// mayHaveMoved gives the backends whose counters are to be read, and others that have a row: their connections are open and idle, or all have one.
func (m *Meter) mayHaveMoved(s *store) (moved, still []uint32) {
	for id := uint32(1); id < s.backends.size; id++ {
		if uint8(s.backends.load(id, wordState)>>16) == stateFree {
			m.known[id] = false
			continue
		}
		busy := m.busy[id]
		switch {
		case !m.known[id] || m.gains[busy].moved || m.moved && m.portMoved(s, id):
			moved = append(moved, id)
		case busy != 0 || m.AllBackends:
			still = append(still, id)
		}
	}
	return moved, still
}

func (m *Meter) portMoved(s *store, id uint32) bool {
	port := s.backends.load(id, wordService)
	return int(port) < len(m.ports) && m.ports[port].moved
}

// backendGain adds what a backend gained to its service port.
func (m *Meter) backendGain(s *store, gain Gain, row *backendRow, zone string) BackendGain {
	node, here := m.names.place(s, row)
	if zone != "" && here != "" && here != zone {
		gain.CrossZone = gain.BytesTo + gain.BytesFrom
	}
	if int(row.Service) < len(m.ports) {
		p := &m.ports[row.Service].gain
		p.BytesTo += gain.BytesTo
		p.BytesFrom += gain.BytesFrom
		p.CrossZone += gain.CrossZone
		p.addSYN(gain.SYN)
	}
	return BackendGain{Port: m.names.port(s, row.Service), Address: AddrPortOf(*row), Node: node, Zone: here, State: bpf.StateName(row.State), Gain: gain}
}

// gained is what a backend gained by its counters, with what its connections say.
func (m *Meter) gained(s *store, id uint32, generation uint16, c *bpf.NearlbBackendCounter, first bool) (gain Gain) {
	b := &m.backends[id]
	if m.busy[id] != 0 {
		gain = m.gains[m.busy[id]].Gain
	}
	before := b.counter
	switch {
	case first:
		before = *c
	case !m.known[id], b.generation != generation, c.Connections < before.Connections, c.BytesTo < before.BytesTo, c.BytesFrom < before.BytesFrom:
		before = bpf.NearlbBackendCounter{} // another endpoint has the id: its counters began at zero
		delete(m.syn, id)
	}
	gain.SYN = m.measured(s, id, first)
	*b, m.known[id] = backendMeter{*c, generation}, true
	gain.Connections += c.Connections - before.Connections
	gain.BytesTo += c.BytesTo - before.BytesTo
	gain.BytesFrom += c.BytesFrom - before.BytesFrom
	return gain
}

// measured is how long the SYNs of a backend's connections had no answer that had one since the look before.
func (m *Meter) measured(s *store, id uint32, first bool) *SYNTimes {
	now := s.synTimes(id)
	came := now.since(m.syn[id])
	if came == nil {
		return nil
	}
	m.syn[id] = &now
	if first {
		return nil
	}
	return came
}

func (m *Meter) portGains() (all []PortGain) {
	for _, id := range m.names.portIDs {
		if p := &m.ports[id]; m.AllPorts || p.gain != (Gain{}) {
			all = append(all, PortGain{m.names.ports[id], p.gain})
		}
	}
	return all
}

// ownZone is that of the backends on this node, if nobody said.
func (m *Meter) ownZone(s *store) string {
	if m.Zone != "" {
		return m.Zone
	}
	m.names.places.store = s
	return s.ownZone(m.names.places)
}

// OwnZone is that of this node as its backends say; "" unknown.
func (r *Reader) OwnZone() string {
	s := r.store.again()
	return s.ownZone(newNames(s))
}

func (s *store) ownZone(names *placeNames) string {
	for id := uint32(1); id < s.backends.size; id++ {
		state := s.backends.load(id, wordState)
		if uint8(state>>16) == stateFree || uint8(state>>24) > uint8(bpf.NearlbTierNameTIER_ZONE) {
			continue
		}
		row := read[backendRow](s.backends, id)
		if _, zone, _ := names.place(&row); zone != "" {
			return zone
		}
	}
	return ""
}
