// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// backendChange is what one entry of the backends table becomes.
type backendChange struct {
	b          *backend
	fresh      bool
	wrote      bool
	to         backendRow
	node, zone *named
}

// prepareBackends compares every endpoint with what is published.
func (c *change) prepareBackends() error {
	ports := map[lb.PortKey]*port{}
	c.t.round++
	for i := range c.decision.Backends {
		d := &c.decision.Backends[i]
		p := ports[d.Key.Port]
		if p == nil {
			var err error
			if p, err = c.port(lb.PortName{Service: c.decision.Service, Port: d.Key.Port.Name, Protocol: d.Key.Port.Protocol}); err != nil {
				return err
			}
			ports[d.Key.Port] = p
		}
		b, err := c.prepareBackend(p, d)
		if err != nil {
			return err
		}
		b.round = c.t.round
	}
	for _, p := range c.service.ports {
		for _, b := range p.backends {
			if b.round != c.t.round && b.value.State != stateGone {
				c.prepareGone(b)
			}
		}
	}
	return nil
}

func (c *change) prepareBackend(p *port, d *lb.Backend) (*backend, error) {
	where := endpointOf(d.Key.Address)
	node, err := c.optionalName(nodeName, d.Node)
	if err != nil {
		return nil, err
	}
	zone, err := c.optionalName(zoneName, d.Zone)
	if err != nil {
		return nil, err
	}
	to := backendValue(d, p.named.id, node.number(), zone.number())
	b := p.backends[where]
	if b == nil {
		b = c.planned[p][where]
	}
	if b != nil {
		to.Generation = b.value.Generation
		if to != b.value {
			c.backends = append(c.backends, &backendChange{b: b, to: to, node: node, zone: zone})
		}
		return b, nil
	}
	if b, err = c.takeBackend(p, &to); err != nil {
		return nil, err
	}
	if c.planned[p] == nil {
		c.planned[p] = map[endpoint]*backend{}
	}
	c.planned[p][where] = b
	c.backends = append(c.backends, &backendChange{b: b, fresh: true, to: to, node: node, zone: zone})
	return b, nil
}

func (c *change) optionalName(kind uint32, text string) (*named, error) {
	if text == "" {
		return nil, nil
	}
	return c.name(kind, text)
}

// takeBackend reserves an id with its next generation, by which flows of its former owner are told apart.
func (c *change) takeBackend(p *port, to *backendRow) (*backend, error) {
	id, ok := c.t.backendIDs.take()
	if !ok {
		return nil, errFullTable{bpf.NearlbMapBackends, c.t.store.sizes.Backends}
	}
	c.undo = append(c.undo, func() { c.t.backendIDs.give(id) })
	to.Generation = read[backendRow](c.t.store.backends, id).Generation + 1
	if to.Generation == 0 {
		to.Generation = 1
	}
	return &backend{id: id, port: p, value: *to}, nil
}

// prepareGone keeps the id for as long as connections name it, and for the endpoint's return (requirement C6).
func (c *change) prepareGone(b *backend) {
	to := b.value
	to.State, to.Member = stateGone, 0
	c.backends = append(c.backends, &backendChange{b: b, to: to, node: b.node, zone: b.zone})
}

// The words of a backend that change in place, as laid out in bpf/lib/types.h.
const (
	wordAddress    = int(unsafe.Offsetof(backendRow{}.Address) / 4)
	wordState      = int(unsafe.Offsetof(backendRow{}.Port) / 4)       // port, state, tier
	wordPlace      = int(unsafe.Offsetof(backendRow{}.Zone) / 4)       // zone, node
	wordMembership = int(unsafe.Offsetof(backendRow{}.Generation) / 4) // generation, member
	wordService    = int(unsafe.Offsetof(backendRow{}.Service) / 4)
)

// before is what must be there before any record names the backend, and the order in which its words are written: all of a
// new one, its state last; of an old one a state that takes connections, and of its memberships those that it keeps. So no
// reader of the old records sees a backend that these do not list, and a reader of the new ones finds all of theirs in service.
func (w *backendChange) before() (row backendRow, order []int) {
	if w.fresh {
		return w.to, []int{wordAddress, wordAddress + 1, wordAddress + 2, wordAddress + 3, wordPlace, wordMembership, wordService, wordState}
	}
	row = w.to
	row.Member &= w.b.value.Member
	if !usable(w.to.State) {
		row.State, row.Tier = w.b.value.State, w.b.value.Tier
	}
	return row, []int{wordPlace, wordMembership, wordState}
}

// after writes the rest once the new records are in force: a state that takes no more connections, new memberships.
func (w *backendChange) after(a *array) bool {
	return write(a, w.b.id, w.to, wordMembership, wordState)
}

// register makes the mirror agree with what was written: a commit may end after any step, and an endpoint that records name
// must not pass for a removed one.
func (t *Tables) register(w *backendChange, written backendRow) {
	b := w.b
	for _, n := range []*named{w.node, w.zone} {
		if n != nil {
			n.refs++
		}
	}
	b.dropNames()
	b.node, b.zone, b.value = w.node, w.zone, written
	b.port.backends[b.endpoint()] = b
	delete(t.gone, b.id)
	if b.value.State == stateGone {
		b.since = t.now()
		t.gone[b.id] = b
	}
}

func (b *backend) dropNames() {
	for _, n := range []*named{b.node, b.zone} {
		if n != nil {
			n.refs--
		}
	}
}
