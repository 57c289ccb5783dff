// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

func TestTrafficRowsAreThoseOfUsedBackendIds(t *testing.T) {
	b := published(t)
	counters := b.store.backendCounters.(*memoryCounters[bpf.NearlbBackendCounter]).values
	counters[1] = bpf.NearlbBackendCounter{Connections: 5, PacketsTo: 6, BytesTo: 7, PacketsFrom: 8, BytesFrom: 9}
	counters[4] = bpf.NearlbBackendCounter{Connections: 1}
	compare(t, collect(t, b.Reader().Traffic()), []TrafficRow{
		{ID: 1, Generation: 1, Service: 1, Node: "n1", Zone: "z1", Active: true, Connections: 5, PacketsTo: 6, BytesTo: 7, PacketsFrom: 8, BytesFrom: 9},
		{ID: 2, Generation: 1, Service: 1, Node: "n2", Zone: "z0"}, {ID: 3, Generation: 1, Service: 1, Node: "n3", Zone: "z1"},
	})
}

func TestServiceTrafficIsOfEveryServicePort(t *testing.T) {
	b := published(t)
	b.store.serviceCounters.(*memoryCounters[bpf.NearlbServiceCounter]).values[1] = bpf.NearlbServiceCounter{Connections: 5, Rejected: 3, Dropped: 2}
	port := lb.PortName{Service: serviceNumber(1), Port: "http", Protocol: lb.TCP}
	compare(t, collect(t, b.Reader().ServiceTraffic()), []ServiceTrafficRow{{ID: 1, Port: port, Connections: 5, Rejected: 3, Dropped: 2}})
}

// Counters that are read in batches are those that are read one by one.
func TestTheKernelsCountersAreTheSameInBatches(t *testing.T) {
	privileged.Require(t)
	m := privateMaps(t, tinySizes())
	defer m.Close()
	processors := len(mustRead(t, m))
	table := &kernelCounters[bpf.NearlbBackendCounter]{table: m.BackendCounters}
	size := m.BackendCounters.MaxEntries()
	for id := range size {
		each := make([]bpf.NearlbBackendCounter, processors)
		each[id%uint32(processors)] = bpf.NearlbBackendCounter{Connections: uint64(id), BytesFrom: 10 * uint64(id)}
		if err := m.BackendCounters.Put(id, each); err != nil {
			t.Fatal(err)
		}
	}
	for _, last := range []uint32{3, size / 2, size} {
		ids := []uint32{}
		for id := uint32(1); id < last; id++ {
			ids = append(ids, id)
		}
		compare(t, collect(t, table.readEach(ids)), collect(t, oneByOne(table, ids)))
		if last < batchFrom {
			continue
		}
		if sums, err := table.first(last); err != nil || sums[last-1].Connections != uint64(last-1) {
			t.Errorf("in batches %v, %v", sums[last-1], err)
		}
	}
}

// mustRead is one entry, for each processor.
func mustRead(t *testing.T, m *bpf.NearlbMaps) (each []bpf.NearlbBackendCounter) {
	t.Helper()
	if err := m.BackendCounters.Lookup(uint32(0), &each); err != nil {
		t.Fatal(err)
	}
	return each
}
