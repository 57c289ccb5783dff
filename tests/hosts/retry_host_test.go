// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// One of ten servers loses SYNs. Sockets of the node itself connect all the same, whether the servers are on the node or on another one, though the
// node takes packets by no device but that by which it would answer. Nobody but these sockets tells of the server, and it is left out. A
// connection that went elsewhere goes on when the agent is killed, and its socket learns that less fits its way than the one to its first server.
func TestSocketsOfTheNodeGoAroundAServerThatLosesSYNs(t *testing.T) {
	s := newStage(t, options{bridge: true, lab: lab.Options{Network: lab.Shared, Netfilter: true}})
	if err := s.here.Sysctl("ipv4/conf/all/rp_filter=1"); err != nil {
		t.Fatal(err)
	}
	servers := []*lab.Pod{s.near, s.far}
	for n := range 8 {
		servers = append(servers, s.server(n%2, "web-"+string(rune('a'+n))))
	}
	s.serve(s.next(), ready(s.far)...)
	var moved []*lab.Conn
	var here []*lab.Conn // of these, those that went from the other node to this one
	for _, dead := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		of.publish(ready(servers...)...)
		of.awaitFrontends()
		deaf(t, dead)
		for _, six := range []bool{false, true} {
			conn := s.moves(of, dead, six)
			if moved = append(moved, conn); dead == s.far {
				here = append(here, conn)
			}
			s.connectsAround(of, s.here, dead, six)
			s.await(dead.String()+" is left out", func() bool {
				s.dial(s.here, of, loadBalancer, way{"tcp", six}) // chance may have sent too few there to say so
				state, _ := s.state(of, dead, six)
				return state == "ejected"
			})
		}
		if err := dead.Netfilter("delete table inet deaf"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	for _, conn := range moved {
		if err := transfer(conn, megabyte); err != nil {
			t.Error(err)
		}
	}
	const narrow = 1400
	if err := s.here.SetMTU(lab.Bridge, narrow); err != nil {
		t.Fatal(err)
	}
	for _, conn := range here {
		if err := transfer(conn, megabyte); err != nil {
			t.Error(err)
		}
		if mtu, err := conn.PathMTU(); err != nil || mtu != narrow {
			t.Errorf("the socket to %s knows a path MTU of %d, %v; want %d", conn.Remote(), mtu, err, narrow)
		}
	}
}

// moves has sockets of the node connect until one went elsewhere.
func (s *stage) moves(of *service, dead *lab.Pod, six bool) (moved *lab.Conn) {
	s.t.Helper()
	to := s.by(of, loadBalancer).address(six)
	s.await("a socket of the node comes to "+dead.String(), func() bool {
		conn := dial(s.t, s.here, "tcp", to, s.port())
		if conn.Remote() != to {
			s.t.Errorf("the peer is %s, want %s", conn.Remote(), to)
		}
		if answer, err := conn.Who(); err != nil || answer.Server == dead.Name {
			s.t.Errorf("answered by %q: %v", answer.Server, err)
		}
		moved = conn
		return retransmits(s.t, conn) > 0
	})
	return moved
}
