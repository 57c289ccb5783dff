// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// far is a service off the node's own pods: every backend is on another node.
func far(w world, pods ...int) lb.Decision {
	return w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, pods...)), remote: true})
}

// remote is a connection through SNAT: what the client sends and what its server sees.
func (s site) remote(in packet, verdict string) talk {
	s.Helper()
	got, err := s.run(fromPod, in.bytes())
	check(s, err)
	src, dst := endpoints(s, got.frame)
	c := talk{in, in.from(src).to(dst)}
	if got.verdict != verdict {
		s.Errorf("%s to %s: verdict %s, want %s", in.src, in.dst, got.verdict, verdict)
	}
	s.leaves(in, c.out, got)
	return c
}

func (s site) leaves(in, want packet, got outcome) {
	s.Helper()
	if got.action != actRedirect || !bytes.Equal(routed(want), got.frame) {
		s.Errorf("%s: %s to %s: action %d, packet out (-want +got)\n%s", got.verdict, in.src, in.dst, got.action, cmp.Diff(show(routed(want)), show(got.frame)))
	}
}

// sends runs one packet of a connection; out is what leaves.
func (s site) sends(in, out packet, verdict string) {
	s.Helper()
	got, err := s.run(fromPod, in.bytes())
	check(s, err)
	if got.verdict != verdict {
		s.Errorf("%s to %s: verdict %s, want %s", in.src, in.dst, got.verdict, verdict)
		return
	}
	s.leaves(in, out, got)
}

// goesOn sends both ways; datagrams until the client has gone on after an answer, as it has in TCP.
func (s site) goesOn(c talk, forward string) {
	s.Helper()
	more, answer := c.in.with("A", "go"), c.out.reply("PA", "yes")
	s.sends(more, c.out.with("A", "go"), forward)
	s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
	if more.protocol == lb.UDP {
		s.sends(more, c.out.with("A", "go"), "translate_established")
	}
}

func TestAClientOffTheNodeReachesABackendOnAnother(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		if c.out.src.Addr() != w.own() || !snatPorts().Contains(c.out.src.Port()) || c.out.dst != at(w.pod(2), 8080) {
			s.Errorf("left from %s to %s", c.out.src, c.out.dst)
		}
		for range 2 {
			s.goesOn(c, "translate_established")
		}
		other := snatPorts().First
		if other == c.out.src.Port() {
			other = snatPorts().Last
		}
		s.expectPlain(c.out.reply("A", "").to(at(w.own(), other)), "pass_unknown_reply")
		s.expectPlain(c.out.reply("A", "").to(at(w.pod(9), other)), "pass_not_service")
	}, lb.TCP, lb.UDP)
}

// expectPlain is expect for what is not routed.
func (s site) expectPlain(p packet, verdict string) {
	s.Helper()
	got, err := s.run(fromPod, p.bytes())
	check(s, err)
	if got.verdict != verdict {
		s.Errorf("%s to %s: verdict %s, want %s", p.src, p.dst, got.verdict, verdict)
	}
}

// Options, extension headers and fragments go the same way.
func TestUnusualHeadersPassSNAT(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		for _, change := range changes(w) {
			s.sends(change(c.in.with("A", "x")), change(c.out.with("A", "x")), "translate_established")
			answer := c.out.reply("A", "y")
			s.sends(change(answer), change(answer.from(c.in.dst).to(c.in.src)), "translate_reply")
		}
		in, out := long(c.in.with("A", "")), long(c.out.with("A", ""))
		s.sends(in.cut(7, 0, 600), out.cut(7, 0, 600), "translate_established")
		s.sends(in.cut(7, 600, 1200), out.cut(7, 600, 1200), "translate_fragment")
		answer := long(c.out.reply("A", ""))
		back := answer.from(c.in.dst).to(c.in.src)
		s.sends(answer.cut(8, 0, 600), back.cut(8, 0, 600), "translate_reply")
		s.sends(answer.cut(8, 600, 1200), back.cut(8, 600, 1200), "translate_fragment")
	}, lb.TCP, lb.UDP)
}

// Either entry of the flow may be evicted; the client's next packet mends it, with the backend and the port that it had.
func TestASNATFlowThatLostAnEntryGoesOn(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		for _, lost := range []uint8{0, alias} {
			s.evict()
			s.publish(far(w, 2))
			c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
			s.goesOn(c, "translate_established")
			if lost == alias {
				s.publish(far(w, 2, 3, 4, 5, 6)) // with one entry left, its server is known
			}
			s.editFlows(func(f *bpf.NearlbFlow) {
				if f.Flags&alias == lost {
					f.Word &^= 3
				}
			})
			s.goesOn(c, map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
			s.goesOn(c, "translate_established")
		}
	}, lb.TCP, lb.UDP)
}

// What routers and the ends say about packets reaches who sent them, as about what that sent.
func TestErrorsPassSNATBothWays(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		for _, f := range failures() {
			for _, n := range quotations() {
				s.sends(f.of(c.out.with("A", "text"), w.addr("172.31.0.", "fd00:31::", 2), n), f.of(c.in.with("A", "text"), c.in.dst.Addr(), n), "translate_icmp")
				sent := c.out.reply("PA", "text")
				s.sends(f.of(sent.from(c.in.dst).to(c.in.src), w.router(), n), f.of(sent, w.own(), n), "translate_icmp")
			}
		}
	}, lb.TCP, lb.UDP)
}

