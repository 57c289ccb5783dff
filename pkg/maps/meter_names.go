// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// meterNames are the names of ids. They are read again from time to time, and that of an id that was not known or began anew at once: to
// read all at each look would be most of a look's cost.
type meterNames struct {
	read    time.Time
	ports   []lb.PortName // by id
	portIDs []uint32      // of those that have a name
	places  *placeNames
}

const namesLast = 10 * time.Second

func (n *meterNames) follow(s *store, now time.Time) error {
	if n.ports != nil && now.Sub(n.read) < namesLast && now.Sub(n.read) >= 0 {
		return nil
	}
	ids, ports := s.servicePorts()
	if err := s.names.err(); err != nil {
		return fmt.Errorf("read table names: %w", err)
	}
	*n = meterNames{read: now, ports: make([]lb.PortName, s.sizes.Services), portIDs: ids, places: newNames(s)}
	for i, id := range ids {
		n.ports[id] = ports[i]
	}
	slices.Sort(ids)
	return nil
}

// forget has the names read again at the next look.
func (n *meterNames) forget() { n.read = time.Time{} }

// port names a service port; one that has no name has its number.
func (n *meterNames) port(s *store, id uint32) lb.PortName {
	if int(id) < len(n.ports) && n.ports[id] != (lb.PortName{}) {
		return n.ports[id]
	}
	text, _, err := s.names.get(nameKey{Kind: servicePortName, Id: id})
	name, parsed := parsePortName(text)
	if err != nil || parsed != nil {
		return lb.PortName{Service: lb.ServiceName{Namespace: "?", Name: fmt.Sprint(id)}}
	}
	if int(id) < len(n.ports) {
		n.ports[id], n.portIDs = name, append(n.portIDs, id)
	}
	return name
}

// place names a backend's node and zone; "" where they cannot be read.
func (n *meterNames) place(s *store, b *backendRow) (node, zone string) {
	n.places.store = s
	node, zone, _ = n.places.place(b)
	return node, zone
}
