// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// C8, B2: TCP gets a reset and UDP an ICMP port unreachable, which is an error at the socket at once, not a timeout.
func TestWithoutBackendClientsAreRefusedAtOnce(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, backend := c.pod(0, "client"), c.server(0, "web")
		s := c.service(1)
		s.publish(ready(backend)...)
		s.awaitServer(client, backend.Name)
		for _, endpoints := range [][]lab.Endpoint{{notReady(backend)}, {}} {
			s.publish(endpoints...)
			for _, w := range ways() {
				c.await(w.String()+" is refused", func() bool { return refused(s.try(client, w)) })
				if !refused(s.ask(client, w)) {
					t.Errorf("%s is not refused any more", w)
				}
			}
		}
	})
}

func refused(_ lab.Answer, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// service-semantics 1.6: a port that a known ClusterIP does not have is refused.
func TestAnUnknownPortOfAServiceIsRefused(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, backend := c.pod(0, "client"), c.server(0, "web")
		s := c.service(1)
		s.publish(ready(backend)...)
		s.awaitServer(client, backend.Name)
		for _, w := range ways() {
			unknown := netip.AddrPortFrom(s.address(w.six).Addr(), servicePort+1)
			if answer, err := client.Ask(context.Background(), w.network, unknown, lab.DialOptions{}); !refused(answer, err) {
				t.Errorf("%s to %s: %+v, %v; want a refusal", w, unknown, answer, err)
			}
		}
	})
}

func TestAServiceAddressAnswersPing(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, backend := c.pod(0, "client"), c.server(1, "web")
		s := c.service(1)
		s.publish(ready(backend)...)
		s.awaitServer(client, backend.Name)
		for _, six := range []bool{false, true} {
			if err := client.Ping(s.address(six).Addr()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A backend that refuses says so with an error that quotes its own address: the client must hear it from the Service.
func TestARefusalByTheBackendReachesTheClient(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, silent, backend := c.pod(0, "client"), c.pod(1, "silent"), c.server(1, "web")
		s, known := c.service(1), c.service(2)
		s.publish(ready(silent)...)
		known.publish(ready(backend)...)
		known.awaitServer(client, backend.Name)
		for _, w := range ways() {
			c.await(w.String()+" is refused by the pod", func() bool { return refused(s.try(client, w)) })
		}
		c.awaitVerdict(0, "translate_icmp")
	})
}

// awaitVerdict polls until some packet of a node had that verdict.
func (c *cluster) awaitVerdict(node int, verdict string) {
	c.t.Helper()
	c.await("verdict "+verdict, func() bool { return c.verdicts(node)[verdict] > 0 })
}
