// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// opensThrough is a connection through the tunnel that both ends went on with.
func (s nodePair) opensThrough(w world) talk {
	s.Helper()
	s.serve(w, nil, 2)
	c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
	s.answersBack(w, c, "SA", "")
	s.goesOnThrough(w, c)
	return c
}

// reply is what n2 sends for an answer of the server, and what the client sees of it.
func (s nodePair) reply(w world, c talk, text string) (there []byte, seen packet) {
	s.Helper()
	answer := c.out.reply("PA", text)
	seen = answer.from(c.in.dst).to(c.in.src)
	return s.other.enters(toPod, answer.bytes(), w.back(seen.bytes()), "translate_reply"), seen
}

// takesInto wants XDP to send the client's next packet as TC does, and takesBack the server's.
func (s nodePair) takesInto(c talk, want func([]byte, netip.AddrPort) datagram) {
	s.Helper()
	in := c.in.with("A", "go")
	s.takesFrame(in.bytes(), s.enters(fromPod, in.bytes(), want(routed(in), c.out.dst), "translate_established"), "translate_established")
}

func (s nodePair) takesBack(w world, c talk) {
	s.Helper()
	there, seen := s.reply(w, c, "yes")
	s.takesFrame(there, routed(seen), "translate_reply")
}

func (s nodePair) takesBothThrough(w world, c talk) {
	s.Helper()
	s.takesInto(c, w.forward)
	s.takesBack(w, c)
}

// A connection through the tunnel that goes on enters it at XDP, and its answers leave it there: with the way remembered and without, with
// nodes' cookies, whatever its class.
func TestXDPSendsThroughTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		for _, cookie := range []uint64{0, newCookie} {
			s.evict()
			s.other.evict()
			s.tell(tunnelNodes())
			if w.cookie = cookie; cookie != 0 {
				s.tell(keyed(cookie, cookie))
			}
			c := s.opensThrough(w)
			for range 2 {
				s.takesBothThrough(w, c)
			}
			s.forgetWays()
			s.takesBothThrough(w, c)
			in := marked(c.in.with("A", "go").bytes(), 1)
			s.takesFrame(in, s.enters(fromPod, in, w.forward(aged(in), c.out.dst), "translate_established"), "translate_established")
		}
	}, lb.TCP, lb.UDP)
}

// Where the backend's node answers the client itself, it is told so at XDP as well.
func TestXDPSendsThroughTheTunnelToANodeThatAnswersTheClientItself(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		for range 2 {
			s.takesInto(c, w.direct)
		}
	}, lb.TCP, lb.UDP)
}

// The entry of a flow through the tunnel says when the last packet came, of either direction.
func TestAFlowThroughTheTunnelLivesOnPacketsThatXDPTakes(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		c := s.opensThrough(w)
		there, seen := s.reply(w, c, "yes")
		in := c.in.with("A", "go")
		out := s.enters(fromPod, in.bytes(), w.forward(routed(in), c.out.dst), "translate_established")
		for _, take := range []func(){
			func() { s.takesFrame(in.bytes(), out, "translate_established") },
			func() { s.takesFrame(there, routed(seen), "translate_reply") },
		} {
			var old uint32
			s.editFlows(func(f *bpf.NearlbFlow) {
				f.Touched -= 5 * bpf.JiffiesPerSecond()
				old = f.Touched
			})
			take()
			if all := s.liveFlows(); len(all) != 1 || all[0].Touched-old < 4*bpf.JiffiesPerSecond() {
				t.Errorf("%s: flows %+v, the last packet before was at %d", w, all, old)
			}
		}
	}, lb.TCP, lb.UDP)
}

