// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// serverCloses ends a connection from the server's side, which keeps it in TIME_WAIT then (RFC 9293 3.6).
func (s site) serverCloses(c talk) {
	s.Helper()
	s.answersWith(c, "FA")
	s.sends(c.in.with("FA", ""), c.out.with("FA", ""), "translate_established")
	s.answersWith(c, "A")
}

// clientCloses ends a connection from the client's side: the server forgets it with the last packet.
func (s site) clientCloses(c talk) {
	s.Helper()
	s.sends(c.in.with("FA", ""), c.out.with("FA", ""), "translate_established")
	s.answersWith(c, "A")
	s.answersWith(c, "FA")
	s.sends(c.in.with("A", ""), c.out.with("A", ""), "translate_established")
}

// bothClose ends a connection from both sides at once: both keep it.
func (s site) bothClose(c talk) {
	s.Helper()
	s.sends(c.in.with("FA", ""), c.out.with("FA", ""), "translate_established")
	s.answersWith(c, "FA") // on its way as the client's was
	s.answersWith(c, "A")
	s.sends(c.in.with("A", ""), c.out.with("A", ""), "translate_established")
}

func (s site) answersWith(c talk, flags string) {
	s.Helper()
	answer := c.out.reply(flags, "")
	s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
}

// pass makes all flows older.
func (s site) pass(seconds uint32) {
	s.Helper()
	s.editFlows(func(f *bpf.NearlbFlow) { f.Touched -= seconds * bpf.JiffiesPerSecond() })
}

// ports are in a row from 61000 on.
func ports(count uint16) maps.PortRange { return maps.PortRange{First: 61000, Last: 61000 + count - 1} }

// fewPorts publishes a Service whose backend is elsewhere, and leaves SNAT so many ports and no connection.
func (s site) fewPorts(w world, count uint16) {
	s.Helper()
	s.seed(1)
	s.publish(far(w, 2))
	s.evict()
	s.configure(ports(count))
}

// findsNoPort sends the first packet of a client that gets no port.
func (s site) findsNoPort(w world, client int) {
	s.Helper()
	s.expectPlain(w.packet(at(w.outside(client), 41000), at(w.outside(10), 80)), "drop_ports_full")
}

// A server that closed first keeps the connection for a minute, and answers whoever comes from its port with an older timestamp only
// after a second: nobody does while there is another port.
func TestAPortIsHeldAsLongAsItsServerKeepsTheConnection(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.seed(1)
		s.publish(far(w, 2))
		for name, keeps := range map[string]func(site, talk){"the server closes": site.serverCloses, "both close": site.bothClose} {
			s.evict()
			s.configure(ports(2))
			kept, forgotten := s.connect(w, 1), s.connect(w, 2)
			keeps(s, kept)
			s.clientCloses(forgotten)
			for n, seconds := range []uint32{12, 18, 6} { // little more than half a minute: the test itself takes seconds on a slow machine
				s.pass(seconds)
				next := s.connect(w, 3+n)
				if next.out.src != forgotten.out.src {
					s.Errorf("%s, %d: %s left from %s, which the server keeps; %s is free", name, n, next.in.src, next.out.src, forgotten.out.src)
				}
				s.clientCloses(next)
			}
			s.pass(27) // the minute is over
			if other := s.connect(w, 7); other.out.src != kept.out.src {
				s.Errorf("%s: %s left from %s, where nobody holds %s any more", name, other.in.src, other.out.src, kept.out.src)
			}
		}
		s.configure(snatPorts())
	}, lb.TCP)
}

