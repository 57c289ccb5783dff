// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// family is how a client names addresses.
type family struct {
	name   string
	six    bool // the addresses are IPv6's
	mapped bool // an IPv6 socket that names IPv4 addresses
}

func families() []family {
	return []family{{name: "IPv4"}, {name: "IPv6", six: true}, {name: "IPv4-mapped", mapped: true}}
}

// socket is a client's, of the host.
type socket struct {
	r      *rig
	family family
	fd     int
}

// patience is how long a client waits for an answer: long, as the machine may stand still for seconds.
const patience = 60 // seconds

// socket opens one: unix.SOCK_STREAM or unix.SOCK_DGRAM.
func (r *rig) socket(f family, kind int) *socket {
	r.Helper()
	return r.socketOf(r.calls, f, kind)
}

// socketOf opens one of another namespace.
func (r *rig) socketOf(calls chan func(), f family, kind int) *socket {
	r.Helper()
	s := &socket{r: r, family: f}
	domain := unix.AF_INET
	if f.six || f.mapped {
		domain = unix.AF_INET6
	}
	r.must(call(calls, func() (err error) {
		s.fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	r.Cleanup(func() { unix.Close(s.fd) })
	r.must(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}))
	return s
}

func (f family) sockaddr(a netip.AddrPort) unix.Sockaddr {
	if f.six || f.mapped {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func named(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func (s *socket) connect(to netip.AddrPort) error { return unix.Connect(s.fd, s.family.sockaddr(to)) }

// disconnect lets a socket forget its peer.
func (s *socket) disconnect() error {
	nobody := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, err := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&nobody)), unsafe.Sizeof(nobody)); err != 0 {
		return err
	}
	return nil
}

func (s *socket) peer() netip.AddrPort {
	s.r.Helper()
	sa, err := unix.Getpeername(s.fd)
	s.r.must(err)
	return named(sa)
}

// read is what a server says of itself. A signal ends the wait of a socket with a time limit, even one that the Go runtime
// sends to itself.
func (s *socket) read() (string, error) {
	b := make([]byte, 64)
	n, err := unix.Read(s.fd, b)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(s.fd, b)
	}
	return string(b[:max(n, 0)]), err
}

// say sends over a connected socket and reads the answer.
func (s *socket) say() (string, error) {
	if err := s.write(); err != nil {
		return "", err
	}
	return s.read()
}

func (s *socket) write() error {
	_, err := unix.Write(s.fd, []byte("who"))
	return err
}

// ask sends a datagram and reads the answer and whom it is from.
func (s *socket) ask(to netip.AddrPort) (string, netip.AddrPort, error) {
	return s.hear(unix.Sendto(s.fd, []byte("who"), 0, s.family.sockaddr(to)))
}

// hear reads the answer to what was sent without an error, and whom it is from.
func (s *socket) hear(err error) (string, netip.AddrPort, error) {
	if err != nil {
		return "", netip.AddrPort{}, err
	}
	b := make([]byte, 64)
	n, from, err := unix.Recvfrom(s.fd, b, 0)
	for errors.Is(err, unix.EINTR) { // as in read
		n, from, err = unix.Recvfrom(s.fd, b, 0)
	}
	return string(b[:max(n, 0)]), named(from), err
}

// reach connects a stream and reads which server it is.
func (r *rig) reach(f family, to netip.AddrPort) (string, error) {
	r.Helper()
	s := r.socket(f, unix.SOCK_STREAM)
	if err := s.connect(to); err != nil {
		return "", err
	}
	return s.say()
}

// serve answers with a name on one address, over TCP and UDP, until the test ends.
func (r *rig) serve(calls chan func(), name string, at netip.AddrPort) {
	r.Helper()
	var tcp net.Listener
	var udp *net.UDPConn
	r.must(call(calls, func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		if tcp, err = config.Listen(context.Background(), "tcp", at.String()); err != nil {
			return err
		}
		udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	r.Cleanup(func() { tcp.Close(); udp.Close() })
	go answerStreams(tcp, name)
	go answerDatagrams(udp, name)
}

func answerStreams(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go func() {
			defer c.Close()
			b := make([]byte, 64)
			for {
				if _, err := c.Read(b); err != nil {
					return
				}
				fmt.Fprint(c, name)
			}
		}()
	}
}

func answerDatagrams(c *net.UDPConn, name string) {
	b := make([]byte, 64)
	for {
		_, client, err := c.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an earlier answer was refused
		}
		c.WriteToUDPAddrPort([]byte(name), client)
	}
}

// serveAll has the numbered servers answer by their number, at both families' addresses.
func (r *rig) serveAll(calls chan func()) {
	for _, six := range []bool{false, true} {
		for n := 1; n <= 3; n++ {
			r.serve(calls, fmt.Sprint(n), netip.AddrPortFrom(backend(six, n), serverPort))
		}
	}
}
