// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// CVE-2020-8554: a Service names the address of a host outside, and one that the node has on a device for it.
func TestExternalIPsReachWhatTheirPolicyLets(t *testing.T) {
	for policy, captured := range map[string]bool{"allow": true, "local": false, "deny": false} {
		problems := map[string]int{"allow": 0, "local": 2, "deny": 4}[policy] // external IPs that are refused
		t.Run(policy, func(t *testing.T) {
			s := newStage(t, options{agent: []string{"--external-ips", policy}})
			if _, err := s.outside.Serve(servicePort); err != nil {
				t.Fatal(err)
			}
			own := []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:1::77")}
			if err := s.here.Own(own...); err != nil {
				t.Fatal(err)
			}
			of := s.service(1)
			of.ExternalIPs = append(own, s.outside.Address(false), s.outside.Address(true))
			s.serve(of, ready(s.near)...)
			answers := map[bool]string{true: s.near.Name, false: s.outside.Name}[captured]
			for _, w := range ways() {
				s.checkAnswerOf(netip.AddrPortFrom(s.outside.Address(w.six), servicePort), w, answers)
				if policy != "deny" {
					s.checkAnswerOf(netip.AddrPortFrom(map[bool]netip.Addr{false: own[0], true: own[1]}[w.six], servicePort), w, s.near.Name)
				}
			}
			s.await(fmt.Sprintf("the status names %d external IPs", problems), func() bool { return s.problems(0, "spec.externalIPs") == problems })
		})
	}
}

// checkAnswerOf is who answers the stage's pod there, as soon as the address is known to the agent.
func (s *stage) checkAnswerOf(at netip.AddrPort, w way, want string) {
	s.t.Helper()
	var answer lab.Answer
	var err error
	s.await("the pod asks "+at.String()+" over "+w.String()+" and gets "+want, func() bool {
		answer, err = s.pod.Ask(s.t.Context(), w.network, at, lab.DialOptions{})
		return err == nil && answer.Server == want
	})
}

// problems is how many problems of a field the status of a node's agent has; -1 without a status.
func (c *cluster) problems(node int, field string) (n int) {
	status, err := agent.ReadStatus(c.LockDir(), c.nodes[node].PinPath())
	if err != nil {
		return -1
	}
	for _, p := range status.Problems {
		if p.Field == field {
			n++
		}
	}
	return n
}
