// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/privileged"
)

// sctpPort is the Service's and the backends': SCTP is translated where the port stays the same. otherPort is a Service port
// whose backends listen on sctpPort.
const (
	sctpPort  = 9132
	otherPort = 132
)

// requireSCTP skips the test where the kernel has no such sockets.
func requireSCTP(t *testing.T) {
	t.Helper()
	privileged.Require(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no SCTP: make test-kernels boots some that have")
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

func TestSCTPAssociationsReachBackends(t *testing.T) {
	requireSCTP(t)
	for name, o := range map[string]options{"routed": {alone: true}, "through VXLAN, with a CNI's rules": {lab: lab.Options{Network: lab.Tunneled, Netfilter: true}}} {
		t.Run(name, func(t *testing.T) {
			s := onStage(t, o)
			s.mayDrop("drop_sctp_port")
			for _, p := range []*lab.Pod{s.near, s.far} {
				serveSCTP(t, p)
			}
			for i, backend := range []*lab.Pod{s.near, s.far} {
				to := s.sctpService(i+1, backend)
				for _, six := range []bool{false, true} {
					for _, client := range []*lab.Host{&s.pod.Host, &s.outside.Host} {
						s.judgeSCTP(client, to, six, backend)
					}
					s.refuseSCTP(&s.pod.Host, netip.AddrPortFrom(to.address(six).Addr(), otherPort))
				}
			}
		})
	}
}

// sctpService publishes a Service with ports of every protocol, and waits until a pod is answered.
func (s *stage) sctpService(number int, backend *lab.Pod) *service {
	s.t.Helper()
	of := s.service(number)
	port := func(name string, number uint16) lab.Port { return lab.Port{Name: name, Protocol: "SCTP", Port: number} }
	of.Ports = append(of.Ports, port("same", sctpPort), port("other", otherPort))
	slices := lab.Slices{Service: of.Name, Ports: append(ports(targetPort), port("same", sctpPort), port("other", sctpPort)), Endpoints: ready(backend)}
	of.write(of.Name+".yaml", append(slices.Objects(), of.Service)...)
	of.awaitServer(s.pod, backend.Name)
	return of
}

// judgeSCTP holds an association against what is to become of it: a client off the node whose backend is on another one
// would have to change its port.
func (s *stage) judgeSCTP(client *lab.Host, of *service, six bool, backend *lab.Pod) {
	s.t.Helper()
	to := netip.AddrPortFrom(of.address(six).Addr(), sctpPort)
	if client == &s.outside.Host && backend == s.far {
		s.refuseSCTP(client, to)
		return
	}
	conn, err := dialSCTP(client, to, patience)
	if err != nil {
		s.t.Errorf("%s to %s, backend %s: %v", client, to, backend, err)
		return
	}
	defer conn.Close()
	want := fmt.Sprintf("%s %s", backend.Name, conn.LocalAddr())
	for range 3 {
		answer := make([]byte, 200)
		_, err := conn.Write([]byte("who"))
		n := 0
		if err == nil {
			n, err = conn.Read(answer)
		}
		if got := string(answer[:n]); err != nil || got != want {
			s.t.Errorf("%s asks %s: answer %q, want %q; %v", client, to, got, want, err)
		}
	}
}

// refuseSCTP wants no association, and a packet counted as dropped for its port.
func (s *stage) refuseSCTP(client *lab.Host, to netip.AddrPort) {
	s.t.Helper()
	before := s.verdicts(0)["drop_sctp_port"]
	if conn, err := dialSCTP(client, to, time.Second); err == nil {
		conn.Close()
		s.t.Errorf("%s to %s: connected, though the port would have to change", client, to)
	}
	s.await("a packet dropped for its port", func() bool { return s.verdicts(0)["drop_sctp_port"] > before })
}

// socketSCTP makes a socket on one of the host's addresses alone: one that has several tells its peer of all of them.
func socketSCTP(h *lab.Host, six bool, port uint16, use func(fd int) error) (file *os.File, err error) {
	family := map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[six]
	err = h.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "sctp")
		return errors.Join(unix.Bind(fd, sockaddr(netip.AddrPortFrom(h.Address(six), port))), use(fd))
	})
	if err != nil && file != nil {
		file.Close()
	}
	return file, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// dialSCTP tries to connect for that long. Go's sockets of streams work on such a file as well.
func dialSCTP(h *lab.Host, to netip.AddrPort, limit time.Duration) (net.Conn, error) {
	file, err := socketSCTP(h, to.Addr().Is6(), 0, func(fd int) error {
		left := unix.NsecToTimeval(limit.Nanoseconds())
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &left), unix.Connect(fd, sockaddr(to)))
	})
	if err != nil {
		return nil, err
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(patience))
}

// serveSCTP answers each message with the pod's name and the address that the client has here.
func serveSCTP(t *testing.T, p *lab.Pod) {
	t.Helper()
	for _, six := range []bool{false, true} {
		file, err := socketSCTP(&p.Host, six, sctpPort, func(fd int) error { return unix.Listen(fd, 16) })
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		listener, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go acceptSCTP(p.Name, listener)
	}
}

func acceptSCTP(name string, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			buffer := make([]byte, 200)
			for {
				n, err := conn.Read(buffer)
				if err != nil || strings.TrimSpace(string(buffer[:n])) != "who" {
					return
				}
				if _, err := fmt.Fprintf(conn, "%s %s", name, conn.RemoteAddr()); err != nil {
					return
				}
			}
		}()
	}
}