// Where every port is taken, a held one is better than none: the client may wait a second. That which its server keeps for longest
// goes first, and nobody gets the port of a connection that lives.
func TestHeldPortsServeWhereThereIsNoOther(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.fewPorts(w, 3)
		alive, older, newer := s.connect(w, 1), s.connect(w, 2), s.connect(w, 3)
		s.serverCloses(older)
		s.pass(20)
		s.goesOn(alive, "translate_established")
		s.serverCloses(newer)
		s.pass(5)
		for n, want := range []talk{older, newer} {
			if got := s.connect(w, 4+n); got.out.src != want.out.src {
				s.Errorf("%s left from %s, want %s", got.in.src, got.out.src, want.out.src)
			}
		}
		s.findsNoPort(w, 9)
		s.goesOn(alive, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP)
}

// A flood of SYNs or datagrams from forged sources takes every port, and nothing comes of it: where there is no other, the port that was silent
// longest serves, and none that somebody has just asked from. A connection that lives keeps its own.
func TestAPortOfAConnectionThatNothingCameOfServesWhereThereIsNoOther(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		opens := func(client int) talk {
			return s.remote(w.packet(at(w.outside(client), 41000), at(w.outside(10), 80)), "translate_balance")
		}
		began := time.Now()
		s.fewPorts(w, 3)
		alive, older, newer := s.connect(w, 1), opens(2), opens(3)
		if w.protocol == lb.TCP {
			s.answersWith(newer, "SA") // whoever is asked from refuses that, or is nobody
		}
		if took := time.Since(began); took < time.Second {
			s.findsNoPort(w, 4)
		}
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.KeyPort == swap(older.out.src.Port()) {
				f.Touched -= 3 * bpf.JiffiesPerSecond()
			}
		})
		s.pass(7)
		s.goesOn(alive, "translate_established")
		for n, want := range []talk{older, newer} {
			got := s.connect(w, 4+n)
			if got.out.src != want.out.src {
				s.Errorf("%d: %s left from %s, want %s", n, got.in.src, got.out.src, want.out.src)
			}
			s.goesOn(got, "translate_established")
		}
		s.findsNoPort(w, 9)
		s.expectPlain(older.in, "drop_ports_full") // it was no forgery after all: its next SYN waits as others'
		s.goesOn(alive, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// Of ports that nobody has, the one whose connection ended longest ago serves first.
func TestThePortThatIsFreeForLongestServesFirst(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.fewPorts(w, 5)
		var order []netip.AddrPort
		for n := range 5 {
			order = append(order, s.connect(w, 1+n).out.src)
		}
		for n, from := range order {
			s.editFlows(func(f *bpf.NearlbFlow) {
				if f.KeyPort == swap(from.Port()) || f.TwinPort == swap(from.Port()) {
					f.Touched -= (100_000 - 10*uint32(n)) * bpf.JiffiesPerSecond()
				}
			})
		}
		for n, want := range order {
			if got := s.connect(w, 10+n); got.out.src != want {
				s.Errorf("%d: %s left from %s, want %s", n, got.in.src, got.out.src, want)
			}
		}
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// Where the server closed last, it has forgotten the connection with the client's last word, and its port serves at once; before that it
// would take a SYN for a stranger's. Of several the one that ended longest ago serves first.
func TestAPortThatItsServerHasForgottenServesAtOnce(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.fewPorts(w, 3)
		alive, first, second := s.connect(w, 1), s.connect(w, 2), s.connect(w, 3)
		s.sends(first.in.with("FA", ""), first.out.with("FA", ""), "translate_established")
		s.answersWith(first, "FA")
		s.findsNoPort(w, 4)
		s.sends(first.in.with("A", ""), first.out.with("A", ""), "translate_established")
		s.pass(2)
		s.clientCloses(second)
		for n, ended := range []talk{first, second} {
			next := s.connect(w, 4+n)
			if next.out.src != ended.out.src {
				s.Errorf("%d: %s left from %s; longest free was %s", n, next.in.src, next.out.src, ended.out.src)
			}
		}
		s.findsNoPort(w, 6)
		s.goesOn(alive, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP)
}

// After a reset neither side has anything, whoever sent it; where it was outside the window, the connection goes on, and keeps its port.
func TestAPortOfAResetConnectionServesUnlessThatGoesOn(t *testing.T) {
	resets := map[string]func(site, talk){
		"the client's": func(s site, c talk) { s.sends(c.in.with("R", ""), c.out.with("R", ""), "translate_established") },
		"the server's": func(s site, c talk) { s.answersWith(c, "R") },
	}
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.seed(1)
		s.publish(far(w, 2))
		for name, reset := range resets {
			alive, ended := s.resetBoth(w, reset)
			s.goesOn(alive, "translate_established")
			s.pass(2)
			if next := s.connect(w, 4); next.out.src != ended.out.src {
				s.Errorf("%s: %s left from %s, free was %s", name, next.in.src, next.out.src, ended.out.src)
			}
			s.goesOn(alive, "translate_established")
		}
		s.configure(snatPorts())
	}, lb.TCP)
}

