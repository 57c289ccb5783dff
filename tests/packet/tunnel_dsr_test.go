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

// direct is what n1 sends for a packet of a client whom n2 answers itself.
func (w world) direct(frame []byte, option netip.AddrPort) datagram {
	d := w.forward(frame, option)
	d.kind = kindDirect
	return d
}

// opensDirect is a connection whose server's first answer went back through n1, and which both ends go on with. A server over UDP answers
// through n1 until that has seen it do so.
func (s nodePair) opensDirect(w world, in packet, server netip.AddrPort) talk {
	s.Helper()
	c := talk{in, in.to(server)}
	first, verdict := w.forward, "translate_balance"
	if w.protocol == lb.TCP {
		first = w.direct
	}
	there := s.enters(fromPod, in.bytes(), first(routed(in), server), verdict)
	s.other.goes(fromPod, there, routed(c.out), verdict, actUnspec)
	s.answersBack(w, c, "SA", "")
	return c
}

// goesOnDirect sends both ways: the answer leaves n2 for the client, whole.
func (s nodePair) goesOnDirect(w world, c talk) {
	s.Helper()
	in := c.in.with("A", "go")
	there := s.enters(fromPod, in.bytes(), w.direct(routed(in), c.out.dst), "translate_established")
	s.other.goes(fromPod, there, routed(c.out.with("A", "go")), "translate_established", actUnspec)
	for _, flags := range []string{"PA", "FA"} {
		answer := c.out.reply(flags, "yes")
		s.other.goes(toPod, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
	}
}

// talksDirect is a connection to the Service's one server that opened, and goes on.
func (s nodePair) talksDirect(w world) talk {
	s.Helper()
	s.serve(w, nil, 2)
	c := s.opensDirect(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
	s.goesOnDirect(w, c)
	return c
}

// forEachDirectPair is forEachNodePair with Services that ask for dsr.
func forEachDirectPair(t *testing.T, test func(nodePair, world), protocols ...lb.Protocol) {
	t.Helper()
	forEachNodePair(t, func(s nodePair, w world) {
		s.way = lb.OffNodeDSR
		test(s, w)
	}, protocols...)
}

// The backend's node answers the client itself. What opens a connection goes back through the node that the client came by, which is told so
// that the backend answers; the client's segments are clamped to the tunnel, the server's are not.
func TestTheBackendsNodeAnswersTheClientItself(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		for kind, address := range map[lb.Kind]netip.AddrPort{
			lb.KindLoadBalancer: at(w.outside(10), 80), lb.KindClusterIP: at(w.vip(10), 80), lb.KindNodePort: at(w.node1(), 30080),
		} {
			s.evict()
			s.other.evict()
			s.serve(w, func(o *service) { o.kind, o.address = kind, address }, 2)
			in := w.packet(at(w.outside(1), 41000), address)
			c := talk{in, in.to(at(w.pod(2), 8080))}
			if w.protocol == lb.UDP {
				c = s.carried(w, in, c.out.dst)
				s.answersBack(w, c, "", "")
			} else {
				c = s.opensDirect(w, in, c.out.dst)
			}
			for range 2 {
				s.goesOnDirect(w, c)
			}
			const carry, carried, dsr = uint8(bpf.NearlbFlowFlagsFLOW_CARRY), uint8(bpf.NearlbFlowFlagsFLOW_CARRIED), uint8(bpf.NearlbFlowFlagsFLOW_DSR)
			for of, flags := range map[*rig]uint8{s.rig: carry | dsr, s.other.rig: carried | dsr} {
				if all := of.liveFlows(); len(all) != 1 || all[0].Flags != flags {
					s.Errorf("flows %+v, want one of flags %d", all, flags)
				}
			}
		}
	}, lb.TCP, lb.UDP)
}

// A reset is told to the node that the client came by, which forgets the connection with it.
func TestAResetOfADirectAnswerIsToldToTheFirstNode(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		s.answersBack(w, c, "RA", "")
		if all := s.liveFlows(); len(all) != 1 || all[0].Seen&uint32(bpf.NearlbFlowSeenSEEN_RESET) == 0 {
			s.Errorf("flows %+v, want one that was reset", all)
		}
	}, lb.TCP)
}

