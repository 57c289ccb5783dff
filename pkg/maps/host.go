// SPDX-License-Identifier: Apache-2.0

package maps

import "github.com/nearlb/nearlb/pkg/bpf"

// hostSearch is a walk of the flow table for connections of the host's own sockets that went to another backend (bpf/lib/host.h).
type hostSearch struct {
	set uint32 // where to go on
}

// ofHost is flow_of_host of bpf/lib/flow.h.
func ofHost(f *bpf.NearlbFlow) bool { return f.Flags&flowSNAT != 0 && f.Side == sideInternal }

// leaveHost has the programs look for connections of the host no more when there is none, a piece of the flow table in each call. It returns
// true as long as the walk goes on. A connection that begins meanwhile says so in the same word, whose change fails then (ROUTED_HOST_BEGAN).
func (t *Tables) leaveHost() (more bool) {
	s := t.store
	if read[bpf.NearlbSettings](s.settings, 0).Routed&routedHost == 0 {
		t.hosts = nil
		return false
	}
	if t.hosts == nil {
		writeModes(s.settings, func(m *modes) { m.routed &^= routedBegan })
		t.hosts = &hostSearch{}
	}
	found, more := t.hosts.some(s, newExpiry(s.clock), t.piece.sets)
	if more && !found {
		return true
	}
	t.hosts = nil
	if !found {
		writeModes(s.settings, func(m *modes) {
			if m.routed&routedBegan == 0 {
				m.routed &^= routedHost
			}
		})
	}
	return false
}

// some looks at the next sets of the table, and tells whether there are more.
func (h *hostSearch) some(s *store, e expiry, sets uint32) (found, more bool) {
	for place := range s.walk(&h.set, sets) {
		f, ok := readFlow(s.flows, place)
		if ok && f.Word&flowPhase == flowLive && ofHost(&f) && !e.expired(&f) {
			return true, false
		}
	}
	return false, h.set < s.flows.size
}
