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
	onLinksAndBridgeOfItsOwn(t, func(t *testing.T, c *cluster) {
		const narrow = 1400
		if err := c.node(1).SetUplinkMTU(narrow); err != nil {
			t.Fatal(err)
		}
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
