// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// rush opens connections one after the other as fast as it can, asks a byte over each, and closes it.
type rush struct {
	serverCloses bool // first; else the client does
	at           int  // connections at a time
	lasts        time.Duration
	count        int64 // 0: as many as there is time for
}

// rushed is what became of it.
type rushed struct {
	connections, errors int64
	first               error // of the errors
	took                time.Duration
}

// rate is of connections a second.
func (r rushed) rate() float64 { return float64(r.connections) / r.took.Seconds() }

func (r rushed) String() string {
	return fmt.Sprintf("%d connections, %d errors, %.0f/s", r.connections, r.errors, r.rate())
}

func (r rush) goesOn(number int64, took time.Duration) bool {
	return (r.lasts == 0 || took < r.lasts) && (r.count == 0 || number <= r.count)
}

// rushPatience is longer than five retransmissions of a SYN take.
const rushPatience = 20 * time.Second

// run has the client connect for a time. Its sockets wait as long as rushPatience for anything.
func (r rush) run(client *lab.Namespace, to netip.AddrPort) (out rushed) {
	var begun, done, failed atomic.Int64
	var first atomic.Pointer[error]
	began := time.Now()
	var workers errgroup.Group
	for range r.at {
		workers.Go(func() error {
			return client.Do(func() error {
				for r.goesOn(begun.Add(1), time.Since(began)) {
					err := rushOnce(to, r.serverCloses)
					if err != nil {
						failed.Add(1)
						first.CompareAndSwap(nil, &err)
						continue
					}
					done.Add(1)
				}
				return nil
			})
		})
	}
	err := workers.Wait()
	out = rushed{connections: done.Load(), errors: failed.Load(), first: err, took: time.Since(began)}
	if e := first.Load(); e != nil {
		out.first = *e
	}
	return out
}

// rushAddress is the kernel's form of an address, and its family.
func rushAddress(a netip.AddrPort) (unix.Sockaddr, int) {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, unix.AF_INET6
}

func rushOnce(to netip.AddrPort, serverCloses bool) error {
	address, family := rushAddress(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(rushPatience))
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience)); err != nil {
		return err
	}
	if err := rushConnect(fd, address); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	question := []byte{'c'}
	if serverCloses {
		question[0] = 's'
	}
	if _, err := uninterrupted(unix.Write, fd, question); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var answer [1]byte
	n, err := uninterrupted(unix.Read, fd, answer[:])
	if err != nil || n != 1 || answer[0] != question[0] {
		return fmt.Errorf("read: %d bytes, %q, %w", n, answer, err)
	}
	if !serverCloses {
		return nil
	}
	if n, err := uninterrupted(unix.Read, fd, answer[:]); n != 0 || err != nil {
		return fmt.Errorf("read to the end: %d bytes, %w", n, err)
	}
	return nil
}

// rushConnect waits for the connection, whatever signals come.
func rushConnect(fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	for errors.Is(err, unix.EINTR) {
		if _, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(rushPatience.Milliseconds())); err != nil {
			continue
		}
		if _, err = unix.Getpeername(fd); err != nil {
			code, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			return errors.Join(err, syscall.Errno(code))
		}
	}
	return err
}

// uninterrupted reads or writes, again after a signal.
func uninterrupted(call func(int, []byte) (int, error), fd int, b []byte) (n int, err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		n, err = call(fd, b)
	}
	return n, err
}

// rushPort is where pods answer a rush.
const rushPort = 9000

// answerRush answers one byte of each connection: 's' has the server close first, all else waits for the client to do so. It ends with
// the test.
func answerRush(t *testing.T, pod *lab.Pod, workers int) {
	t.Helper()
	for _, six := range []bool{false, true} {
		var fd int
		if err := pod.Do(func() (err error) { fd, err = listenRush(netip.AddrPortFrom(pod.Address(six), rushPort)); return err }); err != nil {
			t.Fatal(err)
		}
		var all errgroup.Group
		for range workers {
			all.Go(func() error { return acceptEach(fd, answerRushOnce) })
		}
		endListener(t, fd, &all)
	}
}

// endListener closes a listener with the test, and waits for who accepts there.
func endListener(t *testing.T, fd int, all *errgroup.Group) {
	t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // wakes who accepts
		if err := all.Wait(); err != nil {
			t.Error(err)
		}
		_ = unix.Close(fd)
	})
}

