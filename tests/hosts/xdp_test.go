// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Every client and frontend works with the program at XDP, in the driver and before the stack, and what goes on through SNAT leaves from
// there: on links that complete checksums. Packets whose checksum is left to the other end are TC's.
func TestConnectionsThroughSNATGoOnAtXDP(t *testing.T) {
	for name, o := range map[string]options{
		"native":            {lab: lab.Options{XDP: true}, agent: []string{"--xdp", "native"}},
		"generic":           {lab: lab.Options{XDP: true}, agent: []string{"--xdp", "generic"}},
		"partial checksums": {agent: []string{"--xdp", "generic"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, o)
			s.part("every client and frontend and backend", checkMatrix)
			s.part("big transfers and datagrams from off the node arrive whole", checkContentFromOutside)
			taken := s.atXDP()
			if o.lab.XDP && (taken["translate established"] == 0 || taken["translate reply"] == 0) {
				t.Errorf("XDP took nothing: %v", taken)
			}
		})
	}
}

// atXDP is what the program at XDP of the first node counted.
func (s *stage) atXDP() map[string]uint64 {
	s.t.Helper()
	taken := map[string]uint64{}
	s.read(0, func(r *maps.Reader) error {
		for row, err := range r.Verdicts() {
			if err != nil {
				return err
			}
			if row.Hook == "xdp" {
				taken[row.Verdict+" "+row.Reason] += row.Packets
			}
		}
		return nil
	})
	return taken
}
