// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// The tunnel is turned off by the flags of agents that start, one after the other: what goes through it goes on, new connections go by SNAT, and
// turned on again they go through it.
func TestATunnelThatIsTurnedOffCutsNoConnection(t *testing.T) {
	s := newStage(t, options{agent: []string{"--off-node", "carry"}, carries: true})
	s.awaitCarried()
	of := s.next()
	s.serve(of, ready(s.far)...)
	var open []*lab.Conn
	goesOn := func(when string) {
		t.Helper()
		for _, conn := range open {
			if answer, err := conn.Who(); err != nil || answer.Client != conn.Local() {
				t.Errorf("%s: the server sees %s, and not %s; %v", when, answer.Client, conn.Local(), err)
			}
		}
	}
	for _, six := range []bool{false, true} {
		open = append(open, s.dial(s.outside, of, loadBalancer, way{"tcp", six}))
	}
	goesOn("before")
	turn := func(way string) {
		t.Helper()
		s.cluster.options.agent = []string{"--off-node", way}
		for node := range s.agents {
			if err := s.agents[node].Stop(); err != nil {
				t.Fatal(err)
			}
			s.agents[node] = s.startAgent(node)
			s.awaitServing(node)
			goesOn(way)
		}
	}
	turn("snat")
	for node := range s.agents {
		s.await("the tunnel is leaving", func() bool {
			status, err := agent.ReadStatus(s.LockDir(), s.cluster.nodes[node].PinPath())
			return err == nil && status.Tunnel != nil && status.Tunnel.Leaving
		})
	}
	for _, six := range []bool{false, true} {
		conn := s.dial(s.outside, of, loadBalancer, way{"tcp", six})
		if answer, err := conn.Who(); err != nil || answer.Client == conn.Local() {
			t.Errorf("a new connection: the server sees %s; %v", answer.Client, err)
		}
	}
	goesOn("off")
	turn("carry")
	s.awaitCarried()
	goesOn("on again")
}
