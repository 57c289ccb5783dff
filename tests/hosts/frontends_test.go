// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// C3, C21: a pod is a client of the node's ports, on any node's address that its own node answers for, and of external
// addresses; the port need not lie in the usual range (fixtures/rgw.yaml).
func TestAPodReachesNodePortsAndExternalAddresses(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		const nodePort = 9000
		client, backend := c.pod(0, "client"), c.server(1, "web")
		s := c.service(1)
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}
		for i := range s.Ports {
			s.Ports[i].NodePort = nodePort
		}
		s.publish(ready(backend)...)
		s.awaitServer(client, backend.Name)
		own := c.node(0)
		for _, w := range ways() {
			external := s.ExternalIPs[0]
			if w.six {
				external = s.ExternalIPs[1]
			}
			for _, to := range []netip.AddrPort{
				netip.AddrPortFrom(external, servicePort),
				netip.AddrPortFrom(own.Address(w.six), nodePort),
			} {
				answer, err := client.Ask(context.Background(), w.network, to, lab.DialOptions{})
				if err != nil || answer.Server != backend.Name || answer.Client.Addr() != client.Address(w.six) {
					t.Errorf("%s to %s: %+v, %v", w, to, answer, err)
				}
			}
		}
	})
}

// B16, C22: backends that are Nodes' own addresses, without nodeName, as the API servers' are; the client's own node first.
func TestABackendOnTheNodesOwnAddressAnswers(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		nodes := []*lab.Node{c.node(0), c.node(1)}
		for _, n := range nodes {
			server, err := n.Serve(targetPort)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = server.Close() })
		}
		s := c.service(1)
		client := c.pod(0, "client")
		for _, n := range nodes {
			s.publish(lab.Endpoint{Host: n, Unplaced: true})
			s.awaitServer(client, n.Name)
			for _, w := range ways() {
				conn := s.dial(client, w)
				if answer, err := conn.Who(); err != nil || answer.Client != conn.Local() {
					t.Errorf("%s: %s sees %s, the client is %s; %v", w, n.Name, answer.Client, conn.Local(), err)
				}
			}
		}
	})
}
