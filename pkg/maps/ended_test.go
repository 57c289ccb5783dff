// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// ended notes what it is told.
type ended struct {
	backends []TrafficRow
	ports    []ServiceTrafficRow
}

func (e *ended) BackendEnded(_ lb.PortName, row TrafficRow) { e.backends = append(e.backends, row) }
func (e *ended) PortEnded(row ServiceTrafficRow)            { e.ports = append(e.ports, row) }

func TestLastCountsAreToldBeforeAnIDIsFree(t *testing.T) {
	b := newTables(t, tinySizes())
	var told ended
	b.TellEnds(&told)
	b.apply(t, made(1, active(1, 2)...))
	id := b.ids(t)["10.244.0.1:8080 active"]
	b.store.backendCounters.(*memoryCounters[bpf.NearlbBackendCounter]).values[id] = bpf.NearlbBackendCounter{Connections: 3, BytesTo: 100}
	b.store.serviceCounters.(*memoryCounters[bpf.NearlbServiceCounter]).values[1] = bpf.NearlbServiceCounter{Connections: 4}
	b.apply(t, made(1, active(2)...))
	if len(told.backends) != 0 {
		t.Errorf("told while connections may go on: %+v", told.backends)
	}
	b.later()
	if len(told.backends) != 1 || told.backends[0].ID != id || told.backends[0].Connections != 3 || told.backends[0].BytesTo != 100 || told.backends[0].Service != 1 {
		t.Errorf("told %+v", told.backends)
	}
	if _, err := b.Remove(serviceNumber(1)); err != nil {
		t.Fatal(err)
	}
	b.later()
	b.later()
	if len(told.backends) != 1 || len(told.ports) != 1 || told.ports[0].Connections != 4 || told.ports[0].Port.Service != serviceNumber(1) {
		t.Errorf("told %+v, %+v", told.backends, told.ports)
	}
}
