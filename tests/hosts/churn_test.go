// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"net"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Promise 2, A17: while a Service's endpoints change again and again, every connection reaches one that was there before
// or is there after a change. All servers live on, so that a connection that fails is nearlb's.
func TestEndpointsThatComeAndGoLoseNoConnection(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, one, two := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
		s := c.service(1)
		s.publish(ready(one, two)...)
		for _, w := range ways() {
			c.await("both answer over "+w.String(), s.bothAnswer(client, w))
		}
		l := s.startLoad(client)
		for range 5 {
			s.publish(ready(one)...)
			s.awaitServer(client, one.Name)
			s.publish(append(ready(two), notReady(one))...)
			s.awaitServer(client, two.Name)
			s.publish(ready(one, two)...)
			s.more(l, some)
		}
		l.end(t)
	})
}

// A port that is used again soon is a new connection: it goes where a new one goes, not where the last one went. The
// client hangs up by a reset, else its own kernel would keep the port back for a minute.
func TestAPortThatIsUsedAgainIsANewConnection(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, one, two := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
		s := c.service(1)
		const port = 20000
		for _, server := range []*lab.Pod{one, two, one} {
			s.publish(ready(server)...)
			s.awaitServer(client, server.Name)
			for _, six := range []bool{false, true} {
				for range 3 {
					conn, err := client.Dial(context.Background(), "tcp", s.address(six), lab.DialOptions{LocalPort: port})
					if err != nil {
						t.Fatalf("port %d again: %v", port, err)
					}
					mustBe(t, conn, server.Name)
					hangUp(t, conn)
				}
			}
		}
	})
}

// hangUp closes a TCP connection by a reset.
func hangUp(t *testing.T, conn *lab.Conn) {
	t.Helper()
	if err := conn.Conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

// A backend that dies without a word leaves connections without an end: the client's next one from the same port must not
// be sent after it.
func TestAPortWhoseBackendDiedIsUsedAgain(t *testing.T) {
	c := onLinks(t)
	client, one, two := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
	s := c.service(1)
	s.publish(ready(one)...)
	s.awaitServer(client, one.Name)
	const port = 20000
	conns := []*lab.Conn{s.dialFrom(client, false, port), s.dialFrom(client, true, port)}
	if err := one.Delete(); err != nil {
		t.Fatal(err)
	}
	s.publish(ready(two)...)
	s.awaitServer(client, two.Name)
	for i, six := range []bool{false, true} {
		hangUp(t, conns[i])
		mustBe(t, s.dialFrom(client, six, port), two.Name)
	}
}

func (s *service) dialFrom(client *lab.Pod, six bool, port uint16) *lab.Conn {
	s.t.Helper()
	return dial(s.t, client, "tcp", s.address(six), port)
}

// Kernels before 6.6 have no TCX: the programs are attached as clsact filters.
func TestTheProgramsWorkAsClsactFilters(t *testing.T) {
	for _, bridge := range []bool{false, true} {
		t.Run(map[bool]string{false: "point-to-point", true: "bridge"}[bridge], func(t *testing.T) {
			o := options{bridge: bridge, agent: []string{"--attach", "clsact"}}
			var c *cluster
			if bridge {
				o.alone = true // the other kind has an agent on each node
				c = newCluster(t, o)
			} else {
				c = sharing(o).part(t) // with the paths
			}
			client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
			s := c.service(1)
			for _, backend := range []*lab.Pod{near, far} {
				s.publish(ready(backend)...)
				s.awaitServer(client, backend.Name)
				for _, w := range ways() {
					checkAddresses(t, s, client, backend, w)
					checkContent(t, s.dial(client, w), w, backend.Name)
				}
			}
		})
	}
}
