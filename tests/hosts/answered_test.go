// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// E5: a masquerade may give a pod's connection the port of a NodePort. Whom the pod talks to answers it there, and is answered by the pod; the
// NodePort's clients have its Service beside that.
func TestAMasqueradeMayHaveThePortOfANodePort(t *testing.T) {
	s := onStage(t, options{lab: lab.Options{Netfilter: true}})
	of := s.next()
	s.serve(of, ready(s.far)...)
	taken := s.by(of, nodePort).address(false).Port()
	const table = "table inet taken"
	err := s.here.Netfilter(fmt.Sprintf(table+` {
	chain postrouting {
		type nat hook postrouting priority srcnat - 1;
		ip saddr %[1]s meta l4proto { tcp, udp } masquerade to :%[3]d
		ip6 saddr %[2]s meta l4proto { tcp, udp } masquerade to :%[3]d
	}
}`, s.pod.V4, s.pod.V6, taken))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.here.Netfilter("delete " + table); err != nil {
			t.Error(err)
		}
	})
	server, err := s.outside.Serve(443)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, w := range ways() {
		conn := dial(t, s.pod, w.network, netip.AddrPortFrom(map[bool]netip.Addr{false: s.outside.V4, true: s.outside.V6}[w.six], 443), s.port())
		for range 3 {
			if answer, err := conn.Who(); err != nil || answer.Client.Port() != taken {
				t.Errorf("%s: the pod's connection is seen as %s, %v; want it at port %d", w, answer.Client, err, taken)
			}
			if answer, err := s.by(of, nodePort).ask(s.outside, w); err != nil || answer.Server != s.far.Name {
				t.Errorf("%s: a client of the NodePort: %+v, %v", w, answer, err)
			}
		}
	}
}
