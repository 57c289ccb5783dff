// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// settleStates takes new connections from backends that do not serve any more, where a decision does not fit: records and slots in
// force stay, and their other backends get these connections. It returns the number of entries written.
func (t *Tables) settleStates(s *service, d *lb.Decision) (written int) {
	states := map[lb.PortKey]map[endpoint]uint8{}
	for i := range d.Backends {
		b := &d.Backends[i]
		if states[b.Key.Port] == nil {
			states[b.Key.Port] = map[endpoint]uint8{}
		}
		states[b.Key.Port][endpointOf(b.Key.Address)] = stateOf(b.State)
	}
	for _, p := range s.ports {
		written += t.settlePort(p, states[p.key.Value()])
	}
	return written
}

// settlePort leaves a port alone that has nothing in force that still serves: nobody would gain.
func (t *Tables) settlePort(p *port, states map[endpoint]uint8) (written int) {
	serves := slices.ContainsFunc(p.backends, func(b backend) bool { return b.row.Member != 0 && usable(states[*wire(&b.row)]) })
	if !serves {
		return 0
	}
	for i := range p.backends {
		b := &p.backends[i]
		state, found := states[*wire(&b.row)]
		if !found {
			state = stateQuiet
		}
		if gone(b.row.State) {
			continue
		}
		to := b.row
		to.State = state
		to.State = t.tunnels.stateOf(p, &to)
		t.tunnels.note(b.id, state, to.State)
		if to == b.row {
			continue
		}
		b.row = to
		write(t.store.backends, b.id, b.row, wordState)
		written++
	}
	return written
}
