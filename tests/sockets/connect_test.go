// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/sockdiag"
)

func TestSocketsOfTheHost(t *testing.T) {
	on(t, attach.HostSockets, func(r *rig) {
		r.serveAll(r.calls)
		for _, f := range families() {
			for name, test := range map[string]func(*rig, family){
				"a stream reaches a backend and shows the frontend as its peer":    streams,
				"streams spread over the backends":                                 spread,
				"datagrams are answered by the frontend and stay on their backend": datagrams,
				"datagrams of one socket to two frontends":                         twoFrontends,
				"a socket that was connected once speaks with the backend itself":  disconnected,
				"a connected socket that names its frontend keeps its backend":     namesItsFrontend,
				"a connected socket that is refused elsewhere stays connected":     refusedElsewhere,
				"a socket that asked by a frontend may ask the backend itself":     backendItself,
				"datagrams follow a frontend to another service":                   moved,
				"a connected UDP socket is ended when its backend stops serving":   abandoned,
				"a service without backends refuses":                               refusals,
				"policy Local without local backends is unreachable":               unreachable,
				"loopback addresses stand for the node's NodePorts":                loopback,
				"other ports and addresses of services":                            unknown,
				"session affinity":                                                 affinity,
				"source ranges judge the address that the socket is bound to":      ranges,
				"what is for no service is left alone":                             direct,
			} {
				t.Run(f.name+"/"+name, func(t *testing.T) { test(r.in(t), f) })
			}
		}
	})
}

func web(f family, protocol lb.Protocol, servers ...int) service {
	return service{at: netip.AddrPortFrom(vip(f.six, 1), 80), protocol: protocol, servers: servers}
}

func streams(r *rig, f family) {
	web := web(f, lb.TCP, 1, 2, 3)
	r.publish(web.decide())
	s := r.socket(f, unix.SOCK_STREAM)
	r.must(s.connect(web.at))
	if got := s.peer(); got != web.at {
		r.Errorf("the peer is %s, want %s", got, web.at)
	}
	if who, err := s.say(); err != nil || who == "" {
		r.Errorf("answered by %q, %v", who, err)
	}
}

func spread(r *rig, f family) {
	web := web(f, lb.TCP, 1, 2, 3)
	r.publish(web.decide())
	seen := map[string]int{}
	for range 60 {
		who, err := r.reach(f, web.at)
		r.must(err)
		seen[who]++
	}
	if len(seen) != 3 {
		r.Errorf("60 connections reached %v, want three servers", seen)
	}
}

func datagrams(r *rig, f family) {
	web := web(f, lb.UDP, 1, 2, 3)
	r.publish(web.decide())
	s := r.socket(f, unix.SOCK_DGRAM)
	first := ""
	for range 8 {
		who, from, err := s.ask(web.at)
		r.must(err)
		if from != web.at {
			r.Fatalf("the answer is from %s, want %s", from, web.at)
		}
		if first == "" {
			first = who
		}
		if who != first {
			r.Fatalf("answered by %s after %s, which serves", who, first)
		}
	}
	number, _ := strconv.Atoi(first)
	web.quiet = []int{number}
	r.publish(web.decide())
	for range 3 {
		who, from, err := s.ask(web.at)
		r.must(err)
		if who == first || from != web.at {
			r.Fatalf("answered by %s from %s, though it serves no more", who, from)
		}
	}
}

func twoFrontends(r *rig, f family) {
	web := web(f, lb.UDP, 1)
	two := web.decide()
	second := two.Frontends[0]
	second.Key.Address = netip.AddrPortFrom(vip(f.six, 2), 81)
	two.Frontends = append(two.Frontends, second)
	r.publish(two)
	s := r.socket(f, unix.SOCK_DGRAM)
	for _, to := range []netip.AddrPort{web.at, second.Key.Address, web.at} {
		if _, from, err := s.ask(to); err != nil || from != to {
			r.Errorf("asked %s, answered by %s, %v", to, from, err)
		}
	}
}

func disconnected(r *rig, f family) {
	web := web(f, lb.UDP, 1)
	r.publish(web.decide())
	s := r.socket(f, unix.SOCK_DGRAM)
	r.must(s.connect(web.at))
	if _, from, err := s.hear(s.write()); err != nil || from != web.at {
		r.Errorf("connected, answered by %s, %v", from, err)
	}
	r.must(s.disconnect())
	to := netip.AddrPortFrom(backend(f.six, 1), serverPort)
	if _, from, err := s.ask(to); err != nil || from != to {
		r.Errorf("asked %s, answered by %s, %v", to, from, err)
	}
}

