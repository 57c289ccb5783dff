// SPDX-License-Identifier: Apache-2.0

package maps

import "github.com/nearlb/nearlb/pkg/lb"

// settleStates is for a decision that does not fit: the records and slots in force stay, and of their backends those that do
// not serve any more take no new connections, so that these go to the others. It gives the number of entries written.
func (t *Tables) settleStates(d *lb.Decision) (written int) {
	s := t.services[d.Service]
	if s == nil {
		return 0
	}
	states := map[lb.PortName]map[endpoint]uint8{}
	for i := range d.Backends {
		b := &d.Backends[i]
		name := lb.PortName{Service: d.Service, Port: b.Key.Port.Name, Protocol: b.Key.Port.Protocol}
		if states[name] == nil {
			states[name] = map[endpoint]uint8{}
		}
		states[name][endpointOf(b.Key.Address)] = stateOf(b.State)
	}
	for name, p := range s.ports {
		written += t.settlePort(p, states[name])
	}
	return written
}

// settlePort leaves a port alone that has nothing in force that still serves: nobody would gain.
func (t *Tables) settlePort(p *port, states map[endpoint]uint8) (written int) {
	serves := false
	for where, b := range p.backends {
		serves = serves || b.value.Member != 0 && usable(states[where])
	}
	if !serves {
		return 0
	}
	for where, b := range p.backends {
		state, found := states[where]
		if !found {
			state = stateQuiet
		}
		if b.value.State == stateGone || b.value.State == state {
			continue
		}
		b.value.State = state
		write(t.store.backends, b.id, b.value, wordState)
		written++
	}
	return written
}
