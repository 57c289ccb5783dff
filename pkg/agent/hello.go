// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	tables "github.com/nearlb/nearlb/pkg/maps"
)

const (
	helloFlags    = 0x80
	helloCritical = 0x40 // beside them where there is an option
	helloKind     = 3
	helloAnswer   = 4
	helloDirect   = 1 // beside it, as the next one
	helloNoWay    = 2 // it is there, and has no way back for packets of this node

	cookieWords = 3  // of four bytes
	helloMost   = 64 // bytes that are read of an answer: more than one has
)

// cookieOption is the cookie's header.
func cookieOption() []byte { return []byte{0xff, 0x01, 0x82, cookieWords - 1} }

// helloOf is a datagram of the tunnel (bpf/lib/tunnel_in.h): a Geneve header of an OAM packet without a protocol, and the mark, which the answer has,
// too. Where there are keys, this node's cookie is between them, or zeros in its place: the answer has that of the other node there.
func helloOf(c tables.Cookies, mark uint64) []byte {
	out := []byte{0, helloFlags, 0, 0, 0, 0, helloKind, 0}
	if c.Asked {
		out[0], out[1] = cookieWords, helloFlags|helloCritical
		out = binary.LittleEndian.AppendUint64(append(out, cookieOption()...), c.Sent)
	}
	return binary.BigEndian.AppendUint64(out, mark)
}

// answerOf says whether a datagram answers a hello, of a node whose cookie is taken here, and gives the hello's mark.
func answerOf(in []byte, c tables.Cookies) (mark uint64, is bool) {
	like := helloOf(c, 0)
	if len(in) != len(like) || in[6] != helloAnswer || !bytes.Equal(in[:6], like[:6]) {
		return 0, false
	}
	if c.Asked && (!bytes.Equal(in[8:12], cookieOption()) || !slices.Contains(c.Accepted[:], binary.LittleEndian.Uint64(in[12:]))) {
		return 0, false
	}
	return binary.BigEndian.Uint64(in[len(in)-8:]), true
}

// helloSockets ask other nodes, by the own address that each asks from: one of each family.
type helloSockets map[netip.Addr]*net.UDPConn

// open has sockets for these addresses and no others, at a port, 0: at any. Whoever hears ends with its socket.
func (s helloSockets) open(own []netip.Addr, port uint16, hear func(*net.UDPConn)) error {
	var errs []error
	for at, socket := range s {
		if !slices.Contains(own, at) {
			_ = socket.Close()
			delete(s, at)
		}
	}
	for _, at := range own {
		if s[at] != nil {
			continue
		}
		socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, port)))
		if err != nil {
			errs = append(errs, fmt.Errorf("socket at %s: %w", netip.AddrPortFrom(at, port), err))
			continue
		}
		_ = socket.SetReadBuffer(helloBuffer) // or as much of it as the kernel gives
		s[at] = socket
		hear(socket)
	}
	return errors.Join(errs...)
}

// from is the socket that asks an address, nil: there is none of its family.
func (s helloSockets) from(to netip.Addr) *net.UDPConn {
	for at, socket := range s {
		if at.Is4() == to.Is4() {
			return socket
		}
	}
	return nil
}

// close ends all who hear.
func (s helloSockets) close() {
	for at, socket := range s {
		_ = socket.Close()
		delete(s, at)
	}
}