func abandoned(r *rig, f family) {
	web := web(f, lb.UDP, 1, 2, 3)
	r.publish(web.decide())
	var all []*socket
	var who []string
	for range 60 { // so many that chance gives some to each of three servers
		s := r.socket(f, unix.SOCK_DGRAM)
		r.must(s.connect(web.at))
		name, err := s.say()
		r.must(err)
		if got := s.peer(); got != web.at {
			r.Fatalf("the peer is %s, want %s", got, web.at)
		}
		all, who = append(all, s), append(who, name)
	}
	own := r.socket(f, unix.SOCK_DGRAM)
	r.must(own.connect(netip.AddrPortFrom(backend(f.six, 1), serverPort)))
	web.quiet = []int{1}
	r.publish(web.decide())
	ended := r.endAbandoned()
	want := 0
	for i, s := range all {
		_, err := s.say()
		if who[i] == "1" {
			want++
			if !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EDESTADDRREQ) {
				r.Errorf("a socket to a backend that serves no more: %v", err)
			}
		} else if err != nil {
			r.Errorf("a socket to a backend that serves: %v", err)
		}
	}
	if ended != want || want == 0 {
		r.Errorf("%d sockets ended, %d had the backend", ended, want)
	}
	if _, err := own.say(); err != nil {
		r.Errorf("a socket that named the server itself: %v", err)
	}
}

// endAbandoned does what an agent does when it may have to.
func (r *rig) endAbandoned() (ended int) {
	r.Helper()
	r.do(func() error {
		peers, err := maps.Peers(r.objects.SockPeers)
		if err != nil {
			return err
		}
		ended, err = sockdiag.End(netns.None(), func(cookie uint64, remote netip.AddrPort) bool {
			peer, ours := peers[cookie]
			return ours && r.tables.Reader().Abandoned(remote, peer)
		})
		return err
	})
	return ended
}

// denied checks what all calls that name the service's address fail with.
func (r *rig) denied(f family, to netip.AddrPort, want error) {
	r.Helper()
	if err := r.socket(f, unix.SOCK_STREAM).connect(to); !errors.Is(err, want) {
		r.Errorf("connect a stream to %s: %v, want %v", to, err, want)
	}
	if err := r.socket(f, unix.SOCK_DGRAM).connect(to); !errors.Is(err, want) {
		r.Errorf("connect datagrams to %s: %v, want %v", to, err, want)
	}
	if err := unix.Sendto(r.socket(f, unix.SOCK_DGRAM).fd, []byte("who"), 0, f.sockaddr(to)); !errors.Is(err, want) {
		r.Errorf("send a datagram to %s: %v, want %v", to, err, want)
	}
}

// both publishes the frontend for both protocols.
func (r *rig) both(s service) {
	d := s.decide()
	s.protocol = lb.UDP
	other := s.decide()
	d.Frontends, d.Backends = append(d.Frontends, other.Frontends...), append(d.Backends, other.Backends...)
	r.publish(d)
}

func refusals(r *rig, f family) {
	web := web(f, lb.TCP)
	web.deny, web.reason = lb.Reject, lb.ReasonNoEndpoints
	r.both(web)
	r.denied(f, web.at, unix.ECONNREFUSED)
}

func unreachable(r *rig, f family) {
	web := web(f, lb.TCP)
	web.deny, web.reason = lb.Drop, lb.ReasonNoLocalEndpoints
	r.both(web)
	r.denied(f, web.at, unix.EHOSTUNREACH)
}

func unknown(r *rig, f family) {
	web := web(f, lb.TCP, 1)
	r.both(web)
	r.denied(f, netip.AddrPortFrom(web.at.Addr(), 81), unix.ECONNREFUSED)
	r.denied(f, netip.AddrPortFrom(vip(f.six, 7), 80), unix.EHOSTUNREACH)
}

