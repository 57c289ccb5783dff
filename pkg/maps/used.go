// SPDX-License-Identifier: Apache-2.0

package maps

import "github.com/nearlb/nearlb/pkg/bpf"

// Used counts what this publisher has taken of each table, at no cost; what it replaced in the last seconds is in it. Of tables
// that programs write it knows nothing.
func (t *Tables) Used() bpf.Sizes {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bpf.Sizes{
		Frontends:    uint32(len(t.frontends)),
		Records:      uint32(t.recordIDs.used),
		Slots:        t.store.sizes.Slots - t.slots.left,
		Backends:     uint32(t.backendIDs.used),
		SourceRanges: uint32(t.rangeCount),
		Services:     uint32(t.names.ids[servicePortName].used),
		Names:        uint32(t.names.count),
	}
}

// flowSample is how many sets FlowFill looks at.
const flowSample = 512

// FlowFill is the share of the flow table's places that connections have which did not end, as a sample of its sets shows it.
func (t *Tables) FlowFill() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.store
	expiry := newExpiry(s.clock)
	count := min(s.flows.size, flowSample)
	step := s.flows.size / count
	used := 0
	for i := range count {
		for way := range flowWays {
			if f, ok := readFlow(s.flows, flowPlace(i*step, way)); ok && !expiry.expired(&f) && !closed(f.Seen) {
				used++
			}
		}
	}
	return float64(used) / float64(int(count)*flowWays)
}
