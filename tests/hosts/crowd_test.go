// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
)

// Pods that are clients and backends at once, through Services and directly, all at the same time: every answer comes
// from who was asked.
func TestACrowdOfConnectionsStaysApart(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		pods := []*lab.Pod{c.server(0, "web-1"), c.server(0, "web-2"), c.server(1, "web-3")}
		var services []*service
		for i, p := range pods {
			s := c.service(i + 1)
			s.publish(ready(p)...)
			s.awaitServer(pods[0], p.Name)
			s.awaitServer(pods[2], p.Name)
			services = append(services, s)
		}
		var crowd errgroup.Group
		crowd.SetLimit(150)
		for i := range 1500 {
			from, to, w := pods[i%3], i/3%3, ways()[i/9%4]
			address := services[to].address(w.six)
			if i/36%3 == 0 { // one in three without the Service
				address = netip.AddrPortFrom(pods[to].Address(w.six), targetPort)
			}
			crowd.Go(func() error { return converse(from, w, address, pods[to].Name) })
		}
		if err := crowd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// converse asks several times over one connection.
func converse(from *lab.Pod, w way, to netip.AddrPort, want string) error {
	conn, err := from.Dial(context.Background(), w.network, to, lab.DialOptions{})
	if err != nil {
		return fmt.Errorf("%s to %s: %w", from.Name, to, err)
	}
	defer conn.Close()
	for range 5 {
		answer, err := conn.Who()
		if err != nil || answer.Server != want {
			return fmt.Errorf("%s from %s to %s, want %s: %+v, %w", w, from.Name, to, want, answer, err)
		}
	}
	if w.network == "udp" {
		return nil
	}
	return transfer(conn, 100_000)
}
