// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/lb"
)

// What routers and the ends say about packets in the tunnel reaches who sent them, as about what that sent.
func TestErrorsPassTheTunnelBothWays(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.goesOnThrough(w, c)
		for _, f := range failures() {
			for _, n := range quotations() {
				sent := c.out.reply("PA", "text")
				seen := sent.from(c.in.dst).to(c.in.src)
				about := f.of(seen, w.router(), n)
				there := s.enters(fromPod, about.bytes(), w.forward(routed(about), netip.AddrPort{}), "translate_icmp")
				s.other.goes(fromPod, there, routed(f.of(sent, c.in.src.Addr(), n)), "translate_icmp", actUnspec)

				about = f.of(c.out.with("A", "text"), w.router(), n)
				want := f.of(c.in.with("A", "text"), c.in.dst.Addr(), n)
				back := s.other.enters(toPod, about.bytes(), w.back(want.bytes()), "translate_icmp")
				s.goes(fromPod, back, routed(want), "translate_icmp", actRedirect)
			}
		}
	}, lb.TCP, lb.UDP)
}

// A client's packet that does not fit with what comes in front is answered with what would; one that fits without the option goes without it,
// once the other node knows the connection.
func TestWhatDoesNotFitTheTunnelIsAnswered(t *testing.T) {
	fits := func(s nodePair, w world, overhead int) {
		s.evict()
		s.other.evict()
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		mtu := cmp.Or(w.mtu, 1500)
		front, option := overhead+map[bool]int{false: 36, true: 56}[w.v6], map[bool]int{false: 12, true: 24}[w.v6]
		fill := func(p packet, length int) packet {
			p = p.with("PA", "")
			return p.with("PA", string(bytes.Repeat([]byte("x"), length-len(p.network()))))
		}
		kind, code, _ := packetTooBig(c.in)
		big := fill(c.in, mtu-front-option+1)
		s.answers(big, "reject_too_big", kind, code, uint32(mtu-front-option))
		s.answersBack(w, c, "SA", "")
		there := s.enters(fromPod, big.bytes(), w.forward(routed(big), netip.AddrPort{}), "translate_established")
		s.other.goes(fromPod, there, routed(big.to(c.out.dst)), "translate_established", actUnspec)
		s.answers(fill(c.in, mtu-front+1), "reject_too_big", kind, code, uint32(mtu-front))
		s.goesOnThrough(w, c)
	}
	forEachNodePair(t, func(s nodePair, w world) {
		for _, w.mtu = range []int{1280, 1359, 1360, 1500} {
			check(s, netlink.LinkSetMTU(s.nodes, w.mtu))
			if !w.v6 || w.mtu >= 1280+56+24 {
				fits(s, w, 0)
			} else if src, _ := endpoints(s, s.sent(w)); src.Addr() != w.own() { // nobody could be told to send less
				s.Errorf("MTU %d: left from %s", w.mtu, src)
			}
		}
		s.tell(keyed(newCookie, newCookie))
		w.cookie = newCookie
		fits(s, w, len(cookieOption(newCookie)))
	}, lb.TCP, lb.UDP)
}

// sent is what leaves n1 for the first packet of a client.
func (s nodePair) sent(w world) []byte {
	s.Helper()
	s.evict()
	s.serve(w, nil, 2)
	got, err := s.run(fromPod, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)).bytes())
	check(s, err)
	return got.frame
}

// A server's answer that does not fit the tunnel is answered to the server, about what it sent, by the node that it is on; one that does not
// fit the way to the client by the other node, through the tunnel.
func TestAnAnswerThatDoesNotFitTheTunnelIsAnswered(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.goesOnThrough(w, c)
		front := map[bool]int{false: 36, true: 56}[w.v6]
		s.pods(w)
		answer := c.out.reply("PA", string(make([]byte, 1460)))
		kind, code, _ := packetTooBig(answer)
		got, err := s.other.run(toPod, answer.bytes())
		check(s, err)
		s.isError(got, answer, answer.dst.Addr(), answer.src.Addr(), "reject_too_big", kind, code, uint32(1500-front))

		check(s, netlink.LinkSetMTU(s.clients, 1300))
		small := c.out.reply("PA", string(make([]byte, 1360)))
		seen := small.from(c.in.dst).to(c.in.src)
		back := s.other.enters(toPod, small.bytes(), w.back(seen.bytes()), "translate_reply")
		got, err = s.run(fromPod, back)
		check(s, err)
		if got.verdict != "reject_too_big" || got.action != actRedirect {
			s.Errorf("%s, action %d", got.verdict, got.action)
		}
		got, err = s.other.run(fromPod, got.frame)
		check(s, err)
		s.isErrorPassed(got, small, "translate_icmp", kind, code, 1300)
		check(s, netlink.LinkSetMTU(s.clients, 1500))
		s.goesOnThrough(w, c)
	}, lb.TCP, lb.UDP)
}