// Errors about answers come by the client's node, and those about the client's packets leave for the client.
func TestErrorsFindBothEndsOfADirectAnswer(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		for _, f := range failures() {
			for _, n := range quotations() {
				sent := c.out.reply("PA", "text")
				about := f.of(sent.from(c.in.dst).to(c.in.src), w.router(), n)
				there := s.enters(fromPod, about.bytes(), w.forward(routed(about), netip.AddrPort{}), "translate_icmp")
				s.other.goes(fromPod, there, routed(f.of(sent, c.in.src.Addr(), n)), "translate_icmp", actUnspec)
				about = f.of(c.out.with("A", "text"), w.router(), n)
				s.other.goes(toPod, about.bytes(), f.of(c.in.with("A", "text"), c.in.dst.Addr(), n).bytes(), "translate_icmp", actUnspec)
			}
		}
		s.goesOnDirect(w, c)
	}, lb.TCP)
}

// Fragments of an answer leave as it does.
func TestFragmentsOfADirectAnswerLeaveWithIt(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "", "")
		s.goesOnDirect(w, c)
		answer := long(c.out.reply("A", ""))
		seen := answer.from(c.in.dst).to(c.in.src)
		s.other.goes(toPod, answer.cut(8, 0, 600).bytes(), seen.cut(8, 0, 600).bytes(), "translate_reply", actUnspec)
		s.other.goes(toPod, answer.cut(8, 600, 1200).bytes(), seen.cut(8, 600, 1200).bytes(), "translate_fragment", actUnspec)
	}, lb.UDP)
}

// olderNodes is a tunnel whose other node takes packets and cannot answer clients, as an older agent's.
func olderNodes() maps.Tunnel {
	tunnel := tunnelNodes()
	for name, node := range tunnel.Nodes {
		node.Direct = false
		tunnel.Nodes[name] = node
	}
	return tunnel
}

// A connection keeps the way that it began with, whatever becomes of the Service and of the nodes; to a node that cannot answer clients packets
// are carried, and to one that takes none they go by SNAT.
func TestWhatCannotBeAnsweredDirectlyIsCarried(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		server := at(w.pod(2), 8080)
		s.serve(w, nil, 2)
		direct := s.opensDirect(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), server)
		s.goesOnDirect(w, direct)
		s.tell(olderNodes())
		s.goesOnThrough(w, direct)
		carried := s.carried(w, w.packet(at(w.outside(2), 41000), at(w.outside(10), 80)), server)
		s.goesOnThrough(w, carried)
		s.tell(tunnelNodes())
		s.goesOnThrough(w, carried)
		s.goesOnDirect(w, direct)

		s.way = lb.OffNodeCarry
		s.serve(w, nil, 2)
		s.goesOnDirect(w, direct)
		later := s.carried(w, w.packet(at(w.outside(3), 41000), at(w.outside(10), 80)), server)
		s.goesOnThrough(w, later)
		s.way = lb.OffNodeDSR
		s.serve(w, nil, 2)
		s.goesOnThrough(w, later)
		s.tell(silentNodes())
		s.connect(w, 4)
	}, lb.TCP)
}

// The first node sees the client close and not the server: the entry makes room for others, and a SYN from that port opens a connection.
func TestAClientThatClosedADirectConnectionOpensAnother(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		s.closesDirect(w, c)
		s.serve(w, nil, 3)
		s.opensDirect(w, c.in, at(w.pod(3), 8080))
	}, lb.TCP)
}

// A client that comes by the backend's own node is answered there, and goes on when it comes through the tunnel again.
func TestADirectConnectionThatMovesIsAnsweredWhereItComes(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		for range 2 {
			in, answer := c.in.with("A", "moved"), c.out.reply("PA", "here")
			s.other.goes(fromPod, in.bytes(), c.out.with("A", "moved").bytes(), "translate_established", actUnspec)
			s.other.goes(toPod, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
			s.goesOnDirect(w, c)
		}
	}, lb.TCP)
}

