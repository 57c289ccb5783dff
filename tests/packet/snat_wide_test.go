// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// widen has every port from 1024 on serve where the others are used up; quiet ones come before the rest.
func (s site) widen(ports, quiet maps.PortRange, yield maps.Yield) {
	s.Helper()
	s.configure(ports)
	c, err := s.tables.Config()
	check(s, err)
	c.SNATWide, c.SNATQuiet, c.Yield = true, quiet, yield
	check(s, s.tables.Configure(c))
}

// wide publishes a Service whose backend is elsewhere, and leaves SNAT so many ports of its own and as many quiet ones first.
func (s site) wide(w world, count uint16) (first, quiet maps.PortRange) {
	s.Helper()
	s.seed(1)
	s.publish(far(w, 2))
	s.evict()
	first, quiet = ports(count), maps.PortRange{First: 20000, Last: 20000 + count - 1}
	s.widen(first, quiet, maps.YieldNothing)
	return first, quiet
}

// Ports of --snat-ports serve first, then those that the host's own connections do not get, then all from 1024 on; each once, and with
// answers and errors that reach the client.
func TestPortsBeyondTheRangeServeWhereThatIsUsedUp(t *testing.T) {
	const each, more = 4, 40
	forEachSite(t, withSets(4096), func(s site, w world) {
		first, quiet := s.wide(w, each)
		seen := map[netip.AddrPort]bool{}
		var talks []talk
		for n := range 2*each + more {
			c := s.remote(w.packet(at(w.outside(1), uint16(41000+n)), at(w.outside(10), 80)), "translate_balance")
			port := c.out.src.Port()
			if n < each && !first.Contains(port) || n >= each && n < 2*each && !quiet.Contains(port) || port < 1024 || c.out.src.Addr() != w.own() || seen[c.out.src] {
				s.Errorf("connection %d left from %s; before it %d others did", n, c.out.src, len(seen))
			}
			seen[c.out.src] = true
			talks = append(talks, c)
		}
		for _, c := range talks {
			s.goesOn(c, "translate_established")
			f := failures()[0]
			s.sends(f.of(c.out.with("A", "text"), w.addr("172.31.0.", "fd00:31::", 2), quotations()[0]),
				f.of(c.in.with("A", "text"), c.in.dst.Addr(), quotations()[0]), "translate_icmp")
		}
		for _, change := range changes(w) {
			answer := talks[len(talks)-1].out.reply("A", "y")
			s.sends(change(answer), change(answer.from(talks[len(talks)-1].in.dst).to(talks[len(talks)-1].in.src)), "translate_reply")
		}
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// Where connection tracking cannot be asked, a port of the range alone is known to be nobody's.
func TestPortsBeyondTheRangeServeNobodyWhereConnectionTrackingCannotBeAsked(t *testing.T) {
	o := withSets(4096)
	o.Knobs = map[string]any{"conntrack_lookup": uint8(0)}
	forEachSite(t, o, func(s site, w world) {
		s.wide(w, 1)
		c := s.connect(w, 1)
		s.findsNoPort(w, 2)
		s.goesOn(c, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// What no flow has passes, wherever it goes: from a backend to the host's own connections, and to a NodePort.
func TestPacketsOfBackendsToPortsBeyondTheRangePass(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.wide(w, 1)
		s.publish(w.decide(service{name: "port", kind: lb.KindNodePort, address: at(w.own(), 30080), tiers: tiersOf(w.tier(8080, 3)), remote: true}))
		c := s.connect(w, 1)
		s.connect(w, 2)
		from := at(w.pod(2), 8080)
		for _, flags := range []string{"SA", "A", "PA", "FA", "R"} {
			for _, port := range []uint16{1024, 20001, 40000, 60999, 65535} {
				answer := w.packet(from, at(w.own(), port)).with(flags, "answer")
				s.expectPlain(answer, "pass_unknown_reply")
				for _, change := range changes(w) {
					s.expectPlain(change(answer), "pass_unknown_reply")
				}
			}
		}
		for _, port := range []uint16{22, 1023} {
			s.expectPlain(w.packet(from, at(w.own(), port)).with("A", "x"), "pass_not_service")
		}
		s.expectPlain(w.packet(from, at(w.pod(9), 40000)).with("A", "x"), "pass_not_service")
		s.expectPlain(w.packet(from, at(w.own(), 40000)), map[lb.Protocol]string{lb.TCP: "pass_not_service", lb.UDP: "pass_unknown_reply"}[w.protocol])
		s.remote(w.packet(from, at(w.own(), 30080)), "translate_balance") // the backend is a client here
		s.goesOn(c, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// hostSocket is a socket of the host, with a port of its own.
type hostSocket struct {
	name string
	open func(testing.TB, world, uint16) int // the descriptor
}

func hostSockets() []hostSocket {
	bound := func(any, dual, connected bool) func(testing.TB, world, uint16) int {
		return func(t testing.TB, w world, port uint16) int {
			t.Helper()
			kind := map[lb.Protocol]int{lb.TCP: unix.SOCK_STREAM, lb.UDP: unix.SOCK_DGRAM}[w.protocol]
			family := map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[w.v6 || dual]
			fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			check(t, err)
			address := at(w.own(), port)
			if any {
				address = at(map[bool]netip.Addr{false: netip.IPv4Unspecified(), true: netip.IPv6Unspecified()}[w.v6 || dual], port)
			}
			check(t, unix.Bind(fd, sockaddrOf(address)))
			switch {
			case connected:
				if err := unix.Connect(fd, sockaddrOf(at(w.pod(2), 8080))); err != nil && err != unix.EINPROGRESS {
					t.Fatal(err)
				}
			case w.protocol == lb.TCP:
				check(t, unix.Listen(fd, 1))
			}
			return fd
		}
	}
	return []hostSocket{
		{"on the address", bound(false, false, false)},
		{"on every address", bound(true, false, false)},
		{"of both families", bound(true, true, false)},
		{"connected to the backend", bound(false, false, true)},
	}
}

func sockaddrOf(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// strays sends packets in the middle of no connection: they get no port that is another's either.
func (s site) strays(w world, name string, anothers ...maps.PortRange) {
	s.Helper()
	for n := range 5 {
		verdict := map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol]
		c := s.remote(w.packet(at(w.outside(5), uint16(43000+n)), at(w.outside(10), 80)).with("A", "x"), verdict)
		for _, r := range anothers {
			if r.Contains(c.out.src.Port()) {
				s.Errorf("%s: a packet of no connection left from %s", name, c.out.src)
			}
		}
	}
}

// A port that a socket of the host has towards the backend, or towards anybody, is not SNAT's, in the range and beyond; the next one is.
func TestAPortOfASocketOfTheHostServesNobodyElse(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		for _, socket := range hostSockets() {
			first, quiet := s.wide(w, 1)
			taken := []int{socket.open(s, w, first.First), socket.open(s, w, quiet.First)}
			s.strays(w, socket.name, first, quiet)
			for n := range 3 {
				if c := s.connect(w, 1+n); first.Contains(c.out.src.Port()) || quiet.Contains(c.out.src.Port()) {
					s.Errorf("%s: a connection left from %s, which is a socket's", socket.name, c.out.src)
				}
			}
			s.configure(first) // these alone
			s.findsNoPort(w, 9)
			for _, fd := range taken {
				check(s, unix.Close(fd))
			}
		}
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// Nor is the port of a frontend at the node's address.
func TestAPortOfAFrontendServesNobodyElse(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		first, quiet := s.wide(w, 1)
		for _, port := range []uint16{first.First, quiet.First} {
			s.publish(w.decide(service{name: "port-" + map[bool]string{false: "quiet", true: "first"}[port == first.First], kind: lb.KindNodePort,
				address: at(w.own(), port), tiers: tiersOf(w.tier(8081, 3)), remote: true}))
		}
		s.strays(w, "a NodePort", first, quiet)
		c := s.connect(w, 1)
		if port := c.out.src.Port(); first.Contains(port) || quiet.Contains(port) {
			s.Errorf("left from %s, which is a NodePort", c.out.src)
		}
		s.remote(w.packet(at(w.outside(2), 41000), at(w.own(), first.First)), "translate_balance")
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// Nor one that connection tracking has towards the backend, from either side: the CNI's masquerade, or a pod's host port.
func TestAPortOfConnectionTrackingServesNobodyElse(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		first, quiet := s.wide(w, 1)
		untrack(s)
		backend := at(w.pod(2), 8080)
		track(s, w.protocol, at(w.pod(7), 5000), backend, backend, at(w.own(), first.First), seenReply|assured)
		track(s, w.protocol, backend, at(w.own(), quiet.First), at(w.pod(8), 80), backend, seenReply|assured)
		s.widen(first, quiet, maps.YieldOld)
		s.strays(w, "connection tracking", first, quiet)
		if c := s.connect(w, 1); first.Contains(c.out.src.Port()) || quiet.Contains(c.out.src.Port()) {
			s.Errorf("left from %s, which connection tracking has", c.out.src)
		}
		untrack(s)
		if c := s.connect(w, 2); !first.Contains(c.out.src.Port()) {
			s.Errorf("left from %s, where nobody has %s any more", c.out.src, first)
		}
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// A flow beyond the range goes on when such ports serve no more: an agent may come that cannot ask connection tracking.
func TestAConnectionBeyondTheRangeGoesOnWhenThatEnds(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		first, _ := s.wide(w, 1)
		s.connect(w, 1)
		s.connect(w, 2)
		c := s.connect(w, 3)
		s.configure(first)
		s.goesOn(c, "translate_established")
		s.findsNoPort(w, 4)
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// Of held ports the client's own serves before one that is held for longer: its clock goes on, so that the server takes its SYN at once.
func TestAClientGetsItsOwnHeldPortBeforeAnothers(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.fewPorts(w, 2)
		others, own := s.connect(w, 1), s.connect(w, 2)
		s.serverCloses(others)
		s.pass(20)
		s.serverCloses(own)
		s.pass(5)
		next := s.remote(w.packet(at(w.outside(2), 42000), at(w.outside(10), 80)), "translate_balance")
		if next.out.src != own.out.src {
			s.Errorf("%s left from %s, its own was %s", next.in.src, next.out.src, own.out.src)
		}
		s.configure(snatPorts())
	}, lb.TCP)
}

// What the host opens later from a port whose connection was reset, or never answered, is answered: its socket waits for that. Another
// socket that has the port does not.
func TestASocketOfTheHostIsAnsweredWhereAConnectionHasEnded(t *testing.T) {
	begins := map[string]func(site, world) talk{
		"never answered": func(s site, w world) talk {
			return s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		},
		"reset": func(s site, w world) talk {
			c := s.connect(w, 1)
			s.sends(c.in.with("R", ""), c.out.with("R", ""), "translate_established")
			return c
		},
	}
	forEachSite(t, withSets(4096), func(s site, w world) {
		for _, begin := range begins {
			s.wide(w, 1)
			c := begin(s, w)
			port := c.out.src.Port()
			for _, socket := range hostSockets() {
				if socket.name == "connected to the backend" {
					continue
				}
				fd := socket.open(s, w, port)
				s.answersWith(c, "SA")
				check(s, unix.Close(fd))
			}
			for _, socket := range hostSockets() {
				if socket.name != "connected to the backend" {
					continue
				}
				s.expectPlain(c.out.reply("SA", ""), "translate_reply")
				fd := socket.open(s, w, port)
				s.expectPlain(c.out.reply("SA", ""), "pass_unknown_reply")
				s.expectPlain(c.out.reply("A", "x"), "pass_unknown_reply") // and the rest of it
				check(s, unix.Close(fd))
			}
		}
		s.evict()
		c := s.connect(w, 1) // an established one keeps its port
		fd := hostSockets()[3].open(s, w, c.out.src.Port())
		s.answersWith(c, "SA")
		s.goesOn(c, "translate_established")
		check(s, unix.Close(fd))
		s.configure(snatPorts())
	}, lb.TCP)
}

// An address in a range of Services that nobody has stays refused, whoever sends there: its bits may be those of a source.
func TestAnUnallocatedAddressIsRefusedToBackendsToo(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.wide(w, 1)
		c, err := s.tables.Config()
		check(s, err)
		c.Sources = nil
		for n := range 60 { // so many that some of the addresses below have their bits
			c.Sources = append(c.Sources, w.addr("198.18.7.", "fd00:77::", n+1))
		}
		check(s, s.tables.Configure(c))
		for n := range 100 {
			s.expectPlain(w.packet(at(w.pod(2), 8080), at(w.vip(100+n), 4000)).with("A", "x"), "drop_unallocated")
		}
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}
