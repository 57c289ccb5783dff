// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// C16, C17, C18: service port 80 is target port 8080, in both families, and the backend sees the pod's own address.
func TestAPodReachesAServiceAndBothSidesSeeTheRightAddresses(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		for i, node := range []int{0, 1} { // a backend on the client's node, one on another
			client, backend := c.pod(0, "client"), c.server(node, "web")
			s := c.service(i + 1)
			s.publish(ready(backend)...)
			s.awaitServer(client, backend.Name)
			for _, w := range ways() {
				checkAddresses(t, s, client, backend, w)
			}
		}
	})
}

func checkAddresses(t *testing.T, s *service, client, backend *lab.Pod, w way) {
	t.Helper()
	conn := s.dial(client, w)
	answer, err := conn.Who()
	if err != nil {
		t.Fatalf("%s: %v", w, err)
	}
	if answer.Client != conn.Local() {
		t.Errorf("%s: the backend sees %s, the client is %s", w, answer.Client, conn.Local())
	}
	if want := netip.AddrPortFrom(backend.Address(w.six), targetPort); answer.Local != want {
		t.Errorf("%s: the backend's own address is %s, want %s", w, answer.Local, want)
	}
	if conn.Remote() != s.address(w.six) {
		t.Errorf("%s: the client's peer is %s, want %s", w, conn.Remote(), s.address(w.six))
	}
}

// An unconnected socket takes datagrams from anybody: only the address says that the reply was translated back.
func TestAUDPReplyComesFromTheServiceAddress(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, backend := c.pod(0, "client"), c.server(0, "web")
		s := c.service(1)
		s.publish(ready(backend)...)
		s.awaitServer(client, backend.Name)
		for _, six := range []bool{false, true} {
			from, answer := exchangeUnconnected(t, client, s.address(six), 0)
			if from != s.address(six) || answer.Server != backend.Name {
				t.Errorf("reply of %s from %s, want %s", answer.Server, from, s.address(six))
			}
		}
	})
}

// B6, C20, C21: nearest first, by the hints that the controller writes for PreferSameNode.
func TestTheNearestReadyBackendAnswers(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		clients := []*lab.Pod{c.pod(0, "client-1"), c.pod(1, "client-2"), c.pod(2, "client-3")}
		web := []*lab.Pod{c.server(0, "web-1"), c.server(1, "web-2"), c.server(2, "web-3")}
		s := c.service(1)
		s.hints = true
		for _, step := range []struct {
			endpoints []lab.Endpoint
			want      []string
		}{
			{ready(web...), []string{"web-1", "web-2", "web-3"}},
			{append(ready(web[1:]...), notReady(web[0])), []string{"web-2", "web-2", "web-3"}},
			{append(ready(web[2]), notReady(web[0]), notReady(web[1])), []string{"web-3", "web-3", "web-3"}},
			{ready(web[0]), []string{"web-1", "web-1", "web-1"}},
		} {
			s.publish(step.endpoints...)
			for i, client := range clients {
				s.awaitServer(client, step.want[i])
			}
		}
	})
}

// B5, B18: what could cost money is counted, and is nothing while every node has a backend of its own.
func TestNoByteLeavesANodeThatHasABackend(t *testing.T) {
	c := onLinks(t)
	clients := []*lab.Pod{c.pod(0, "client-1"), c.pod(1, "client-2"), c.pod(2, "client-3")}
	web := []*lab.Pod{c.server(0, "web-1"), c.server(1, "web-2"), c.server(2, "web-3")}
	s := c.service(1)
	s.hints = true
	s.publish(ready(web...)...)
	for i, client := range clients {
		s.awaitServer(client, web[i].Name)
		rows := 0
		for key, row := range c.backends(i) {
			if row.Service != "default/"+s.Name {
				continue // of a test before
			}
			rows++
			near := row.Node == c.nodes[i].Name
			if bytes := row.BytesTo + row.BytesFrom; near != (bytes > 0) || near != (row.Connections > 0) {
				t.Errorf("%s: %d connections and %d bytes with %s on %s", c.nodes[i].Name, row.Connections, bytes, key, row.Node)
			}
		}
		if rows < len(web) {
			t.Errorf("%s: %d backends of the Service are listed, want one of each pod at least", c.nodes[i].Name, rows)
		}
	}
}

// C13, C21: without hints every backend gets its share.
func TestWithoutHintsEveryBackendAnswers(t *testing.T) {
	c := onLinks(t)
	client := c.pod(0, "client")
	web := []*lab.Pod{c.server(0, "web-1"), c.server(1, "web-2"), c.server(2, "web-3")}
	s := c.service(1)
	s.publish(ready(web...)...)
	for _, w := range ways() {
		seen := map[string]int{}
		c.await("all three answer over "+w.String(), func() bool {
			if answer, err := s.try(client, w); err == nil {
				seen[answer.Server]++
			}
			return len(seen) == len(web)
		})
	}
}
