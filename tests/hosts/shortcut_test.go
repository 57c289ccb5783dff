// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// forwarded counts what the stack of a node forwards for pods and clients, but ICMP.
const forwarded = `
table inet seen {
	counter forwarded { }
	chain forward {
		type filter hook forward priority filter;
		meta l4proto { tcp, udp } counter name forwarded
	}
}
`

// --shortcut=on: what must work works, and once neighbours and MTUs are known the stack forwards none of it, answers neither.
func TestTheShortcutPassesTheStackBy(t *testing.T) {
	for name, o := range map[string]options{
		"routed":                    {},
		"routed, as clsact filters": {agent: []string{"--attach", "clsact"}},
		"through VXLAN":             {lab: lab.Options{Network: lab.Tunneled}},
	} {
		o.agent = append(o.agent, "--shortcut", "on")
		t.Run(name, func(t *testing.T) {
			s := newStage(t, o)
			s.part("every client and frontend and backend", checkMatrix)
			s.part("a pod reaches itself by every frontend", checkSelf)
			s.part("big transfers and datagrams from off the node arrive whole", checkContentFromOutside)
			s.part("the stack forwards nothing", checkPassedBy)
		})
	}
}

func checkPassedBy(t *testing.T, s *stage) {
	backends := map[*lab.Pod]*service{s.near: s.next(), s.far: s.next()}
	for backend, of := range backends {
		s.serve(of, ready(backend)...)
	}
	s.useAll(backends)
	if err := s.here.Netfilter(forwarded); err != nil {
		t.Fatal(err)
	}
	s.useAll(backends)
	if n := s.forwards(); n != 0 {
		t.Errorf("the stack forwarded %d packets", n)
	}
	straight := dial(t, s.pod, "tcp", netip.AddrPortFrom(s.near.Address(false), targetPort), s.port())
	if _, err := straight.Who(); err != nil || s.forwards() == 0 {
		t.Errorf("of a connection that is no Service's, the stack forwarded nothing; %v", err)
	}
}

// useAll has every client but the node itself use every backend: a question, and of TCP a few megabytes both ways.
func (s *stage) useAll(backends map[*lab.Pod]*service) {
	s.t.Helper()
	for backend, of := range backends {
		for _, client := range []host{s.pod, s.outside} {
			for _, w := range ways() {
				conn := s.dial(client, of, loadBalancer, w)
				s.checkAnswer(client, conn, backend)
				if w.network == "tcp" {
					if err := transfer(conn, 4*megabyte); err != nil {
						s.t.Error(err)
					}
				}
			}
		}
	}
}

// forwards is how many packets the stack of the first node has forwarded since it counts them.
func (s *stage) forwards() (packets int) {
	s.t.Helper()
	said, err := s.here.NetfilterState("counter", "inet", "seen", "forwarded")
	if err != nil {
		s.t.Fatal(err)
	}
	_, number, _ := strings.Cut(said, "packets ")
	if _, err := fmt.Sscan(number, &packets); err != nil {
		s.t.Fatalf("read %q: %v", said, err)
	}
	return packets
}