// What is not simple passes as it came, or without what was in front of it, whatever it would be.
func TestXDPLeavesWhatIsNotSimpleInTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		c := s.opensThrough(w)
		s.takesBothThrough(w, c)
		in := c.in.with("A", "x")
		for name, change := range changes(w) {
			if name == "options" || name == "extension header" {
				s.passesXDP(name, change(in).bytes())
			}
		}
		first := long(in)
		s.passesXDP("first fragment", first.cut(7, 0, 600).bytes())
		s.passesXDP("later fragment", first.cut(7, 600, 1200).bytes())
		s.passesXDP("for another host", slices.Concat(podMAC, in.bytes()[6:]))
		if w.protocol == lb.TCP { // a datagram opens a connection
			s.passesXDP("another client's", in.from(at(w.outside(2), 41000)).bytes())
		}
		largest := 1500 - len(w.forward(in.bytes(), c.out.dst).frame()) + 14 + len(in.payload)
		s.passesXDP("too large for the option", in.with("A", string(make([]byte, largest+1))).bytes())
		there, seen := s.reply(w, c, "yes")
		for name, change := range map[string]func(frame []byte) []byte{
			"its last hop":     lastHop,
			"partial checksum": unsummed,
		} {
			s.passesXDP(name, change(in.bytes()))
			s.passesXDP(name+" inside", w.back(change(seen.bytes())).frame())
		}
		marked := w.back(seen.bytes())
		marked.class = 3
		s.passesXDP("congestion on the way", marked.frame())
		forged := w.back(seen.bytes())
		forged.from = at(w.stranger(), 0)
		s.passesXDP("of no node", forged.frame())
		own := w.back(seen.bytes())
		own.from = at(w.node1(), 0)
		s.passesXDP("of a node without the backend", own.frame())
		s.passesXDP("to another client", w.back(seen.to(at(w.outside(2), 41000)).bytes()).frame())
		s.passesXDP("cut", there[:len(there)-4])
		if w.protocol == lb.TCP {
			for _, flags := range []string{"S", "SA", "FA", "RA"} {
				s.passesXDP(flags, in.with(flags, "").bytes())
				s.passesXDP(flags+" inside", w.back(seen.with(flags, "").bytes()).frame())
			}
		}
		s.takesFrame(in.with("A", string(make([]byte, largest))).bytes(), w.sourced(there, w.forward(routed(in.with("A", string(make([]byte, largest)))), c.out.dst)), "translate_established")
		s.takesBothThrough(w, c)
	}, lb.TCP, lb.UDP)
}

// sourced is the datagram's frame from the port of another one of the connection.
func (w world) sourced(other []byte, d datagram) []byte {
	at := 14 + map[bool]int{false: 20, true: 40}[w.v6]
	frame := d.frame()
	copy(frame[at:at+2], other[at:at+2])
	return frame
}

// A way that XDP cannot take is TC's, and XDP takes it when it can.
func TestXDPLeavesWaysThroughTheTunnelThatItCannotTake(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		c := s.opensThrough(w)
		there, _ := s.reply(w, c, "yes")
		for name, change := range map[string]struct{ leave, back func() }{
			"devices that send nothing for others": {
				func() { s.serveXDP() }, func() { s.serveXDP(s.clients, s.nodes) }},
			"unknown neighbours": {
				func() {
					s.forgetNeighbour(s.nodes, w.node2())
					s.forgetNeighbour(s.clients, w.router())
				},
				func() {
					addNeighbour(s, s.nodes, w.node2())
					addNeighbour(s, s.clients, w.router())
				}},
		} {
			change.leave()
			s.forgetWays()
			s.passesXDP(name, c.in.with("A", "x").bytes())
			s.passesXDP(name, there)
			change.back()
			s.forgetWays()
			s.takesBothThrough(w, c)
		}
	}, lb.TCP, lb.UDP)
}

func (s site) forgetNeighbour(device netlink.Link, ip netip.Addr) {
	s.Helper()
	check(s, netlink.NeighDel(&netlink.Neigh{LinkIndex: device.Attrs().Index, IP: ip.AsSlice()}))
}

// Datagrams leave a node that takes no more out of the tunnel; TCP stays with its way.
func TestXDPLeavesDatagramsToANodeThatTakesNoMoreOutOfTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		c := s.opensThrough(w)
		s.takesBothThrough(w, c)
		less := tunnelNodes()
		node := less.Nodes["n2"]
		node.Carries = false
		less.Nodes["n2"] = node
		s.tellApart(less, tunnelNodes())
		if w.protocol == lb.UDP {
			s.passesXDP("a datagram", c.in.with("A", "x").bytes())
			return
		}
		s.takesBothThrough(w, c)
	}, lb.TCP, lb.UDP)
}