// resetBoth opens two connections through SNAT, which have all ports, and resets both: who is amid talking goes on now, so that a third client
// gets no port for a second. A machine that stood still for that long begins again.
func (s site) resetBoth(w world, reset func(site, talk)) (alive, ended talk) {
	s.Helper()
	for {
		s.evict()
		s.configure(ports(2))
		alive, ended = s.connect(w, 1), s.connect(w, 2)
		began := time.Now()
		reset(s, alive)
		reset(s, ended)
		s.pass(1) // an entry's time may be that of a packet a second before the last
		got, err := s.run(fromNet, w.packet(at(w.outside(3), 41000), at(w.outside(10), 80)).bytes())
		check(s, err)
		if got.verdict == "drop_ports_full" {
			return alive, ended
		}
		if took := time.Since(began); took < time.Second*9/10 {
			s.Fatalf("%s %v after the reset", got.verdict, took)
		}
	}
}

// Hundreds of connections, one after the other, need one port.
func TestOnePortServesConnectionsThatTheirClientsClose(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.publish(far(w, 2))
		s.evict()
		s.configure(ports(1))
		for n := range 200 {
			c := s.remote(w.packet(at(w.outside(1), uint16(20000+n)), at(w.outside(10), 80)), "translate_balance")
			s.goesOn(c, "translate_established")
			s.clientCloses(c)
		}
		s.configure(snatPorts())
	}, lb.TCP)
}

// A connection that has ended keeps its port, but not what a server says to a masquerade of the host's that took the port since: its
// SYN-ACK was translated and sent to the client of before, for a minute.
func TestAPortOfAnEndedConnectionSwallowsNoMasquerade(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.publish(far(w, 2))
		ends := map[string]func(site, talk){
			"the server closes": site.serverCloses, "the client closes": site.clientCloses, "both close": site.bothClose,
		}
		for name, end := range ends {
			s.evict()
			alive, c := s.connect(w, 1), s.connect(w, 2)
			s.answersWith(c, "SA") // its client's ACK was lost
			end(s, c)
			for _, flags := range []string{"SA", "A", "PA", "FA"} {
				if p := c.out.reply(flags, ""); s.expect(fromPod, p, "pass_unknown_reply").action != actUnspec {
					s.Errorf("%s: %s does not pass", name, flags)
				}
			}
			s.goesOn(alive, "translate_established")
			s.connect(w, 2)
		}
	}, lb.TCP)
}

// A flood of connections that are never answered makes no room of what holds a port.
func TestAFloodLeavesHeldPortsAlone(t *testing.T) {
	forEachSite(t, withSets(1), func(s site, w world) {
		s.publish(far(w, 2))
		s.evict()
		held := s.connect(w, 1)
		s.serverCloses(held)
		for n := range 60 {
			c := s.remote(w.packet(at(w.outside(2), uint16(42000+n)), at(w.outside(10), 80)), "translate_balance")
			if c.out.src == held.out.src {
				s.Fatalf("%s left from %s, which the server keeps", c.in.src, c.out.src)
			}
		}
	}, lb.TCP)
}
