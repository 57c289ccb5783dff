// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// One of three servers keeps its connections while the others' close: by least-connections, few more go there. Maglev, which looks at no
// load, gives it a third. Both are of pods and of clients off the node; the bound is 6 standard deviations from a third.
func TestAServerThatKeepsItsConnectionsGetsFewerNewOnes(t *testing.T) {
	const connections, few = 150, 15
	s := onStage(t, options{})
	servers := ready(s.near, s.server(0, "web"), s.far)
	s.awaitPrograms(s.pod)
	balanced := func(by string) *service {
		of := s.next()
		of.Annotations = map[string]string{"nearlb.io/balance": by}
		of.publish(servers...)
		of.awaitFrontends()
		return of
	}
	least, maglev := balanced("least-connections"), balanced("maglev")
	for _, six := range []bool{false, true} {
		for _, client := range []host{s.pod, s.outside} {
			if got := s.kept(least, client, s.far, six, connections); got > few {
				t.Errorf("least-connections, six %v: %d of %d connections of %s go to the server that keeps them, want %d at most", six, got, connections, client, few)
			}
		}
		if got := s.kept(maglev, s.pod, s.far, six, connections); got <= few {
			t.Errorf("maglev, six %v: %d of %d connections go to the server that keeps them, want about a third", six, got, connections)
		}
	}
}

// kept opens connections one after the other, and counts those to the server that keeps them, which are closed at the end. Each of the others
// is over, with both sides' FIN seen, before the next one begins.
func (s *stage) kept(of *service, client host, keeper *lab.Pod, six bool, connections int) (kept int) {
	s.t.Helper()
	for range connections {
		conn := s.dial(client, of, loadBalancer, way{"tcp", six})
		answer, err := conn.Who()
		if err != nil {
			s.t.Fatal(err)
		}
		if answer.Server == keeper.Name {
			defer conn.Close()
			kept++
			continue
		}
		if err := conn.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			s.t.Fatal(err)
		}
		if rest, err := io.Copy(io.Discard, conn); err != nil || rest > 0 {
			s.t.Fatalf("%d bytes after the end, %v", rest, err)
		}
		conn.Close()
	}
	return kept
}

// A third node keeps many connections to one of two servers. The two others, that server's own node and one without any, hear of it from the server's
// agent, and choose the other server, though they themselves have as few to both. What was told is over some seconds after an agent was killed; the
// next one asks again.
func TestNodesChooseByTheConnectionsThatOthersHave(t *testing.T) {
	const held, opened, few = 200, 30, 12
	s := onStage(t, keyed(t))
	second, third := s.cluster.pod(1, "second"), s.cluster.pod(2, "third")
	s.mayDrop("drop_tunnel_source") // of nodes that this one has not heard of yet
	s.mayDrop("drop_tunnel_cookie") // of nodes that have read the key before this one
	s.awaitPrograms(s.pod, second, third)
	of := s.next()
	of.Annotations = map[string]string{"nearlb.io/balance": "least-connections"}
	of.publish(ready(s.far)...)
	of.awaitServer(third, s.far.Name)
	for _, six := range []bool{false, true} {
		for range held {
			of.dial(third, way{"tcp", six})
		}
	}
	of.publish(ready(s.near, s.far)...)
	knows := func(node int, six bool) bool {
		row := s.backends(node)[fmt.Sprintf("%s:%d/TCP", s.far.Address(six), targetPort)]
		return row.OpenOthers != nil && *row.OpenOthers >= held
	}
	for node, client := range []*lab.Pod{s.pod, second} {
		for _, six := range []bool{false, true} {
			what := fmt.Sprintf("node %d, six %v", node, six)
			s.await(what+" shows what others have, and chooses the other server", func() bool {
				most, conns := 0, []*lab.Conn{}
				for range opened {
					conn := of.dial(client, way{"tcp", six})
					answer, err := conn.Who()
					if err != nil {
						t.Fatal(err)
					}
					if conns = append(conns, conn); answer.Server == s.far.Name {
						most++
					}
				}
				for _, conn := range conns {
					conn.Close()
				}
				return most <= few && knows(node, six) // few may be chance, and not told yet
			})
		}
	}
	if err := s.agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	s.await("what was told is over", func() bool { return !knows(0, false) && !knows(0, true) })
	s.agents[0] = s.startAgent(0)
	kept := []*lab.Conn{of.dial(s.pod, way{"tcp", false}), of.dial(s.pod, way{"tcp", true})}
	s.await("the next agent is told", func() bool { return knows(0, false) && knows(0, true) })
	for _, conn := range kept {
		if _, err := conn.Who(); err != nil {
			t.Error(err)
		}
	}
}
