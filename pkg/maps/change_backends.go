// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// backendChange is what one entry of the backends table becomes.
type backendChange struct {
	port  *port
	id    uint32
	fresh bool
	wrote bool
	from  backendRow // of one that is not fresh
	to    backendRow
}

// decidedState is a backend's state by the decision, and what is written in its place (tunnelBackends).
type decidedState struct {
	id               uint32
	decided, written uint8
}

// portMembers are the backends of one port that a decision has, by address.
type portMembers struct {
	port    *port
	exposed bool // the decision has a frontend of the port that is no ClusterIP
	next    int  // where the port's next backend is likely to be found
	all     []member
}

type member struct {
	where  endpoint
	id     uint32
	weight uint32 // lb.Backend.Weight
	due    uint32 // lb.Backend.Due
}

func (m *member) compare(o *endpoint) int { return m.where.compare(o) }

// find gives the place of an endpoint, or where it would be. Mostly that is the end.
func (m *portMembers) find(where *endpoint) (at int, found bool) {
	if last := len(m.all) - 1; last < 0 || m.all[last].compare(where) < 0 {
		return last + 1, false
	}
	return slices.BinarySearchFunc(m.all, where, func(o member, e *endpoint) int { return o.compare(e) })
}

// prepareBackends compares every endpoint with what is published.
func (c *change) prepareBackends() error {
	c.t.round++
	for i := range c.decision.Backends {
		d := &c.decision.Backends[i]
		m, err := c.membersOf(d.Key.Port)
		if err != nil {
			return err
		}
		if err := c.prepareBackend(m, d); err != nil {
			return err
		}
	}
	for _, p := range c.service.ports {
		for i := range p.backends {
			if b := &p.backends[i]; b.round != c.t.round && !gone(b.row.State) {
				c.prepareGone(p, b)
			}
		}
	}
	return nil
}

// membersOf finds or begins the list of a port. Ports come in no order, and are few.
func (c *change) membersOf(key lb.PortKey) (*portMembers, error) {
	for i := range c.members {
		if c.members[i].port.key.Value() == key {
			return &c.members[i], nil
		}
	}
	p, err := c.port(key)
	if err != nil {
		return nil, err
	}
	c.members = append(c.members, portMembers{port: p, exposed: exposes(c.decision, key), all: make([]member, 0, max(len(p.backends), 8))})
	return &c.members[len(c.members)-1], nil
}

// exposes says whether clients off the node have a frontend of the port, other than by ClusterIPs that are routed to them.
func exposes(d *lb.Decision, port lb.PortKey) bool {
	return slices.ContainsFunc(d.Frontends, func(f lb.Frontend) bool { return f.Kind != lb.KindClusterIP && f.Port.Key() == port })
}

func (c *change) prepareBackend(m *portMembers, d *lb.Backend) error {
	where := endpointOf(d.Key.Address)
	place, twice := m.find(&where)
	if twice {
		return nil // decisions are canonical; the first one counts
	}
	node, err := c.place(nodeName, d.Node)
	if err != nil {
		return err
	}
	zone, err := c.place(zoneName, d.Zone)
	if err != nil {
		return err
	}
	to := backendValue(d, m.port.id, node, zone)
	if !m.exposed {
		to.ClusterOnly = 1
	}
	decided := to.State
	to.State = c.t.tunnels.stateOf(m.port, &to)
	b := m.published(&where)
	var id uint32
	if b == nil {
		if id, err = c.takeBackend(m.port, &to); err != nil {
			return err
		}
	} else {
		id, b.round, to.Generation = b.id, c.t.round, b.row.Generation
		to.ClusterOnly &= b.row.ClusterOnly // a connection by a frontend that has gone may go on
		if to != b.row {
			c.backends = append(c.backends, backendChange{port: m.port, id: id, from: b.row, to: to})
		}
	}
	if m.port.key.Value().Protocol == lb.UDP {
		c.decided = append(c.decided, decidedState{id, decided, to.State})
	}
	m.all = slices.Insert(m.all, place, member{where, id, d.Weight, d.Due()})
	return nil
}

// published is the port's entry of an endpoint; nil when there is none. Both lists are in order: mostly it is the next one.
func (m *portMembers) published(where *endpoint) *backend {
	all := m.port.backends
	if m.next < len(all) && *wire(&all[m.next].row) == *where {
		m.next++
		return &all[m.next-1]
	}
	at, found := m.port.find(where)
	if !found {
		m.next = at
		return nil
	}
	m.next = at + 1
	return &all[at]
}

// takeBackend reserves an id with its next generation, by which flows of its former owner are told apart.
func (c *change) takeBackend(p *port, to *backendRow) (uint32, error) {
	id, ok := c.t.backendIDs.take()
	if !ok {
		return 0, errFullTable{bpf.NearlbMapBackends, c.t.store.sizes.Backends}
	}
	to.Generation = read[backendRow](c.t.store.backends, id).Generation + 1
	if to.Generation == 0 {
		to.Generation = 1
	}
	c.backends = append(c.backends, backendChange{port: p, id: id, fresh: true, to: *to})
	return id, nil
}

// prepareGone keeps the ids of endpoints that the decision does not have: connections may name them, and the endpoints may return
// (requirement C6).
func (c *change) prepareGone(p *port, b *backend) {
	to := b.row
	to.State, to.Member = stateGone, 0
	if c.service.keepLost {
		to.State = stateGoneKept
	}
	c.backends = append(c.backends, backendChange{port: p, id: b.id, from: b.row, to: to})
}

// The words of a backend that change in place, as laid out in bpf/lib/types.h.
const (
	wordAddress    = int(unsafe.Offsetof(backendRow{}.Address) / 4)
	wordState      = int(unsafe.Offsetof(backendRow{}.Port) / 4)       // port, state, tier
	wordPlace      = int(unsafe.Offsetof(backendRow{}.Zone) / 4)       // zone, node
	wordMembership = int(unsafe.Offsetof(backendRow{}.Generation) / 4) // generation, member, cluster_only
	wordService    = int(unsafe.Offsetof(backendRow{}.Service) / 4)
)

// before writes what must be there before a record names the backend, in this order: of a new one all words, the state last; of an old one
// a usable state and the memberships that it keeps. Readers of old records see no backend that these do not list, and readers of new ones
// find all of theirs in service.
func (w *backendChange) before() (row backendRow, order []int) {
	if w.fresh {
		return w.to, orderFresh
	}
	row = w.to
	row.Member &= w.from.Member
	if !usable(w.to.State) {
		row.State, row.Tier = w.from.State, w.from.Tier
	}
	return row, orderBefore
}

// The orders of before and after.
var (
	orderFresh  = []int{wordAddress, wordAddress + 1, wordAddress + 2, wordAddress + 3, wordPlace, wordMembership, wordService, wordState}
	orderBefore = []int{wordPlace, wordMembership, wordState}
	orderAfter  = []int{wordMembership, wordState}
)

// after writes the rest once the new records are in force: a state that takes no more connections, new memberships.
func (w *backendChange) after(a *array) bool {
	return write(a, w.id, w.to, orderAfter...)
}
