// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Every client and frontend works with the program at XDP, in the driver and before the stack, and what opens through SNAT and goes on leaves
// from there: on links that complete checksums. Packets whose checksum is left to the other end are TC's.
func TestConnectionsThroughSNATOpenAndGoOnAtXDP(t *testing.T) {
	for name, o := range map[string]options{
		"native":            {lab: lab.Options{XDP: true}, agent: []string{"--xdp", "native"}},
		"generic":           {alone: true, lab: lab.Options{XDP: true}, agent: []string{"--xdp", "generic"}},
		"partial checksums": {alone: true, agent: []string{"--xdp", "generic"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, o)
			s.part("every client and frontend and backend", checkMatrix)
			s.part("big transfers and datagrams from off the node arrive whole", checkContentFromOutside)
			if o.lab.XDP {
				s.wantAtXDP()
			}
		})
	}
}

// A connection through the tunnel opens and goes on at XDP, in the driver: client packets enter it there, and answers leave it for the client. On the
// backend's node they are taken out of it and merged: what a client sends comes to from_net in more than the network's packets. What the tunnel
// has to do is done all the same.
func TestConnectionsThroughTheTunnelOpenAndGoOnAtXDP(t *testing.T) {
	s := newStage(t, options{lab: lab.Options{XDP: true}, agent: []string{"--off-node", "carry", "--xdp", "native"}, carries: true})
	s.awaitCarried()
	s.part("every client and frontend and backend", checkMatrix)
	s.part("big transfers from off the node arrive whole", checkTransfersFromOutside)
	s.part("a client's segments are merged", checkMerged)
	s.wantAtXDP()
}

func checkMerged(t *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.far)...)
	for _, six := range []bool{false, true} {
		if !s.carries(six) {
			continue
		}
		packets, bytes := s.translated(1)
		const length = 16 * megabyte
		if err := s.by(of, loadBalancer).dial(s.outside, way{"tcp", six}).Put(1, length); err != nil {
			t.Fatal(err)
		}
		morePackets, moreBytes := s.translated(1)
		if packets, bytes = morePackets-packets, moreBytes-bytes; bytes < length || bytes < 2*1500*packets {
			t.Errorf("IPv6 %t: %d bytes in %d packets", six, bytes, packets)
		}
	}
}

// translated is what from_net of a node translated of connections that go on.
func (s *stage) translated(node int) (packets, bytes uint64) {
	s.t.Helper()
	s.read(node, func(r *maps.Reader) error {
		for row, err := range r.Verdicts() {
			if err != nil {
				return err
			}
			if row.Hook == "from_net" && row.Verdict == "translate" && row.Reason == "established" {
				packets, bytes = packets+row.Packets, bytes+row.Bytes
			}
		}
		return nil
	})
	return packets, bytes
}

// wantAtXDP wants connections to have opened and gone on at XDP, both ways.
func (s *stage) wantAtXDP() {
	s.t.Helper()
	taken := s.atXDP()
	for _, what := range []string{"translate balance", "translate established", "translate reply"} {
		if taken[what] == 0 {
			s.t.Errorf("XDP counted no %s: %v", what, taken)
		}
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
