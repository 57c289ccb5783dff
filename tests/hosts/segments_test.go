// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sys/unix"
)

// What is sent as one packet that a device cuts later: many datagrams, the last one shorter.
const (
	segmentSize = 1000
	segments    = 20
)

func TestDatagramsSentAsSegmentsArriveWhole(t *testing.T) {
	checkSegments(t, onStage(t, options{}))
}

// cutLater has the kernel make datagrams of one size of what is written (UDP_SEGMENT).
func cutLater(t *testing.T, socket *net.UDPConn) {
	t.Helper()
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, segmentSize)
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// inSegments is content for all of them.
func inSegments(seed uint64) []byte {
	content := make([]byte, segmentSize*segments-segmentSize/2)
	_, _ = lab.NewStream(seed).Read(content)
	return content
}

// receives reads the datagrams of some content, in order, and returns who sent them.
func receives(socket *net.UDPConn, content []byte) (from netip.AddrPort, err error) {
	if err := socket.SetReadDeadline(time.Now().Add(lab.Patience)); err != nil {
		return from, err
	}
	buffer := make([]byte, 64<<10)
	for i := 0; len(content) > 0; i++ {
		n, who, err := socket.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return from, fmt.Errorf("datagram %d: %w", i+1, err)
		}
		want := content[:min(segmentSize, len(content))]
		if !bytes.Equal(buffer[:n], want) {
			return from, fmt.Errorf("datagram %d: %d bytes, other ones than %d that were sent", i+1, n, len(want))
		}
		content, from = content[len(want):], who
	}
	return from, nil
}

// checkSegments has clients of the first node send such datagrams to a server on each node, and get such answers, first and later in a conversation.
func checkSegments(t *testing.T, s *stage) {
	const port = 8099
	s.serve(s.next(), ready(s.near)...) // the pods are known by now
	for _, backend := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		of.publishAt(port, ready(backend)...)
		of.awaitFrontends()
		for _, six := range []bool{false, true} {
			server, err := backend.DatagramSocket(six, port)
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			cutLater(t, server)
			for _, client := range []host{s.pod, s.here, s.outside} {
				for _, first := range [][]byte{inSegments(1), []byte("hello")} {
					conn := s.dial(client, of, loadBalancer, way{"udp", six})
					socket := conn.Conn.(*net.UDPConn)
					cutLater(t, socket)
					if err := converses(socket, server, first, inSegments(2), inSegments(3), inSegments(4)); err != nil {
						t.Errorf("%s with %s, IPv6 %t, %d bytes first: %v", client, backend, six, len(first), err)
					}
				}
			}
		}
	}
}

// converses has two sockets send each other content by turns.
func converses(client, server *net.UDPConn, said ...[]byte) error {
	var from netip.AddrPort
	for i, content := range said {
		var err error
		if i%2 == 0 {
			if _, err = client.Write(content); err == nil {
				from, err = receives(server, content)
			}
		} else if _, err = server.WriteToUDPAddrPort(content, from); err == nil {
			_, err = receives(client, content)
		}
		if err != nil {
			return fmt.Errorf("turn %d: %w", i+1, err)
		}
	}
	return nil
}