// A server that is a socket of n2 itself hears that its answer does not fit: by the device that the answer was to leave by, as no route leads there.
func TestASocketOfTheNodeHearsThatItsAnswerDoesNotFitTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.goesOnThrough(w, c)
		own := addDevice(s, "own", netip.PrefixFrom(c.out.dst.Addr(), c.out.dst.Addr().BitLen()).String())
		answer := c.out.reply("PA", string(make([]byte, 1460)))
		kind, code, _ := packetTooBig(answer)
		front := map[bool]int{false: 36, true: 56}[w.v6]
		got, err := s.other.run(toPod, answer.bytes())
		check(s, err)
		if s.isError(got, answer, answer.dst.Addr(), answer.src.Addr(), "reject_too_big", kind, code, uint32(1500-front)); !bytes.Equal(got.frame[:6], answer.bytes()[6:12]) {
			s.Errorf("to %x, want %x", got.frame[:6], answer.bytes()[6:12])
		}
		check(s, netlink.LinkDel(own)) // n1 has no such address
		s.goesOnThrough(w, c)
	}, lb.TCP, lb.UDP)
}

// pods has the routes of n2 lead to its pods by the device of clients.
func (s nodePair) pods(w world) {
	s.Helper()
	check(s, netlink.NeighSet(&netlink.Neigh{LinkIndex: s.clients.Attrs().Index, State: netlink.NUD_PERMANENT, IP: w.pod(2).AsSlice(), HardwareAddr: podMAC}))
	s.route(w, &netlink.Route{LinkIndex: s.clients.Attrs().Index, Scope: netlink.SCOPE_LINK})
}

// isError wants an error about a packet, from and to these, sent on.
func (s nodePair) isError(got outcome, about packet, from, to netip.Addr, verdict string, kind, code uint8, rest uint32) {
	s.Helper()
	if got.action != actRedirect {
		s.Errorf("action %d", got.action)
	}
	s.isErrorOf(got, about, from, to, verdict, kind, code, rest)
}

func (s nodePair) isErrorPassed(got outcome, about packet, verdict string, kind, code uint8, rest uint32) {
	s.Helper()
	if got.action != actUnspec {
		s.Errorf("action %d", got.action)
	}
	s.isErrorOf(got, about, about.dst.Addr(), about.src.Addr(), verdict, kind, code, rest)
}

func (s nodePair) isErrorOf(got outcome, about packet, from, to netip.Addr, verdict string, kind, code uint8, rest uint32) {
	s.Helper()
	s.isErrorOfFrame(got, about.bytes(), from, to, verdict, kind, code, rest)
}

func (s nodePair) isErrorOfFrame(got outcome, about []byte, from, to netip.Addr, verdict string, kind, code uint8, rest uint32) {
	s.Helper()
	p, ok := parse(got.frame)
	if !ok || p.checkOuter(got.frame[14:]) != nil {
		s.Errorf("%s: broken answer\n%s", got.verdict, show(got.frame))
		return
	}
	message, quoted := p.transport, about[14:]
	src, dst := addressesOf(p)
	if got.verdict != verdict || src != from || dst != to || message[0] != kind || message[1] != code || !bytes.Equal(message[4:8], []byte{0, 0, byte(rest >> 8), byte(rest)}) {
		s.Errorf("%s: answer from %s to %s\n%s", got.verdict, src, dst, show(got.frame))
		return
	}
	if !bytes.HasPrefix(quoted, message[8:]) || len(message) < 8+28 {
		s.Errorf("%s: quotes\n%s", got.verdict, show(got.frame))
	}
}

// The node that the client comes by counts as one router, the backend's node as the stack there does.
func TestATTLThatEndsBeforeTheTunnelIsAnswered(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		kind := map[bool]uint8{false: 11, true: 3}[w.v6]
		s.answersFrame(c.in.with("A", "text"), ending(c.in.with("A", "text")), "reject_time_exceeded", kind, 0, 0)
		s.goesOnThrough(w, c)
	}, lb.TCP, lb.UDP)
}

