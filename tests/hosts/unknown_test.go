// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/maps"
)

// A Service whose only backend is on a node whose agent is dead, and does not know of it: clients off the nodes reach it at once, by SNAT.
func TestABackendOfANodeWithoutAnAgentIsReachedPastTheTunnel(t *testing.T) {
	for _, off := range []string{"carry", "dsr"} {
		t.Run(off, func(t *testing.T) {
			s := onStage(t, options{agent: []string{"--off-node", off}, carries: true, direct: off == "dsr"})
			s.awaitCarried()
			if err := s.agents[1].Kill(); err != nil {
				t.Fatal(err)
			}
			of := s.next()
			of.publish(ready(s.far)...)
			s.await("the first node has it", func() bool {
				missing := of.frontendsOn(s.here)
				s.read(0, func(r *maps.Reader) error { return of.strike(missing, r) })
				return len(missing) == 0
			})
			s.options.carries = false
			for _, w := range ways() {
				conn := s.dial(s.outside, of, loadBalancer, w)
				s.checkAnswer(s.outside, conn, s.far)
				if w.network == "tcp" {
					if n := retransmits(t, conn); n > 0 {
						t.Errorf("over %s the client had to send %d packets again", w, n)
					}
				}
			}
			if back, on := s.verdicts(1)["translate_returned"], s.verdicts(0)["translate_uncarried"]; back == 0 || on == 0 {
				t.Errorf("%d packets came back, %d connections went on", back, on)
			}
		})
	}
}
