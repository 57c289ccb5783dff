// SPDX-License-Identifier: Apache-2.0

package hosts

import "testing"

// Each of three servers in turn, for every kind of client: connections of pods, of clients off the node through SNAT and not, and of the
// node's own sockets.
func TestNewConnectionsGoToTheBackendsInTurn(t *testing.T) {
	s := onStage(t, options{})
	of := s.next()
	of.Annotations = map[string]string{"nearlb.io/balance": "round-robin"}
	s.serve(of, ready(s.near)...)
	of.publish(ready(s.near, s.far, s.server(1, "third"))...)
	s.await("three servers answer", func() bool {
		return len(s.inTurn(of, s.pod, way{"tcp", false}, 3)) == 3 && len(s.inTurn(of, s.pod, way{"tcp", true}, 3)) == 3
	})
	for _, client := range s.clients() {
		for _, w := range ways() {
			for server, n := range s.inTurn(of, client, w, 9) {
				if n != 3 {
					t.Errorf("%s, %v: %s got %d of 9 connections", client, w, server, n)
				}
			}
		}
	}
}

// inTurn opens connections one after the other, and counts them by server.
func (s *stage) inTurn(of *service, client host, w way, n int) map[string]int {
	s.t.Helper()
	got := map[string]int{}
	for range n {
		conn := s.dial(client, of, loadBalancer, w)
		answer, err := conn.Who()
		if err != nil {
			s.t.Fatalf("%s, %v: %v", client, w, err)
		}
		got[answer.Server]++
		conn.Close()
	}
	return got
}
