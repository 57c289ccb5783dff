// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// connect opens a connection of the n-th client to the service of far, answered.
func (s site) connect(w world, n int) talk {
	s.Helper()
	c := s.remote(w.packet(at(w.outside(n), 41000), at(w.outside(10), 80)), "translate_balance")
	s.goesOn(c, "translate_established")
	return c
}

// Datagrams go to another server when theirs is gone; a TCP connection stays, until it is opened again.
func TestAConnectionThroughSNATLeavesAServerThatIsGone(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.publish(far(w, 3))
		if w.protocol == lb.TCP {
			s.goesOn(c, "translate_established")
		}
		moved := s.remote(c.in, "translate_rehome")
		if moved.out.dst != at(w.pod(3), 8080) {
			s.Errorf("left to %s", moved.out.dst)
		}
		for range 2 {
			s.goesOn(moved, "translate_established")
		}
	}, lb.TCP, lb.UDP)
}

// A connection that has ended may be opened again by its client: like any new one, on a server of now, or on the one that it had from
// the port that it had.
func TestAClosedConnectionThroughSNATIsOpenedAgain(t *testing.T) {
	ends := map[string]func(site, talk){
		"from both sides": func(s site, c talk) {
			s.sends(c.in.with("FA", ""), c.out.with("FA", ""), "translate_established")
			answer := c.out.reply("FA", "")
			s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		},
		"by a reset": func(s site, c talk) { s.sends(c.in.with("RA", ""), c.out.with("RA", ""), "translate_established") },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{}, func(s site, w world) {
				s.publish(far(w, 2))
				c := s.connect(w, 1)
				end(s, c)
				again := s.remote(c.in, "translate_balance")
				if again.out.src != c.out.src || again.out.dst != c.out.dst {
					s.Errorf("%s to %s before, now %s to %s", c.out.src, c.out.dst, again.out.src, again.out.dst)
				}
				s.goesOn(again, "translate_established")
				end(s, again)
				s.publish(far(w, 3))
				other := s.remote(c.in, "translate_balance")
				if other.out.dst != at(w.pod(3), 8080) {
					s.Errorf("left to %s", other.out.dst)
				}
				s.goesOn(other, "translate_established")
			}, lb.TCP)
		})
	}
}

// A forgotten connection gets its port again from its next packet, whatever that is; its server notices nothing.
func TestAForgottenConnectionThroughSNATKeepsItsPort(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		for n := range 5 {
			s.evict() // nobody else has its first choice
			c := s.connect(w, 1+n)
			s.evict()
			s.expectPlain(c.out.reply("A", ""), "pass_unknown_reply")
			s.goesOn(c, map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
			s.goesOn(c, "translate_established")
		}
	}, lb.TCP, lb.UDP)
}

// ending is a frame whose way ends at the next router.
func ending(p packet) []byte { return lastHop(p.bytes()) }

// lastHop is the frame where the next router ends it.
func lastHop(frame []byte) []byte {
	for range 62 {
		frame = aged(frame)
	}
	return frame
}

// Packets and answers whose TTL ends here are answered to who sent them, about what that sent.
func TestWhatEndsHereIsAnswered(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		kind := map[bool]uint8{false: 11, true: 3}[w.v6]
		for _, text := range []string{"", "text", string(make([]byte, 1400))} {
			s.answersFrame(c.in.with("A", text), ending(c.in.with("A", text)), "reject_time_exceeded", kind, 0, 0)
			answer := c.out.reply("PA", text)
			s.answersFrame(answer, ending(answer), "reject_time_exceeded", kind, 0, 0)
		}
		first := w.packet(at(w.outside(2), 41000), at(w.outside(10), 80))
		s.answersFrame(first, ending(first), "reject_time_exceeded", kind, 0, 0)
		s.goesOn(c, "translate_established")
	}, lb.TCP, lb.UDP)
}

// An answer that does not fit the way to the client is answered to the server, as by a router behind this node.
func TestAnAnswerThatDoesNotFitIsAnswered(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		check(s, netlink.LinkSetMTU(s.clients, 1400))
		s.forgetWays()
		answer := c.out.reply("PA", string(make([]byte, 1400)))
		kind, code, mtu := packetTooBig(answer)
		s.answers(answer, "reject_too_big", kind, code, mtu)
		s.goesOn(c, "translate_established")
		check(s, netlink.LinkSetMTU(s.clients, 1500))
		s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
	}, lb.TCP, lb.UDP)
}

// A node that may not forward forwards nothing, for services neither; and says why.
func TestSNATNeedsForwarding(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		forward := map[bool]string{false: "/proc/sys/net/ipv4/ip_forward", true: "/proc/sys/net/ipv6/conf/all/forwarding"}[w.v6]
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		check(s, os.WriteFile(forward, []byte("0"), 0))
		s.forgetWays()
		s.expectPlain(c.in.with("A", "x"), "drop_forwarding_off")
		s.expectPlain(c.in.from(at(w.outside(2), 41000)), "drop_forwarding_off")
		check(s, os.WriteFile(forward, []byte("1"), 0))
		s.goesOn(c, "translate_established")
	}, lb.TCP, lb.UDP)
}

// Without an address of its own the node cannot stand for a client.
func TestSNATNeedsASource(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		check(s, s.tables.Configure(maps.Config{
			ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), SNATPorts: snatPorts(),
			Devices: map[uint32]maps.DeviceSources{uint32(s.nodes.Attrs().Index): {}},
		}))
		s.tables.Reclaim(time.Now().Add(time.Hour))
		s.expectPlain(in, "drop_no_source")
		s.configure(snatPorts())
		s.remote(in, "translate_balance")
	}, lb.TCP, lb.UDP)
}

// An entry that lost the other one stands for nobody: its port may be another connection's by now, and so is an error about it.
func TestAnErrorAboutAForgottenConnectionReachesNoOther(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.configure(maps.PortRange{First: 61000, Last: 61000})
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&alias != 0 {
				f.Word &^= uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK)
			}
		})
		heir := s.connect(w, 2)
		for _, f := range failures() {
			of := c.out.reply("PA", "text")
			s.expectPlain(f.of(of.from(c.in.dst).to(c.in.src), w.router(), 8), "pass_icmp")
			s.sends(f.of(of.from(heir.in.dst).to(heir.in.src), w.router(), 8), f.of(of, w.own(), 8), "translate_icmp")
		}
		s.expectPlain(c.in.with("A", "x"), "drop_ports_full")
		s.goesOn(heir, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

// A port at which a socket of the host listens is passed by. TestAPortOfASocketOfTheHostServesNobodyElse has every kind of socket and of port.
func TestAPortThatTheHostListensAtIsPassedBy(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		first := s.connect(w, 1)
		s.evict()
		if again := s.connect(w, 1); !again.same(first) {
			s.Errorf("it left from %s, and from %s when it was lost", first.out.src, again.out.src)
		}
		s.evict()
		fd := hostSockets()[0].open(s, w, first.out.src.Port())
		if c := s.connect(w, 1); c.same(first) {
			s.Errorf("it left from %s, where the host listens", c.out.src)
		}
		check(s, unix.Close(fd))
	}, lb.TCP, lb.UDP)
}
