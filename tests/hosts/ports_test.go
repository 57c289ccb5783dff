// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// The same datagram socket speaks with two Services of one backend and with the pod itself: three answers that stay apart.
func TestOneUDPPortTowardsTwoServicesAndThePodItself(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, backend := c.pod(0, "client"), c.server(0, "web")
		one, two := c.service(1), c.service(2)
		for _, s := range []*service{one, two} {
			s.publish(ready(backend)...)
			s.awaitServer(client, backend.Name)
		}
		for _, six := range []bool{false, true} {
			socket, err := client.DatagramSocket(six, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			targets := []netip.AddrPort{one.address(six), two.address(six), netip.AddrPortFrom(backend.Address(six), targetPort)}
			checkApart(t, targets, func(to netip.AddrPort) lab.Answer {
				from, answer := exchange(t, socket, to)
				if from != to {
					t.Errorf("asked %s, answered from %s", to, from)
				}
				return answer
			})
		}
	})
}

// checkApart asks every target several times in turn, and wants each to be one connection of its own at the backend.
func checkApart(t *testing.T, targets []netip.AddrPort, ask func(netip.AddrPort) lab.Answer) {
	t.Helper()
	seen := map[netip.AddrPort]netip.AddrPort{}
	for range 3 {
		for _, to := range targets {
			client := ask(to).Client
			if owner, ok := seen[client]; ok && owner != to {
				t.Errorf("the backend sees %s for %s and for %s", client, owner, to)
			}
			seen[client] = to
		}
	}
	if len(seen) != len(targets) {
		t.Errorf("the backend saw %d connections, want %d: %v", len(seen), len(targets), seen)
	}
}

// Likewise for connections of one local port, the direct one last and first.
func TestOneTCPPortTowardsTwoServicesAndThePodItself(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, backend := c.pod(0, "client"), c.server(0, "web")
		one, two := c.service(1), c.service(2)
		for _, s := range []*service{one, two} {
			s.publish(ready(backend)...)
			s.awaitServer(client, backend.Name)
		}
		port := uint16(20000) // the kernel hands out higher ones
		for _, six := range []bool{false, true} {
			direct := netip.AddrPortFrom(backend.Address(six), targetPort)
			for _, targets := range [][]netip.AddrPort{
				{one.address(six), two.address(six), direct},
				{direct, one.address(six), two.address(six)},
			} {
				port++
				conns := map[netip.AddrPort]*lab.Conn{}
				for _, to := range targets {
					conns[to] = dial(t, client, "tcp", to, port)
				}
				checkApart(t, targets, func(to netip.AddrPort) lab.Answer {
					answer, err := conns[to].Who()
					if err != nil {
						t.Fatalf("%s from port %d: %v", to, port, err)
					}
					return answer
				})
			}
		}
	})
}
