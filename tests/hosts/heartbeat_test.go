// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// Nodes ask each other whether they are there. One loses its power, before anybody has connected to its server: new connections leave that out, none
// waits, and they come back once the node does. The agent of another has been killed: its programs answer, and it keeps its connections.
func TestASilentNodeIsLeftOutBeforeAnybodyConnectsThere(t *testing.T) {
	s := onStage(t, keyed(t))
	dead := s.server(2, "dead")
	s.mayDrop("drop_tunnel_source") // of nodes that this one has not heard of yet
	s.mayDrop("drop_tunnel_cookie") // of nodes that have read the key before this one
	other := s.cluster.pod(0, "other")
	s.awaitPrograms(s.pod, other)
	of := s.next()
	of.publish(ready(s.near, s.far, dead)...)
	of.awaitFrontends()
	s.await("both other nodes answer", func() bool { return s.heartbeats().Answer == 2 })
	if err := errors.Join(s.agents[1].Kill(), s.cluster.nodes[2].LosePower()); err != nil {
		t.Fatal(err)
	}
	s.await("the silent node is told of", func() bool { return len(s.heartbeats().Silent) == 1 && s.heartbeats().Silent[0] == "n3" })
	for _, six := range []bool{false, true} {
		for stays := false; !stays; {
			s.await("its server is left out", func() bool { state, _ := s.state(of, dead, six); return state == "ejected" })
			_, until := s.state(of, dead, six)
			again, _ := s.sentAgain(of, six, s.pod, other, s.outside, s.here)
			if stays = s.stays(of, dead, six, until); stays && again > 0 {
				t.Errorf("six %v: %d clients had to send again", six, again)
			}
		}
		if state, _ := s.state(of, s.far, six); state != "active" {
			t.Errorf("six %v: %s, of a node whose agent was killed, is %s", six, s.far, state)
		}
	}
	if said := s.run("status", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir()); !strings.Contains(said, "silent: n3") {
		t.Errorf("status does not name it:\n%s", said)
	}
	if err := s.cluster.nodes[2].RegainPower(); err != nil {
		t.Fatal(err)
	}
	for _, six := range []bool{false, true} {
		s.await("its server is back", func() bool { state, _ := s.state(of, dead, six); return state == "active" })
		s.await("it gets connections", func() bool { _, answered := s.sentAgain(of, six, s.pod); return answered[dead.Name] > 0 })
	}
	said := s.run("changes", "--service", of.Name, "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir())
	for _, what := range []string{"node-silent", "node-heard"} {
		if !strings.Contains(said, what) {
			t.Errorf("no %s in\n%s", what, said)
		}
	}
}

// sentAgain opens fifty connections of each client at once, and says how many sent their SYN again, and who answered how many.
func (s *stage) sentAgain(of *service, six bool, clients ...host) (again int, answered map[string]int) {
	s.t.Helper()
	type end struct {
		again  bool
		server string
		err    error
	}
	ends := make(chan end)
	for _, client := range clients {
		for range 50 {
			go func() {
				conn, err := client.Dial(context.Background(), "tcp", s.by(of, loadBalancer).address(six), lab.DialOptions{LocalPort: s.port()})
				if err != nil {
					ends <- end{err: err}
					return
				}
				defer conn.Close()
				e := end{again: retransmits(s.t, conn) > 0}
				answer, err := conn.Who()
				e.server, e.err = answer.Server, err
				ends <- e
			}()
		}
	}
	answered = map[string]int{}
	for range 50 * len(clients) {
		e := <-ends
		if e.err != nil {
			s.t.Errorf("six %v: %v", six, e.err)
		}
		if e.again {
			again++
		}
		answered[e.server]++
	}
	return again, answered
}

// heartbeats is what the first node's agent says of the others.
func (s *stage) heartbeats() agent.HeartbeatStatus {
	s.t.Helper()
	status, err := agent.ReadStatus(s.LockDir(), s.here.PinPath())
	if err != nil || status.Heartbeats == nil {
		return agent.HeartbeatStatus{}
	}
	return *status.Heartbeats
}
