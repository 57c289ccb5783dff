// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// severed has a pod neither hear nor say anything, as one whose node has lost its power.
func severed(t *testing.T, p *lab.Pod) {
	t.Helper()
	if err := p.Netfilter(`
table inet severed {
	chain input { type filter hook input priority filter; policy drop; }
	chain output { type filter hook output priority filter; policy drop; }
}`); err != nil {
		t.Fatal(err)
	}
}

// C4: clients that wait for a server that is gone and silent are told with one of their next packets; those of one that is gone and serves go on.
func TestAConnectionWhoseServerIsGoneAndSilentIsReset(t *testing.T) {
	s := onStage(t, options{})
	spare := s.server(0, "spare")
	for _, server := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(of, ready(server)...)
		var conns []*lab.Conn
		for _, client := range []host{s.pod, s.outside} {
			for _, w := range []way{{"tcp", false}, {"tcp", true}} {
				conn := s.dial(client, of, loadBalancer, w)
				if answer, err := conn.Who(); err != nil || answer.Server != server.Name {
					t.Fatalf("%s asks over %s: %+v, %v", client, w, answer, err)
				}
				conns = append(conns, conn)
			}
		}
		s.serve(of, ready(spare)...)
		for _, conn := range conns {
			if answer, err := conn.Who(); err != nil || answer.Server != server.Name {
				t.Errorf("%s is gone and serves: %+v, %v", server, answer, err)
			}
		}
		severed(t, server)
		for _, conn := range conns {
			began := time.Now()
			if answer, err := conn.Who(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s is gone and silent: %+v, %v", server, answer, err)
			}
			t.Logf("%s at %s: reset after %v", conn.Local(), server, time.Since(began))
		}
	}
}
