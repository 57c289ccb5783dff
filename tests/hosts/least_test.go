// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"io"
	"net"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// One of three servers keeps its connections while the others' close: by least-connections, few more go there. Maglev, which looks at no
// load, gives it a third. Both are of pods and of clients off the node; the bound is 4 standard deviations from a third.
func TestAServerThatKeepsItsConnectionsGetsFewerNewOnes(t *testing.T) {
	const connections, few = 150, 25
	s := newStage(t, options{})
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
