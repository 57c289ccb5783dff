// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
)

const megabyte = 1 << 20

// Large segments (GSO) with checksums that hardware would fill in: both directions, both families, near and far at once.
func TestBigTransfersArriveWhole(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client := c.pod(0, "client")
		var transfers errgroup.Group
		for i, node := range []int{0, 1} {
			backend := c.server(node, fmt.Sprintf("web-%d", i+1))
			s := c.service(i + 1)
			s.publish(ready(backend)...)
			s.awaitServer(client, backend.Name)
			for _, six := range []bool{false, true} {
				conn := s.dial(client, way{"tcp", six})
				transfers.Go(func() error { return transfer(conn, 32*megabyte) })
			}
		}
		if err := transfers.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func transfer(conn *lab.Conn, length int64) error {
	if err := errors.Join(conn.Get(1, length), conn.Put(2, length)); err != nil {
		return fmt.Errorf("transfer with %s: %w", conn.Remote(), err)
	}
	return nil
}

// The path to n2 is narrower than the pods' links: routers refuse full packets, and the refusal quotes the backend's
// address, which the client does not know. It must reach the client's socket all the same (RFC 1191, RFC 8201).
func TestANarrowPathIsDiscoveredThroughTheService(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		const narrow = 1400
		c.narrow(c.node(1), narrow)
		client, backend := c.pod(0, "client"), c.server(1, "web")
		s := c.service(1)
		s.publish(ready(backend)...)
		s.awaitServer(client, backend.Name)
		for _, six := range []bool{false, true} {
			conn := s.dial(client, way{"tcp", six})
			if err := transfer(conn, 4*megabyte); err != nil {
				t.Error(err)
			}
			if mtu, err := conn.PathMTU(); err != nil || mtu != narrow {
				t.Errorf("the socket to %s knows a path MTU of %d, %v; want %d", conn.Remote(), mtu, err, narrow)
			}
			checkDatagrams(t, s.dial(client, way{"udp", six}), backend.Name)
		}
	})
}

// narrow has a node's link to the router take no more than that, until the test ends.
func (c *cluster) narrow(n *lab.Node, mtu int) {
	c.t.Helper()
	uplink, err := n.Link().LinkByName(lab.Uplink)
	if err == nil {
		err = n.SetUplinkMTU(mtu)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := n.SetUplinkMTU(uplink.Attrs().MTU); err != nil {
			c.t.Error(err)
		}
	})
}
