// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// EndpointCount is how many backends a service port has.
type EndpointCount struct {
	Ready int // that new connections go to, where a tier lists them
	All   int // that are not gone
}

// Endpoints counts the backends of each service port that has a name, idle ones too, as of now. It reads a word or two of each backend's
// memory, and makes no row. There must have been a look.
func (m *Meter) Endpoints() map[lb.PortName]EndpointCount {
	counts := make([]EndpointCount, len(m.ports))
	for id := uint32(1); id < m.of.backends.size; id++ {
		state := uint8(m.of.backends.load(id, wordState) >> 16)
		if state == stateFree || state == stateGone {
			continue
		}
		if port := m.of.backends.load(id, wordService); int(port) < len(counts) {
			counts[port].All++
			if state == stateActive || state == uint8(bpf.NearlbBackendStateBACKEND_RESPONDER) {
				counts[port].Ready++
			}
		}
	}
	all := make(map[lb.PortName]EndpointCount, len(m.names.portIDs))
	for _, id := range m.names.portIDs {
		all[m.names.ports[id]] = counts[id]
	}
	return all
}
