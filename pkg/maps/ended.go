// SPDX-License-Identifier: Apache-2.0

package maps

import "github.com/nearlb/nearlb/pkg/lb"

// Ends adds up counters over the owners of an id: counters begin at zero with each owner. Its methods are called with the tables
// locked.
type Ends interface {
	BackendEnded(lb.PortName, TrafficRow) // the last counts of a backend id before it is free
	PortEnded(ServiceTrafficRow)          // likewise, of the id of a service port
}

// TellEnds sets who is told the last counts of an id before another owner gets it.
func (t *Tables) TellEnds(to Ends) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends = to
}

// backendEnds tells the last counts of a backend. Counts that cannot be read are lost: they are for people.
func (t *Tables) backendEnds(id uint32, g *goneBackend) {
	if t.ends == nil || g.port == nil {
		return
	}
	c, err := t.store.backendCounters.read(id)
	if err != nil || c.Connections+c.PacketsTo+c.PacketsFrom == 0 {
		return
	}
	row := TrafficRow{ID: id, Generation: g.row.Generation, Service: g.row.Service, Connections: c.Connections,
		PacketsTo: c.PacketsTo, BytesTo: c.BytesTo, PacketsFrom: c.PacketsFrom, BytesFrom: c.BytesFrom}
	places := t.names.of(&g.row)
	row.Node, row.Zone = places[0].name(), places[1].name()
	t.ends.BackendEnded(g.port.name(), row)
}

// portEnds tells the last counts of a service port.
func (t *Tables) portEnds(p *port) {
	if t.ends == nil {
		return
	}
	c, err := t.store.serviceCounters.read(p.id)
	if err != nil || c.Connections+c.Rejected+c.Dropped == 0 {
		return
	}
	t.ends.PortEnded(ServiceTrafficRow{ID: p.id, Port: p.name(), Connections: c.Connections, Rejected: c.Rejected, Dropped: c.Dropped})
}