func loopback(r *rig, f family) {
	nodePort := service{kind: lb.KindNodePort, at: netip.AddrPortFrom(node(f.six), 30080), protocol: lb.TCP, servers: []int{1, 2}}
	r.both(nodePort)
	for _, address := range []netip.Addr{node(f.six), pick(f.six, "127.0.0.1", "::1"), pick(f.six, "127.1.2.3", "::1")} {
		to := netip.AddrPortFrom(address, 30080)
		s := r.socket(f, unix.SOCK_STREAM)
		r.must(s.connect(to))
		if who, err := s.say(); err != nil || who == "" || s.peer() != to {
			r.Errorf("%s: answered by %q of %s, %v", to, who, s.peer(), err)
		}
		if who, from, err := r.socket(f, unix.SOCK_DGRAM).ask(to); err != nil || who == "" || from != to {
			r.Errorf("%s: datagram answered by %q from %s, %v", to, who, from, err)
		}
	}
	clusterIP := service{at: netip.AddrPortFrom(node(f.six), 30081), protocol: lb.TCP, servers: []int{1}}
	r.publish(clusterIP.decide())
	if who, err := r.reach(f, netip.AddrPortFrom(pick(f.six, "127.0.0.1", "::1"), 30081)); !errors.Is(err, unix.ECONNREFUSED) {
		r.Errorf("a loopback address stands for what is no NodePort: %q, %v", who, err)
	}
}

func affinity(r *rig, f family) {
	web := web(f, lb.TCP, 1, 2, 3)
	web.affinity = time.Hour
	r.publish(web.decide())
	first := ""
	for range 15 {
		who, err := r.reach(f, web.at)
		r.must(err)
		if first != "" && who != first {
			r.Fatalf("reached %s after %s", who, first)
		}
		first = who
	}
}

func ranges(r *rig, f family) {
	web := web(f, lb.TCP, 1)
	web.kind, web.ranges = lb.KindLoadBalancer, []netip.Prefix{netip.PrefixFrom(node(f.six), node(f.six).BitLen())}
	r.publish(web.decide())
	if _, err := r.reach(f, web.at); err != nil {
		r.Errorf("an unbound socket, which stands for the node's address: %v", err)
	}
	s := r.socket(f, unix.SOCK_STREAM)
	r.must(unix.Bind(s.fd, f.sockaddr(netip.AddrPortFrom(backend(f.six, 2), 0))))
	if err := s.connect(web.at); !errors.Is(err, unix.EHOSTUNREACH) {
		r.Errorf("a socket bound to an address outside of the ranges: %v, want %v", err, unix.EHOSTUNREACH)
	}
}

func direct(r *rig, f family) {
	r.publish(web(f, lb.TCP, 1, 2).decide())
	to := netip.AddrPortFrom(backend(f.six, 3), serverPort)
	s := r.socket(f, unix.SOCK_STREAM)
	r.must(s.connect(to))
	if who, err := s.say(); err != nil || who != "3" || s.peer() != to {
		r.Errorf("answered by %q of %s, %v", who, s.peer(), err)
	}
	if who, from, err := r.socket(f, unix.SOCK_DGRAM).ask(to); err != nil || who != "3" || from != to {
		r.Errorf("datagram answered by %q from %s, %v", who, from, err)
	}
}

// A pod's namespace has the service's address itself here, so that a call that is left alone reaches another server.
func TestSocketsOfOtherNamespacesAreServedOnlyWhenAllAre(t *testing.T) {
	for mode, want := range map[attach.SocketMode]string{attach.HostSockets: "untouched", attach.AllSockets: "1"} {
		t.Run(string(mode), func(t *testing.T) {
			on(t, mode, func(r *rig) {
				pod := host(t, r.cgroup)
				r.serveAll(pod)
				for _, f := range families() {
					t.Run(f.name, func(t *testing.T) { inPod(r.in(t), f, pod, want) })
				}
			})
		})
	}
}

func inPod(r *rig, f family, pod chan func(), want string) {
	web := service{at: netip.AddrPortFrom(vip(f.six, 99), 80), protocol: lb.TCP, servers: []int{1}}
	r.both(web)
	r.serve(pod, "untouched", web.at)
	s := r.socketOf(pod, f, unix.SOCK_STREAM)
	r.must(s.connect(web.at))
	if who, err := s.say(); err != nil || who != want || s.peer() != web.at {
		r.Errorf("answered by %q of %s, %v; want %q", who, s.peer(), err, want)
	}
	if who, from, err := r.socketOf(pod, f, unix.SOCK_DGRAM).ask(web.at); err != nil || who != want || from != web.at {
		r.Errorf("datagram answered by %q from %s, %v; want %q", who, from, err, want)
	}
}

