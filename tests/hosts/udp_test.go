// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// exchangeUnconnected sends one datagram from a socket that is bound, not connected; local port 0 is any.
func exchangeUnconnected(t *testing.T, client host, to netip.AddrPort, localPort uint16) (netip.AddrPort, lab.Answer) {
	t.Helper()
	socket, err := client.DatagramSocket(to.Addr().Is6(), localPort)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	return exchange(t, socket, to)
}

func exchange(t *testing.T, socket *net.UDPConn, to netip.AddrPort) (netip.AddrPort, lab.Answer) {
	t.Helper()
	if _, err := socket.WriteToUDPAddrPort([]byte("who"), to); err != nil {
		t.Fatal(err)
	}
	if err := socket.SetReadDeadline(time.Now().Add(lab.Patience)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	n, from, err := socket.ReadFromUDPAddrPort(buffer)
	if err != nil {
		t.Fatalf("%s -> %s: %v", socket.LocalAddr(), to, err)
	}
	answer, _, err := lab.ParseDatagram(buffer[:n])
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), answer
}

// Datagrams larger than the MTU travel in fragments, of which only the first has ports.
func TestDatagramsLargerThanTheMTUArriveWhole(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client := c.pod(0, "client")
		for i, node := range []int{0, 1} {
			backend := c.server(node, fmt.Sprintf("web-%d", i+1))
			s := c.service(i + 1)
			s.publish(ready(backend)...)
			s.awaitServer(client, backend.Name)
			for _, six := range []bool{false, true} {
				checkDatagrams(t, s.dial(client, way{"udp", six}), backend.Name)
			}
		}
	})
}

// checkDatagrams exchanges datagrams of one and of many fragments and compares every byte that comes back.
func checkDatagrams(t *testing.T, conn *lab.Conn, server string) {
	t.Helper()
	for i, size := range []int{1, 1400, 1473, 3000, 20000, 60000} {
		datagram := make([]byte, size)
		_, _ = lab.NewStream(uint64(i)).Read(datagram)
		answer, back, err := conn.Exchange(datagram)
		if err != nil {
			t.Errorf("%s: exchange %d bytes: %v", conn.Remote(), size, err)
			continue
		}
		if answer.Server != server || !bytes.Equal(back, datagram) {
			t.Errorf("%s: exchange %d bytes: %d bytes of %s came back, equal %t", conn.Remote(), size, len(back),
				answer.Server, bytes.Equal(back, datagram))
		}
	}
}

// C5: the same socket goes on with another backend when its own is gone; and is refused when no one is left.
func TestAUDPSocketFollowsWhenItsBackendIsGone(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
		s := c.service(1)
		s.hints = true
		s.publish(ready(near, far)...)
		s.awaitServer(client, near.Name)
		sockets := []*lab.Conn{s.dial(client, way{"udp", false}), s.dial(client, way{"udp", true})}
		for _, socket := range sockets {
			mustBe(t, socket, near.Name)
		}
		s.publish(ready(far)...)
		s.awaitServer(client, far.Name)
		for _, socket := range sockets {
			mustBecome(t, socket, near.Name, far.Name)
		}
		if err := near.Delete(); err != nil {
			t.Fatal(err)
		}
		for _, socket := range sockets {
			mustBe(t, socket, far.Name)
		}
		s.publish()
		for _, socket := range sockets {
			c.await("the socket is refused", func() bool {
				_, err := socket.Who()
				return errors.Is(err, syscall.ECONNREFUSED)
			})
		}
	})
}
