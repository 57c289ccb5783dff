// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// EndpointCount is how many backends a service port has.
type EndpointCount struct {
	Ready   int // that new connections go to, where a tier lists them
	All     int // that are not gone
	Ejected int // of the ready ones, those that new connections leave out
}

// Endpoints counts the backends of each service port that has a name, idle ones too, as of now. It reads a word or two of each backend's
// memory, and makes no row. There must have been a look.
func (m *Meter) Endpoints() map[lb.PortName]EndpointCount {
	counts := make([]EndpointCount, len(m.ports))
	for id := uint32(1); id < m.of.backends.size; id++ {
		state := uint8(m.of.backends.load(id, wordState) >> 16)
		if state == stateFree || gone(state) {
			continue
		}
		if port := m.of.backends.load(id, wordService); int(port) < len(counts) {
			counts[port].All++
			if state == stateActive || state == uint8(bpf.NearlbBackendStateBACKEND_RESPONDER) {
				counts[port].Ready++
				if m.of.ejected(id) {
					counts[port].Ejected++
				}
			}
		}
	}
	all := make(map[lb.PortName]EndpointCount, len(m.names.portIDs))
	for _, id := range m.names.portIDs {
		all[m.names.ports[id]] = counts[id]
	}
	return all
}

// ejected says whether new connections leave a backend out.
func (s *store) ejected(id uint32) bool {
	if !s.health.in(id, 1) || s.until(id) == 0 {
		return false
	}
	h, b := read[healthRow](s.health, id), read[backendRow](s.backends, id)
	return leftOutBy(&h, &b)
}

// Refusing has the service ports whose ClusterIP, of a family, sends connections from this node to no backend, idle ones too, as of now. It
// makes no rows, and passes over entries that change while it reads. There must have been a look.
func (m *Meter) Refusing() (map[lb.PortName]bool, error) {
	s := m.of.again()
	all := map[lb.PortName]bool{}
	for key, number := range s.frontends.all() {
		if isAddressKey(key) || number == 0 || number >= s.records.size {
			continue
		}
		record := read[recordValue](s.records, number)
		side := &record.Sides[bpf.NearlbSideIndexSIDE_INTERNAL]
		if record.Key == key && kindName(record.Kind) == lb.KindClusterIP && bpf.ActionName(side.Action) != string(lb.Balance) {
			all[m.names.port(s, record.Service)] = true
		}
	}
	if err := s.frontends.err(); err != nil {
		return nil, fmt.Errorf("read table frontends: %w", err)
	}
	return all, nil
}