// By turns the datagrams would go to other backends, from which a connected socket hears nothing.
func namesItsFrontend(r *rig, f family) {
	web := web(f, lb.UDP, 1, 2, 3)
	d := web.decide()
	d.Balancing = lb.BalanceRoundRobin
	r.publish(d)
	for range 6 {
		s := r.socket(f, unix.SOCK_DGRAM)
		r.must(s.connect(web.at))
		first, err := s.say()
		r.must(err)
		for range 3 {
			if who, from, err := s.ask(web.at); err != nil || who != first || from != web.at {
				r.Fatalf("connected to %s, answered by %q from %s, %v", first, who, from, err)
			}
		}
	}
}

func refusedElsewhere(r *rig, f family) {
	web := web(f, lb.UDP, 1)
	r.publish(web.decide())
	s := r.socket(f, unix.SOCK_DGRAM)
	r.must(s.connect(web.at))
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(web.at.Addr(), 81), netip.AddrPortFrom(vip(f.six, 7), 80)} {
		if err := s.connect(to); err == nil {
			r.Fatalf("connected to %s", to)
		}
		if got := s.peer(); got != web.at {
			r.Errorf("the peer is %s, want %s", got, web.at)
		}
		if _, from, err := s.hear(s.write()); err != nil || from != web.at {
			r.Errorf("answered by %s, %v", from, err)
		}
	}
}

func backendItself(r *rig, f family) {
	web := web(f, lb.UDP, 1)
	r.publish(web.decide())
	s := r.socket(f, unix.SOCK_DGRAM)
	itself := netip.AddrPortFrom(backend(f.six, 1), serverPort)
	for _, to := range []netip.AddrPort{web.at, itself, web.at, itself} {
		if _, from, err := s.ask(to); err != nil || from != to {
			r.Errorf("asked %s, answered by %s, %v", to, from, err)
		}
	}
	if _, from, err := s.ask(web.at); err != nil || from != web.at {
		r.Errorf("answered by %s, %v", from, err)
	}
	r.must(s.connect(itself))
	if _, from, err := s.hear(s.write()); err != nil || from != itself {
		r.Errorf("connected to %s, answered by %s, %v", itself, from, err)
	}
}

func moved(r *rig, f family) {
	at := netip.AddrPortFrom(node(f.six), 30080)
	blue := service{kind: lb.KindNodePort, at: at, protocol: lb.UDP, servers: []int{1}}
	r.publish(blue.decide())
	asked, connected := map[netip.AddrPort]*socket{}, []*socket{}
	for _, address := range []netip.Addr{node(f.six), pick(f.six, "127.0.0.1", "::1")} {
		to := netip.AddrPortFrom(address, at.Port())
		asked[to] = r.socket(f, unix.SOCK_DGRAM)
		if who, _, err := asked[to].ask(to); err != nil || who != "1" {
			r.Fatalf("%s answered by %q, %v", to, who, err)
		}
		s := r.socket(f, unix.SOCK_DGRAM)
		r.must(s.connect(to))
		connected = append(connected, s)
	}
	blue.at = netip.AddrPortFrom(at.Addr(), 30081) // it lives on elsewhere, and so does its server
	r.publish(blue.decide())
	stays := r.socket(f, unix.SOCK_DGRAM)
	r.must(stays.connect(blue.at))
	if ended := r.endAbandoned(); ended != 0 {
		r.Errorf("%d sockets ended though nobody has their frontend", ended)
	}
	green := service{kind: lb.KindNodePort, at: at, protocol: lb.UDP, servers: []int{2}}.decide()
	green.Service.Name = "green"
	green.Frontends[0].Port.Service = green.Service
	r.publish(green)
	for to, s := range asked {
		if who, from, err := s.ask(to); err != nil || who != "2" || from != to {
			r.Errorf("asked %s, answered by %q from %s, %v", to, who, from, err)
		}
	}
	if ended := r.endAbandoned(); ended != len(connected) {
		r.Errorf("%d sockets ended, want %d", ended, len(connected))
	}
	for _, s := range connected {
		if _, err := s.say(); !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EDESTADDRREQ) {
			r.Errorf("a socket that was connected by the frontend: %v", err)
		}
	}
	if who, err := stays.say(); err != nil || who != "1" {
		r.Errorf("a socket of the service that lives on: %q, %v", who, err)
	}
}