// RFC 6040: congestion that the tunnel's packet met is told to who understands it, and drops who does not.
func TestCongestionInTheTunnelIsTold(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		for _, ecn := range []uint8{0, 1, 2, 3} {
			in, out := marked(c.in.with("A", "x").bytes(), ecn), marked(c.out.with("A", "x").bytes(), ecn)
			d := w.forward(aged(in), c.out.dst)
			there := s.enters(fromPod, in, d, "translate_established")
			s.other.goes(fromPod, there, aged(out), "translate_established", actUnspec)
			for outer := range uint8(4) {
				met := marked(there, outer)
				if ecn == 0 && outer == 3 {
					s.other.refuses(fromPod, met, "drop_tunnel_malformed")
					continue
				}
				want := ecn
				if ecn != 0 && outer == 3 || ecn == 2 && outer == 1 {
					want = outer
				}
				s.other.goes(fromPod, met, aged(marked(c.out.with("A", "x").bytes(), want)), "translate_established", actUnspec)
			}
			answer := marked(c.out.reply("PA", "y").bytes(), ecn)
			seen := marked(c.out.reply("PA", "y").from(c.in.dst).to(c.in.src).bytes(), ecn)
			back := s.other.enters(toPod, answer, w.back(seen), "translate_reply")
			for outer := range uint8(4) {
				met := marked(back, outer)
				if ecn == 0 && outer == 3 {
					s.refuses(fromPod, met, "drop_tunnel_malformed")
					continue
				}
				want := ecn
				if ecn != 0 && outer == 3 || ecn == 2 && outer == 1 {
					want = outer
				}
				s.goes(fromPod, met, aged(marked(seen, want)), "translate_reply", actRedirect)
			}
		}
	}, lb.TCP, lb.UDP)
}

// marked is the frame with these bits of ECN.
func marked(frame []byte, ecn uint8) []byte {
	frame = bytes.Clone(frame)
	if frame[14]>>4 == 6 {
		frame[15] = frame[15]&^0x30 | ecn<<4
		return frame
	}
	frame[15] = frame[15]&^3 | ecn
	frame[24], frame[25] = 0, 0
	check := ^sum(0, frame[14:34])
	frame[24], frame[25] = byte(check>>8), byte(check)
	return frame
}

// A pod that comes to a server of its own node by another node is let in past the stack, whose reverse path filter would drop it. A node that
// does goes by SNAT: its own address would be taken for forged there.
func TestAClientOnTheBackendsNodeComesThroughTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		near := addDevice(s, "pod5")
		check(s, netlink.RouteReplace(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: netlink.NewIPNet(w.pod(5).AsSlice()), Scope: netlink.SCOPE_LINK}))
		in := w.packet(at(w.pod(5), 41000), at(w.outside(10), 80))
		there := s.enters(fromPod, in.bytes(), w.forward(routed(in), at(w.pod(2), 8080)), "translate_balance")
		out := w.clamped(in.to(at(w.pod(2), 8080)), false)
		s.other.goes(fromPod, there, aged(routed(out)), "translate_balance", actRedirect)
		check(s, netlink.LinkDel(near))

		got, err := s.run(fromPod, w.packet(at(w.node2(), 41000), at(w.outside(10), 80)).bytes())
		check(s, err)
		if src, _ := endpoints(s, got.frame); src.Addr() != w.own() || got.verdict != "translate_balance" {
			s.Errorf("a node: %s, left from %s", got.verdict, src)
		}
	}, lb.TCP, lb.UDP)
}