func listenRush(on netip.AddrPort) (int, error) {
	address, family := rushAddress(on)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(unix.Bind(fd, address), unix.Listen(fd, 4096)); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// acceptEach hands connections to serve, which closes them, until the listener is shut down.
func acceptEach(listener int, serve func(fd int)) error {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINVAL):
			return nil // it was shut down
		case errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("accept: %w", err)
		}
		serve(fd)
	}
}

// It waits no longer than clients do: one that was reset unseen would keep its server, and that the test.
func answerRushOnce(fd int) {
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(rushPatience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return
	}
	var b [1]byte
	if n, err := uninterrupted(unix.Read, fd, b[:]); n == 1 && err == nil {
		_, _ = uninterrupted(unix.Write, fd, b[:])
		if b[0] != 's' {
			_, _ = uninterrupted(unix.Read, fd, b[:]) // until the client has closed
		}
	}
}

// rushStage has a Service for a backend on the first node, and one for a backend on the second; the client has many ports, each of which it
// uses again after a second.
func rushStage(t *testing.T, o options) (s *stage, near, far *service) {
	t.Helper()
	s = newStage(t, o)
	if err := s.outside.Sysctl("ipv4/tcp_tw_reuse=1", "ipv4/ip_local_port_range=1024 65535"); err != nil {
		t.Fatal(err)
	}
	services := []*service{}
	for _, p := range []*lab.Pod{s.near, s.far} {
		answerRush(t, p, 12)
		of := s.next()
		of.publishAt(rushPort, ready(p)...)
		for i := range s.agents {
			s.awaitServing(i)
		}
		for _, six := range []bool{false, true} {
			to := s.by(of, nodePort).address(six)
			s.await("a rush is answered", func() bool { return s.outside.Do(func() error { return rushOnce(to, false) }) == nil })
		}
		services = append(services, of)
	}
	return s, services[0], services[1]
}

// A client off the node that opens and closes connections as fast as it can to one backend on another node is refused none, whoever closes
// first: where the backend does, each port is one that it has in TIME_WAIT for a minute, and there are few of the first choice.
func TestConnectionsOffTheNodeAreRefusedNoneHoweverFastTheyCome(t *testing.T) {
	s, _, far := rushStage(t, options{agent: []string{"--snat-ports", "61000-61099"}})
	for _, six := range []bool{false, true} {
		for _, serverCloses := range []bool{false, true} {
			got := rush{serverCloses: serverCloses, at: 8, count: 4000}.run(s.outside.Namespace, s.by(far, nodePort).address(six))
			if got.errors > 0 || got.connections != 4000 {
				t.Errorf("IPv6 %v, the server closes first %v: %s: %v", six, serverCloses, got, got.first)
			}
		}
	}
}

// The node's own connection to a backend keeps its port, though SNAT would take it first for a client off the node.
func TestTheNodesOwnConnectionsKeepTheirPorts(t *testing.T) {
	const port = 61000
	s := newStage(t, options{alone: true, agent: []string{"--snat-ports", fmt.Sprintf("%d-%d", port, port)}})
	of := s.next()
	s.serve(of, ready(s.far)...)
	for _, w := range ways() {
		own := dial(t, s.here, w.network, netip.AddrPortFrom(s.far.Address(w.six), targetPort), port)
		mustBe(t, own, s.far.Name)
		for range 3 {
			conn := s.by(of, nodePort).dial(s.outside, w)
			if answer, err := conn.Who(); err != nil || answer.Client.Port() == port || answer.Client.Port() < 1024 {
				t.Errorf("%s: the backend sees %+v, %v; port %d is the node's own", w, answer, err, port)
			}
			mustBe(t, own, s.far.Name)
			mustBe(t, conn, s.far.Name)
		}
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// publishAt is publish for endpoints that serve on another port.
func (s *service) publishAt(target uint16, endpoints ...lab.Endpoint) {
	s.t.Helper()
	slices := lab.Slices{Service: s.Name, Ports: ports(target), Endpoints: endpoints, SameNode: s.hints}
	s.write(s.Name+".yaml", append(slices.Objects(), s.Service)...)
}