// closesDirect sends the client's FIN to both nodes.
func (s nodePair) closesDirect(w world, c talk) {
	s.Helper()
	in := c.in.with("FA", "")
	there := s.enters(fromPod, in.bytes(), w.direct(routed(in), c.out.dst), "translate_established")
	s.other.goes(fromPod, there, routed(c.out.with("FA", "")), "translate_established", actUnspec)
}

// A node that has no entry of a connection, as it comes by another node from now on, or was evicted, gets its answers until it has seen one: else
// it would take the connection for one that nobody answers.
func TestADirectConnectionIsAnsweredThroughANodeThatFindsItAgain(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		s.evict()
		for _, verdict := range []string{"translate_recover", "translate_established"} {
			in := c.in.with("A", "again")
			there := s.enters(fromPod, in.bytes(), w.forward(routed(in), c.out.dst), verdict)
			s.other.goes(fromPod, there, routed(c.out.with("A", "again")), "translate_established", actUnspec)
		}
		s.answersBack(w, c, "PA", "still here")
		const answered = uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)
		if all := s.liveFlows(); len(all) != 1 || all[0].Seen&answered != answered {
			s.Errorf("flows %+v, want one that is established", all)
		}
		s.goesOnDirect(w, c)
	}, lb.TCP)
}

// The next connection from the port of one that its client has closed is as any other: its second SYN goes to another backend. One that comes
// at once after the FIN may be forged, as that: it stays.
func TestTheNextDirectConnectionFromAPortIsAsAnyOther(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		for after, second := range map[time.Duration]string{0: "translate_established", 2 * time.Second: "translate_retry"} {
			s.evict()
			s.other.evict()
			c := s.talksDirect(w)
			s.closesDirect(w, c)
			s.serve(w, nil, 2, 3)
			for _, syn := range []struct {
				after   time.Duration
				verdict string
			}{{after, "translate_balance"}, {retryAfter, second}} {
				s.waited(syn.after)
				got, err := s.run(fromPod, c.in.bytes())
				if check(s, err); got.verdict != syn.verdict {
					s.Errorf("SYN %v after the last packet: %s, want %s", syn.after, got.verdict, syn.verdict)
				}
			}
		}
	}, lb.TCP)
}

// Whoever sends a FIN and SYNs as the client takes no connection elsewhere: the server answers the SYN of a connection that goes on, and the node
// that the client comes by sees that.
func TestAForgedFINTakesNoDirectConnectionToAnotherBackend(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		in := c.in.with("F", "")
		s.enters(fromPod, in.bytes(), w.direct(routed(in), c.out.dst), "translate_established")
		s.waited(2 * time.Second)
		there := s.enters(fromPod, c.in.bytes(), w.direct(routed(c.in), c.out.dst), "translate_balance")
		s.other.goes(fromPod, there, routed(c.out), "translate_established", actUnspec)
		s.answersBack(w, c, "A", "")
		s.serve(w, nil, 2, 3)
		s.waited(retryAfter)
		s.enters(fromPod, c.in.bytes(), w.direct(routed(c.in), c.out.dst), "translate_established")
		s.goesOnDirect(w, c)
	}, lb.TCP)
}

// After its client has closed, a connection's first node may have forgotten it: the client is told of a reset none the less.
func TestAResetOfAHalfClosedDirectConnectionReachesTheClient(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		s.closesDirect(w, c)
		s.evict()
		reset := c.out.reply("RA", "")
		s.other.goes(toPod, reset.bytes(), reset.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
	}, lb.TCP)
}

// Whoever passes for a node has a server's answers sent past it only where this node, too, knows the Service as one that is answered so.
func TestANodeAnswersNobodyPastAnotherUnlessTheServiceSaysSo(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := talk{in: w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)).with("A", "who?")}
		c.out = c.in.to(at(w.pod(2), 8080))
		first := w.direct(c.in.bytes(), c.out.dst)
		first.from = at(w.node1(), 0x9000)
		for _, verdict := range []string{map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol], "translate_established"} {
			s.other.goes(fromPod, first.frame(), c.out.bytes(), verdict, actUnspec)
			answer := c.out.reply("PA", "me")
			s.other.enters(toPod, answer.bytes(), w.back(answer.from(c.in.dst).to(c.in.src).bytes()), "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}
