// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// What one pod holds: each of its ports has a connection to each of the Services. Of most of them the sockets go without a packet, as those of hosts
// that lose power: programs see connections that are there, and this process may have fewer open files.
const (
	heldServices  = 6
	heldPorts     = 16_000
	heldFirstPort = 10_000 // the pod's, below those that sockets get by themselves
	heldOpen      = 16     // one in so many keeps its sockets
	heldServer    = 9100   // the first of the servers' ports, one for each Service
)

// held is a pod that opens connections and keeps all of them.
type held struct {
	*stage
	name string
	to   []*service
	got  [2]measured
}

// byOnePod measures how fast a pod opens 96,000 connections through six Services, 37 % of a table of 262,144 flows, and as many again over IPv6: none is
// refused, and those that are asked at the end are there.
func (b *bench) byOnePod(t *testing.T) {
	all := []*held{newHeld(t, "nearlb", options{})}
	if b.kubeProxy != "" {
		all = append(all, newHeld(t, "kube-proxy", options{kubeProxy: b.kubeProxy}))
	}
	for family, six := range []bool{false, true} {
		for _, h := range all {
			h.measure(t, family, six)
		}
	}
	rows := make([]row, len(all))
	for i, h := range all {
		rows[i] = row{name: h.name, got: &h.got, of: &all[0].got}
		if b.kubeProxy != "" {
			rows[i].proxy = &all[len(all)-1].got
		}
	}
	b.table(fmt.Sprintf("connections a second of a pod that keeps %s of them, each of its ports to six Services", thousands(heldServices*heldPorts)), "nearlb's", rows)
}

func newHeld(t *testing.T, name string, o options) *held {
	t.Helper()
	h := &held{stage: newBusyStage(t, o), name: name}
	for i := range uint16(heldServices) {
		of := h.next()
		of.publishAt(heldServer+i, ready(h.near)...)
		h.to = append(h.to, of)
	}
	return h
}

// measure opens them in one family, asks each a byte once all are there, and closes them.
func (h *held) measure(t *testing.T, family int, six bool) {
	t.Helper()
	defer h.answerHeld(t, six)()
	for _, of := range h.to {
		h.await(h.name+" answers", func() bool {
			return h.pod.Do(func() error { fd, err := openQuestions(of.address(six)); _ = unix.Close(fd); return err }) == nil
		})
	}
	var fds []int
	defer func() { closeAll(fds) }()
	h.got[family].count(func() float64 {
		if err := h.pod.Do(func() (err error) { fds, err = h.open(six); return err }); err != nil {
			t.Fatalf("%s, IPv6 %t: some %d connections are there, and then: %v", h.name, six, heldOpen*len(fds), err)
		}
		return heldServices * heldPorts
	})
	for i, fd := range fds {
		if err := ask(fd); err != nil {
			t.Fatalf("%s, IPv6 %t: connection %d: %v", h.name, six, heldOpen*i+1, err)
		}
	}
}

// isOpen tells which ones keep their sockets.
func isOpen(port uint16, service int) bool {
	return (int(port-heldFirstPort)*heldServices+service)%heldOpen == 0
}

// vanish closes a socket without a packet.
func vanish(fd int) error {
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1), unix.Close(fd))
}

// open opens all of them, up to the first that is refused, and returns those that keep their sockets.
func (h *held) open(six bool) (fds []int, err error) {
	for port := uint16(heldFirstPort); port < heldFirstPort+heldPorts; port++ {
		for i, of := range h.to {
			fd, err := openFrom(netip.AddrPortFrom(h.pod.Address(six), port), of.address(six))
			if err == nil && isOpen(port, i) {
				fds = append(fds, fd)
			} else if err == nil {
				err = vanish(fd)
			}
			if err != nil {
				return fds, err
			}
		}
	}
	return fds, nil
}

// openFrom connects from a port that other connections may have.
func openFrom(from, to netip.AddrPort) (int, error) {
	local, family := rushAddress(from)
	remote, _ := rushAddress(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	patience := unix.NsecToTimeval(int64(rushPatience))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	if err == nil {
		err = unix.Bind(fd, local)
	}
	if err == nil {
		err = rushConnect(fd, remote)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("connect %s to %s: %w", from, to, err), unix.Close(fd))
	}
	return fd, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// answerHeld sends back each byte of each connection to the pod's servers, all of them by one thread, until it is ended.
func (h *held) answerHeld(t *testing.T, six bool) (end func()) {
	t.Helper()
	s := heldServers{open: map[int]int{}}
	var err error
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if s.end, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := s.add(s.end, -1); err != nil {
		t.Fatal(err)
	}
	for i := range heldServices {
		if err := h.near.Do(func() error {
			fd, err := listenRush(netip.AddrPortFrom(h.near.Address(six), uint16(heldServer+i)))
			return errors.Join(err, s.add(fd, i))
		}); err != nil {
			t.Fatal(err)
		}
	}
	var all errgroup.Group
	all.Go(s.serve)
	return func() {
		if _, err := unix.Write(s.end, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
			t.Error(err)
		}
		if err := all.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// heldServers are listeners and their connections.
type heldServers struct {
	poll, end int
	open      map[int]int // descriptors: of a listener the number of its Service, else -1
}

func (s *heldServers) add(fd, service int) error {
	s.open[fd] = service
	return unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (s *heldServers) serve() error {
	defer func() { closeAll(append(slices.Collect(maps.Keys(s.open)), s.poll)) }()
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := uninterrupted(func(poll int, _ []byte) (int, error) { return unix.EpollWait(poll, events, -1) }, s.poll, nil)
		if err != nil {
			return fmt.Errorf("wait for connections: %w", err)
		}
		for _, e := range events[:n] {
			if int(e.Fd) == s.end {
				return nil
			}
			if err := s.answer(int(e.Fd)); err != nil {
				return err
			}
		}
	}
}

// answer takes one connection, or one byte.
func (s *heldServers) answer(fd int) error {
	if service := s.open[fd]; service >= 0 {
		conn, from, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if port := portOf(from); port < heldFirstPort || port >= heldFirstPort+heldPorts || isOpen(port, service) {
			return s.add(conn, -1)
		}
		return vanish(conn)
	}
	var b [1]byte
	if n, err := uninterrupted(unix.Read, fd, b[:]); n != 1 || err != nil {
		delete(s.open, fd)
		return unix.Close(fd)
	}
	_, err := uninterrupted(unix.Write, fd, b[:])
	return err
}

func portOf(address unix.Sockaddr) uint16 {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port)
	case *unix.SockaddrInet6:
		return uint16(a.Port)
	}
	return 0
}