// Such a packet is routed: its client hears of it when it goes no farther, as of a packet that the stack would have routed.
func TestAClientOnTheBackendsNodeHearsOfWhatGoesNoFarther(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		near := addDevice(s, "pod5")
		check(s, netlink.RouteReplace(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: netlink.NewIPNet(w.pod(5).AsSlice()), Scope: netlink.SCOPE_LINK}))
		in, server := w.packet(at(w.pod(5), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		there := s.enters(fromPod, in.bytes(), w.forward(routed(in), server), "translate_balance")
		s.other.goes(fromPod, there, aged(routed(w.clamped(in.to(server), false))), "translate_balance", actRedirect)
		check(s, netlink.LinkSetMTU(s.nodes, 1400))
		tooBig, code, _ := packetTooBig(in)
		for name, row := range map[string]struct {
			about      []byte
			verdict    string
			kind, code uint8
			rest       uint32
		}{
			"its last hop": {ending(in.with("A", "text")), "reject_time_exceeded", map[bool]uint8{false: 11, true: 3}[w.v6], 0, 0},
			"too large":    {in.with("A", string(make([]byte, 1400))).bytes(), "reject_too_big", tooBig, code, 1400},
		} {
			d := w.forward(row.about, server)
			d.from = at(w.node1(), 0x9000)
			got, err := s.other.run(fromPod, d.frame())
			check(s, err)
			if s.isErrorOfFrame(got, row.about, in.dst.Addr(), in.src.Addr(), row.verdict, row.kind, row.code, row.rest); s.Failed() || got.action != actRedirect {
				s.Errorf("packet %s: action %d", name, got.action)
			}
		}
		check(s, netlink.LinkSetMTU(s.nodes, 1500))
		check(s, netlink.LinkDel(near))
	}, lb.TCP, lb.UDP)
}

// Fragments follow their first one both ways, and options go as they are, once the connection is there. A connection that begins with either
// goes by SNAT.
func TestUnusualHeadersPassTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		both := func(in, out packet, verdict string) {
			s.Helper()
			there := s.enters(fromPod, in.bytes(), w.forward(routed(in), c.out.dst), verdict)
			s.other.goes(fromPod, there, routed(out), verdict, actUnspec)
		}
		back := func(answer packet, verdict string) {
			s.Helper()
			seen := answer.from(c.in.dst).to(c.in.src)
			s.goes(fromPod, s.other.enters(toPod, answer.bytes(), w.back(seen.bytes()), verdict), routed(seen), verdict, actRedirect)
		}
		for _, change := range changes(w) {
			both(change(c.in.with("A", "x")), change(c.out.with("A", "x")), "translate_established")
			back(change(c.out.reply("PA", "y")), "translate_reply")
		}
		in, out := long(c.in.with("A", "")), long(c.out.with("A", ""))
		both(in.cut(7, 0, 600), out.cut(7, 0, 600), "translate_established")
		both(in.cut(7, 600, 1200), out.cut(7, 600, 1200), "translate_fragment")
		answer := long(c.out.reply("A", ""))
		back(answer.cut(8, 0, 600), "translate_reply")
		back(answer.cut(8, 600, 1200), "translate_fragment")
		for name, change := range changes(w) {
			if name == "options" || name == "extension header" {
				got, err := s.run(fromPod, change(w.packet(at(w.outside(2), 41000), at(w.outside(10), 80))).bytes())
				check(s, err)
				if src, _ := endpoints(s, got.frame); src.Addr() != w.own() {
					s.Errorf("%s: left from %s", name, src)
				}
			}
		}
	}, lb.TCP, lb.UDP)
}

// Later fragments have no ports: what a receiver spreads the load by is the same for all fragments of a datagram, or later ones overtake the
// first and are lost. Behind destination options they do not even name the protocol.
func TestAllFragmentsOfADatagramGoThroughTheTunnelFromOnePort(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.goesOnThrough(w, c)
		in, answer := long(c.in.with("A", "")), long(c.out.reply("A", ""))
		there, back := pieces(in, 7), pieces(answer, 7)
		s.fromOnePort(s.site, fromPod, there[:])
		s.fromOnePort(s.other, toPod, back[:])
		if !w.v6 {
			return
		}
		in.inner, answer.inner = []extension{padding(8)}, []extension{padding(8)}
		there, back = pieces(in, 8), pieces(answer, 8)
		s.fromOnePort(s.site, fromPod, there[:])
		s.fromOnePort(s.other, toPod, back[:])
	}, lb.TCP, lb.UDP)
}

// fromOnePort wants frames in the tunnel from the same port, of either node.
func (s nodePair) fromOnePort(of site, hook string, all []packet) {
	s.Helper()
	ports := map[uint16]bool{}
	for _, p := range all {
		got, err := of.run(hook, p.bytes())
		check(s, err)
		if got.action != actRedirect {
			s.Errorf("%s: %s, action %d", hook, got.verdict, got.action)
		}
		ports[binary.BigEndian.Uint16(got.frame[14+map[byte]int{4: 20, 6: 40}[got.frame[14]>>4]:])] = true
	}
	if len(ports) != 1 {
		s.Errorf("%s: %d fragments left from ports %v, want one port", hook, len(all), ports)
	}
}
