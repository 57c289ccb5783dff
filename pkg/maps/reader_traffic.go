// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"iter"

	"github.com/nearlb/nearlb/pkg/lb"
)

// TrafficRow is what the counters of one backend id say now. They begin at zero with each generation.
type TrafficRow struct {
	ID          uint32
	Generation  uint16
	Service     uint32 // id of the service port: see ServiceTraffic
	Node        string // "" unknown
	Zone        string // "" unknown
	Active      bool   // it takes new connections, where a tier lists it
	Connections uint64
	PacketsTo   uint64 // from clients to the backend
	BytesTo     uint64
	PacketsFrom uint64
	BytesFrom   uint64
}

// Traffic reads the counters of all used backend ids, by id. It is Backends for those who ask often: no name of a Service.
func (r *Reader) Traffic() iter.Seq2[TrafficRow, error] {
	return func(yield func(TrafficRow, error) bool) {
		s := r.store.again()
		ids, rows := []uint32{}, []backendRow{}
		v := &view{store: s}
		for id := uint32(1); id < s.backends.size; id++ {
			if b, used := v.backend(id); used {
				ids, rows = append(ids, id), append(rows, b)
			}
		}
		names := newNames(s)
		i := 0
		for c, err := range s.backendCounters.readEach(ids) {
			id, b := ids[i], &rows[i]
			i++
			if err != nil {
				err = fmt.Errorf("read counters of backend %s: %w", AddrPortOf(*b), err)
			}
			row := TrafficRow{ID: id, Generation: b.Generation, Service: b.Service, Active: b.State == stateActive, Connections: c.Connections,
				PacketsTo: c.PacketsTo, BytesTo: c.BytesTo, PacketsFrom: c.PacketsFrom, BytesFrom: c.BytesFrom}
			if err == nil {
				row.Node, row.Zone, err = names.place(b)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// placeNames remembers the names of nodes and zones, which many backends share.
type placeNames struct {
	store *store
	texts map[nameKey]string
}

func newNames(s *store) *placeNames { return &placeNames{s, map[nameKey]string{}} }

func (n *placeNames) place(b *backendRow) (node, zone string, err error) {
	if node, err = n.text(nameKey{Kind: nodeName, Id: uint32(b.Node)}); err != nil {
		return "", "", err
	}
	zone, err = n.text(nameKey{Kind: zoneName, Id: uint32(b.Zone)})
	return node, zone, err
}

func (n *placeNames) text(key nameKey) (string, error) {
	text, known := n.texts[key]
	if known || key.Id == 0 {
		return text, nil
	}
	text, _, err := n.store.names.get(key)
	if err != nil {
		return "", fmt.Errorf("read name %d of kind %d: %w", key.Id, key.Kind, err)
	}
	n.texts[key] = text
	return text, nil
}

// ServiceTrafficRow is what the counters of one service port say now. They begin at zero when the id goes to another one.
type ServiceTrafficRow struct {
	ID          uint32
	Port        lb.PortName
	Connections uint64
	Rejected    uint64 // packets
	Dropped     uint64 // packets
}

// ServiceTraffic reads the counters of all service ports, in no order.
func (r *Reader) ServiceTraffic() iter.Seq2[ServiceTrafficRow, error] {
	return func(yield func(ServiceTrafficRow, error) bool) {
		s := r.store.again()
		ids, ports := s.servicePorts()
		if err := s.names.err(); err != nil {
			yield(ServiceTrafficRow{}, fmt.Errorf("read table names: %w", err))
			return
		}
		i := 0
		for c, err := range s.serviceCounters.readEach(ids) {
			row := ServiceTrafficRow{ID: ids[i], Port: ports[i], Connections: c.Connections, Rejected: c.Rejected, Dropped: c.Dropped}
			if err != nil {
				err = fmt.Errorf("read counters of %s: %w", ports[i], err)
			}
			i++
			if !yield(row, err) {
				return
			}
		}
	}
}

// servicePorts are those that have a name that can be read.
func (s *store) servicePorts() (ids []uint32, ports []lb.PortName) {
	for key, text := range s.names.all() {
		if key.Kind != servicePortName || key.Id >= s.sizes.Services {
			continue
		}
		if port, err := parsePortName(text); err == nil {
			ids, ports = append(ids, key.Id), append(ports, port)
		}
	}
	return ids, ports
}
