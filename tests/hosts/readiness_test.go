// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// C5, C6: a backend that loses its readiness gets no new connection, keeps the old TCP ones, hands over its UDP clients,
// and gets new connections again when it is ready.
func TestReadinessLostAndRegained(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
		s := c.service(1)
		s.hints = true
		s.publish(ready(near, far)...)
		s.awaitServer(client, near.Name)
		open := map[way]*lab.Conn{}
		for _, w := range ways() {
			open[w] = s.dial(client, w)
			mustBe(t, open[w], near.Name)
		}
		before := c.backends(0)

		s.publish(append(ready(far), notReady(near))...)
		s.awaitServer(client, far.Name) // new connections
		for _, w := range ways() {
			if w.network == "udp" {
				mustBecome(t, open[w], near.Name, far.Name) // the next datagram of the same socket moves
			}
			if w.network == "tcp" {
				mustBe(t, open[w], near.Name) // an established connection is not cut
			}
		}

		s.publish(ready(near, far)...)
		s.awaitServer(client, near.Name)
		for _, w := range ways() {
			want := near.Name
			if w.network == "udp" {
				want = far.Name // where it moved, it stays
			}
			mustBe(t, open[w], want)
		}
		for key, row := range c.backends(0) {
			if was := before[key]; row.ID != was.ID || row.Generation != was.Generation || row.State != was.State {
				t.Errorf("backend %s is %+v, was %+v", key, row, was)
			}
		}
	})
}

// A9: a backend that terminates keeps what it has while it serves; new connections go elsewhere; it is the last resort.
func TestATerminatingBackendDrains(t *testing.T) {
	c := onLinks(t)
	client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
	draining := lab.Endpoint{Pod: near, NotReady: true, Terminating: true}
	s := c.service(1)
	s.hints = true
	s.publish(ready(near, far)...)
	s.awaitServer(client, near.Name)
	open := map[way]*lab.Conn{}
	for _, w := range ways() {
		open[w] = s.dial(client, w)
		mustBe(t, open[w], near.Name)
	}
	s.publish(append(ready(far), draining)...)
	s.awaitServer(client, far.Name)
	for _, w := range ways() {
		mustBe(t, open[w], near.Name) // UDP too: it still serves
	}
	s.publish(draining)
	s.awaitServer(client, near.Name)
}

// service-semantics 1.1: a client keeps its backend from one connection to the next while that is usable.
func TestSessionAffinityKeepsAClientOnOneBackend(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client := c.pod(0, "client")
		web := []*lab.Pod{c.server(0, "web-1"), c.server(1, "web-2"), c.server(2, "web-3")}
		s := c.service(1)
		s.Affinity = 600
		s.publish(ready(web...)...)
		for _, w := range ways() {
			first := ""
			c.await(w.String()+" is answered", func() bool {
				answer, err := s.try(client, w)
				first = answer.Server
				return err == nil
			})
			for range 30 {
				if answer, err := s.ask(client, w); err != nil || answer.Server != first {
					t.Fatalf("%s: %s after %s, %v", w, answer.Server, first, err)
				}
			}
		}
		// The chosen one goes: another is chosen and kept.
		first, err := s.ask(client, way{"tcp", false})
		if err != nil {
			t.Fatal(err)
		}
		var endpoints []lab.Endpoint
		for _, p := range web {
			if p.Name == first.Server {
				endpoints = append(endpoints, notReady(p))
			} else {
				endpoints = append(endpoints, lab.Endpoint{Pod: p})
			}
		}
		s.publish(endpoints...)
		second := ""
		c.await("another backend is chosen", func() bool {
			answer, err := s.try(client, way{"tcp", false})
			second = answer.Server
			return err == nil && second != first.Server
		})
		s.publish(ready(web...)...)
		s.awaitServerOver(client, way{"tcp", false}, second)
	})
}

func (s *service) awaitServerOver(client *lab.Pod, w way, want string) {
	s.t.Helper()
	s.await(w.String()+" is answered by "+want, func() bool {
		for range 30 {
			if answer, err := s.try(client, w); err != nil || answer.Server != want {
				return false
			}
		}
		return true
	})
}
