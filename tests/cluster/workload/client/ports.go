// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net"
	"net/netip"
	"time"
)

// What a client says of the port of a connection that has no answer.
const (
	NewPort   = "new-port"
	KnownPort = "known-port" // Ports knows it
)

// Ports remembers which ports of a client datagrams came from. One that comes again soon goes where the one before went: connection
// tracking still knows it. It is not for several goroutines.
type Ports struct {
	last map[netip.AddrPort]map[int]use
}

// use is of a port, towards one address.
type use struct {
	at     time.Time
	stream bool // the port was known then from the time before
}

// known: connection tracking keeps a question that has its answer for 30 seconds, and a stream for 120 (nf_conntrack_udp_timeout,
// nf_conntrack_udp_timeout_stream).
func (u use) known(now time.Time) bool {
	since := now.Sub(u.at)
	return since < 30*time.Second || u.stream && since < 120*time.Second
}

// Use notes that a connection was made, and says whether its port is known still from the one before. Over TCP none is.
func (p *Ports) Use(conn net.Conn, now time.Time) bool {
	from, datagrams := conn.LocalAddr().(*net.UDPAddr)
	if !datagrams {
		return false
	}
	to := conn.RemoteAddr().(*net.UDPAddr).AddrPort()
	return p.use(to, from.Port, now)
}

func (p *Ports) use(to netip.AddrPort, port int, now time.Time) bool {
	if p.last == nil {
		p.last = map[netip.AddrPort]map[int]use{}
	}
	if p.last[to] == nil {
		p.last[to] = map[int]use{}
	}
	before, found := p.last[to][port]
	known := found && before.known(now)
	p.last[to][port] = use{now, known}
	return known
}