// A packet that does not fit the way to the server, or back to the client, is answered with the MTU of the way.
func TestWhatDoesNotFitIsAnswered(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		check(s, netlink.LinkSetMTU(s.nodes, 1400))
		s.forgetWays()
		in := c.in.with("A", string(make([]byte, 1400)))
		kind, code, mtu := packetTooBig(in)
		s.answers(in, "reject_too_big", kind, code, mtu)
		s.sends(c.in.with("A", "small"), c.out.with("A", "small"), "translate_established")
		check(s, netlink.LinkSetMTU(s.nodes, 1500))
		s.sends(in, c.out.with("A", string(make([]byte, 1400))), "translate_established")
	}, lb.TCP, lb.UDP)
}

func packetTooBig(p packet) (kind, code uint8, rest uint32) {
	if p.v6() {
		return 2, 0, 1400
	}
	return 3, 4, 1400
}

// answers wants an error about in to its sender.
func (s site) answers(in packet, verdict string, kind, code uint8, rest uint32) {
	s.Helper()
	s.answersFrame(in, in.bytes(), verdict, kind, code, rest)
}

// answersFrame is answers to a frame of in that differs in its TTL.
func (s site) answersFrame(in packet, frame []byte, verdict string, kind, code uint8, rest uint32) {
	s.Helper()
	got, err := s.run(fromPod, frame)
	check(s, err)
	if got.verdict != verdict || got.action != actRedirect {
		s.Errorf("%s to %s: verdict %s, want %s; action %d", in.src, in.dst, got.verdict, verdict, got.action)
		return
	}
	p, ok := parse(got.frame)
	if !ok || p.checkOuter(got.frame[14:]) != nil {
		s.Fatalf("%s: broken answer\n%s", got.verdict, show(got.frame))
	}
	message, quoted := p.transport, frame[ethernetHeader:]
	src, dst := addressesOf(p)
	if src != in.dst.Addr() || dst != in.src.Addr() || message[0] != kind || message[1] != code || !bytes.Equal(message[4:8], []byte{0, 0, byte(rest >> 8), byte(rest)}) {
		s.Errorf("%s: answer from %s to %s\n%s", got.verdict, src, dst, show(got.frame))
	}
	if !bytes.HasPrefix(quoted, message[8:]) || len(message) < 8+28 {
		s.Errorf("%s: quotes (-sent +quoted)\n%s", got.verdict, cmp.Diff(quoted[:len(message)-8], message[8:]))
	}
}

func addressesOf(p parsed) (src, dst netip.Addr) {
	src, _ = netip.AddrFromSlice(p.src)
	dst, _ = netip.AddrFromSlice(p.dst)
	return src, dst
}

// What the routing table says about a server decides what becomes of its clients.
func TestTheRoutingTableIsObeyed(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		for _, kind := range []int{unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT} {
			s.route(w, &netlink.Route{Type: kind})
			s.expectPlain(in, "drop_no_route")
		}
		s.route(w, &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Gw: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()})
		s.remote(in, "translate_balance")
	}, lb.TCP, lb.UDP)
}

// Each port serves one connection towards a server. When all are taken, nobody but that server's new clients notices, and
// ports of connections that ended serve again.
func TestEveryPortOfTheRangeIsUsedOnce(t *testing.T) {
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.seed(1)
		s.publish(far(w, 2), w.decide(service{name: "other", kind: lb.KindLoadBalancer, address: at(w.outside(11), 80), tiers: tiersOf(w.tier(8080, 3)), remote: true}))
		owner := map[netip.AddrPort]packet{}
		var talks []talk
		for n := range int(snatPorts().Count()) {
			c := s.remote(w.packet(at(w.outside(1), uint16(41000+n)), at(w.outside(10), 80)), "translate_balance")
			if other, taken := owner[c.out.src]; taken {
				s.Fatalf("%s and %s both left as %s", c.in.src, other.src, c.out.src)
			}
			owner[c.out.src] = c.in
			s.goesOn(c, "translate_established")
			talks = append(talks, c)
		}
		late := w.packet(at(w.outside(2), 50000), at(w.outside(10), 80))
		s.expectPlain(late, "drop_ports_full")
		s.remote(late.to(at(w.outside(11), 80)), "translate_balance")
		for _, c := range talks {
			s.goesOn(c, "translate_established")
		}
		s.expectPlain(late, "drop_ports_full")
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.Seen&uint32(bpf.NearlbFlowSeenSEEN_REPLY) != 0 && (f.KeyPort == swap(41003) || f.TwinPort == swap(41003)) {
				f.Touched -= 200_000 * bpf.JiffiesPerSecond()
			}
		})
		c := s.remote(late, "translate_balance")
		if c.out.src != talks[3].out.src {
			s.Errorf("left from %s, free was %s alone", c.out.src, talks[3].out.src)
		}
		s.goesOn(c, "translate_established")
		s.configure(maps.PortRange{First: 61000, Last: 61000})
		s.expectPlain(w.packet(at(w.outside(3), 50000), at(w.outside(10), 80)), "drop_ports_full")
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}
