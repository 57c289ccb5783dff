// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// hostile is what nobody's node sends: datagrams to n2's tunnel, and why each is dropped. first is as n1 sends a client's first packet.
func (w world) hostile(in packet, server netip.AddrPort) map[string]struct {
	change  func(*datagram)
	verdict string
} {
	type row = struct {
		change  func(*datagram)
		verdict string
	}
	return map[string]row{
		"from no node":             {func(d *datagram) { d.from = at(w.stranger(), d.from.Port()) }, "drop_tunnel_source"},
		"of an unknown kind":       {func(d *datagram) { d.kind = 9 }, "drop_tunnel_malformed"},
		"an answer with an option": {func(d *datagram) { d.kind = kindReply }, "drop_tunnel_malformed"},
		"back with an option":      {func(d *datagram) { d.kind = kindUnknown }, "drop_tunnel_malformed"},
		"back, and never gone":     {func(d *datagram) { d.kind, d.option = kindUnknown, netip.AddrPort{} }, "drop_tunnel_stray"},
		"no packet inside":         {func(d *datagram) { d.inner = d.inner[:1] }, "drop_tunnel_malformed"},
		"a packet that is cut off": {func(d *datagram) { d.inner = d.inner[:len(d.inner)-1] }, "drop_tunnel_malformed"},
		"for nobody":               {func(d *datagram) { d.option = netip.AddrPort{} }, "drop_tunnel_stray"},
		"an answer that nobody asked for": {func(d *datagram) {
			d.kind, d.option, d.inner = kindReply, netip.AddrPort{}, in.reply("SA", "").bytes()[14:]
		}, "drop_tunnel_stray"},
		"a protocol that no Service has": {func(d *datagram) {
			d.inner = packet{src: in.src, dst: in.dst, protocol: 47, payload: make([]byte, 40)}.bytes()[14:]
		}, "drop_tunnel_malformed"},
		"an echo request": {func(d *datagram) {
			kind, protocol := uint8(8), lb.Protocol(protocolICMP)
			if w.v6 {
				kind, protocol = 128, protocolICMPv6
			}
			d.inner = packet{src: in.src, dst: in.dst, protocol: protocol, icmp: &icmp{kind: kind, body: []byte("ping")}}.bytes()[14:]
		}, "drop_tunnel_malformed"},
	}
}

func TestTheTunnelTakesWhatNodesSendAndNothingElse(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		first := w.forward(in.bytes(), server)
		first.from = at(w.node1(), 0x9000)
		for what, row := range w.hostile(in, server) {
			d := first
			row.change(&d)
			if s.other.refuses(fromPod, d.frame(), row.verdict); s.Failed() {
				s.Errorf("datagram %s", what)
				return
			}
		}
		if flows := s.other.liveFlows(); len(flows) > 0 {
			s.Errorf("%d flows", len(flows))
		}
		elsewhere := first
		elsewhere.to = at(w.stranger(), tunnelPort)
		s.other.goes(fromPod, elsewhere.frame(), elsewhere.frame(), "pass_not_service", actUnspec)
		elsewhere.to = at(w.node2(), tunnelPort+1)
		s.other.goes(fromPod, elsewhere.frame(), elsewhere.frame(), "pass_not_service", actUnspec)
		s.other.goes(fromPod, first.frame(), w.clamped(in.to(server), false).bytes(), "translate_balance", actUnspec)
	}, lb.TCP, lb.UDP)
}

// Every bit of what is in front of a client's packet counts: a datagram with one bit changed is dropped or, where it names a backend that is not
// there, goes back; none makes a flow to another backend.
func TestADatagramWithAChangedBitNamesNobodyElse(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		first := w.forward(in.bytes(), server)
		first.from = at(w.node1(), 0x9000)
		whole := first.frame()
		at := 14 + map[bool]int{false: 20, true: 40}[w.v6] + 8
		for bit := 8 * at; bit < 8*(len(whole)-len(in.bytes())+14); bit++ {
			frame := append([]byte{}, whole...)
			frame[bit/8] ^= 0x80 >> (bit % 8)
			got, err := s.other.run(fromPod, frame)
			check(s, err)
			if got.action != actShot && got.verdict != "translate_returned" {
				s.Errorf("byte %d of what is in front, bit %d: %s\n%s", bit/8-at, bit%8, got.verdict, show(frame))
			}
		}
		if flows := s.other.liveFlows(); len(flows) > 0 {
			s.Errorf("%d flows", len(flows))
		}
		s.other.goes(fromPod, whole, w.clamped(in.to(server), false).bytes(), "translate_balance", actUnspec)
	}, lb.TCP, lb.UDP)
}

// A node's agent that asks is answered while the node serves, as it asked but for one byte; who is no node is not.
func TestAHelloIsAnsweredByWhoServes(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		hello := world{v6: w.v6, protocol: lb.UDP}.packet(at(w.node1(), 40000), at(w.node2(), tunnelPort))
		hello.payload = []byte{0, 0x80, 0, 0, 0, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8}
		answer := hello.back().from(hello.dst).to(hello.src)
		answer.payload = []byte{0, 0x80, 0, 0, 0, 0, 4, 1, 1, 2, 3, 4, 5, 6, 7, 8}
		s.other.goes(fromPod, hello.bytes(), answer.bytes(), "reject_hello", actRedirect)
		silent := hello
		silent.noChecksum, answer.noChecksum = true, true
		s.other.goes(fromPod, silent.bytes(), answer.bytes(), "reject_hello", actRedirect)
		s.other.refuses(fromPod, hello.from(at(w.stranger(), 40000)).bytes(), "drop_tunnel_source")
		for at := range hello.payload[:8] {
			wrong := hello
			wrong.payload = append([]byte{}, hello.payload...)
			wrong.payload[at] ^= 1
			s.other.refuses(fromPod, wrong.bytes(), "drop_tunnel_malformed")
		}
		s.other.tables.Drain(true)
		s.other.goes(fromPod, hello.bytes(), hello.bytes(), "pass_draining", actUnspec)
		s.other.tables.Drain(false)
		leaving := tunnelNodes()
		leaving.Leaving = true
		s.tellApart(tunnelNodes(), leaving)
		s.other.goes(fromPod, hello.bytes(), hello.bytes(), "pass_draining", actUnspec)
	}, lb.UDP)
}

// silentNodes are those of the tunnel, where none answers.
func silentNodes() maps.Tunnel {
	silent := tunnelNodes()
	for name, node := range silent.Nodes {
		node.Carries, node.Direct = false, false
		silent.Nodes[name] = node
	}
	return silent
}

// A TCP connection goes by SNAT to a node that does not carry, and stays on the way that it began with whatever becomes of that.
func TestAConnectionKeepsTheWayThatItBeganWith(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		carried := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.tell(silentNodes())
		s.answersBack(w, carried, "SA", "")
		translated := s.connect(w, 2)
		s.goesOnThrough(w, carried)
		s.tell(tunnelNodes())
		s.goesOn(translated, "translate_established")
		s.goesOnThrough(w, carried)
		s.carried(w, w.packet(at(w.outside(3), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
	}, lb.TCP)
}

// Where a node takes packets no more, or the tunnel is off, datagrams of a client that went through it go by SNAT, as does a connection that
// begins anew: a client that keeps its port would else send into nothing for as long as it sends.
func TestWhatIsCarriedNoMoreGoesBySNAT(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		for i, tunnel := range []maps.Tunnel{silentNodes(), {}} {
			s.serve(w, nil, 2)
			s.tell(tunnelNodes())
			c := s.carried(w, w.packet(at(w.outside(1), uint16(41000+i)), at(w.outside(10), 80)), at(w.pod(2), 8080))
			s.goesOnThrough(w, c)
			s.tell(tunnel)
			again := s.remote(c.in, "translate_rehome")
			if again.out.src.Addr() != w.own() || again.out.dst != c.out.dst {
				s.Errorf("tunnel %d: left from %s to %s", i, again.out.src, again.out.dst)
			}
			answer := again.out.reply("SA", "")
			s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// A client whose packets come to the backend's own node, as where a load balancer moves it and the node that it came by is gone, is answered
// from there; and through the tunnel again once it comes through it.
func TestAClientThatComesByTheBackendsNodeIsAnsweredThere(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.goesOnThrough(w, c)
		for range 2 {
			in, answer := c.in.with("A", "moved"), c.out.reply("PA", "here")
			s.other.goes(fromPod, in.bytes(), c.out.with("A", "moved").bytes(), "translate_established", actUnspec)
			s.other.goes(toPod, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
			s.goesOnThrough(w, c)
		}
	}, lb.TCP, lb.UDP)
}

// A pod that sends to a node's tunnel would pass for this node where what it sends is masqueraded.
func TestNoPodReachesATunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		pod := s.site
		pod.rig = s.rig.at(world{})
		for _, to := range []netip.Addr{w.node1(), w.node2()} {
			in := world{v6: w.v6, protocol: lb.UDP}.packet(at(w.pod(1), 41000), at(to, tunnelPort))
			pod.refuses(fromPod, in.bytes(), "drop_tunnel_source")
			pod.refuses(fromPod, in.cut(7, 0, 8).bytes(), "drop_tunnel_source")
			pod.goes(fromPod, in.to(at(to, 53)).bytes(), in.to(at(to, 53)).bytes(), "pass_not_service", actUnspec)
		}
	}, lb.UDP)
}

// A Service has a node's tunnel as a backend beside another one: nothing goes there, nor does what went there before that was a tunnel.
func TestNoServiceLeadsToATunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		pod := s.site
		pod.rig = s.rig.at(world{})
		all, server := tiersOf([]netip.AddrPort{at(w.node2(), tunnelPort), at(w.pod(2), tunnelPort)}), at(w.pod(2), tunnelPort)
		serve := func() {
			s.publish(w.decide(service{name: "evil", address: at(w.vip(66), 53), tiers: all}))
			s.publish(w.decide(service{name: "door", kind: lb.KindLoadBalancer, address: at(w.outside(66), 53), remote: true, tiers: all}))
		}
		const flows = 32
		lead := func() (to map[netip.Addr]int) {
			to = map[netip.Addr]int{}
			for port := range uint16(flows / 2) {
				s.counted = s.counters() // both count in the same tables
				for of, in := range map[site]packet{
					pod:    w.packet(at(w.pod(1), 41000+port), at(w.vip(66), 53)),
					s.site: w.packet(at(w.outside(1), 41000+port), at(w.outside(66), 53)),
				} {
					of.counted = s.counters()
					got, err := of.run(fromPod, in.bytes())
					check(s, err)
					_, dst := endpoints(s, got.frame)
					to[dst.Addr()]++
				}
			}
			return to
		}
		s.tell(maps.Tunnel{})
		serve()
		if to := lead(); to[w.node2()] == 0 || len(to) != 2 {
			s.Errorf("without a tunnel packets go to %v", to)
		}
		for range 2 { // what is published later, or again, is no other
			s.tell(tunnelNodes())
			if to := lead(); to[server.Addr()] != flows {
				s.Errorf("packets go to %v, want all to %s", to, server)
			}
			serve()
		}
		s.tell(maps.Tunnel{})
		s.evict()
		if to := lead(); to[w.node2()] == 0 {
			s.Errorf("packets go to %v once there is no tunnel", to)
		}
	}, lb.UDP)
}

// Rules about sources are about the client, on both nodes.
func TestSourceRangesKnowTheClientBehindTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		only := netip.PrefixFrom(w.outside(1), w.outside(1).BitLen())
		s.serve(w, func(o *service) { o.ranges = []netip.Prefix{only} }, 2)
		server := at(w.pod(2), 8080)
		s.goesOnThrough(w, s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), server))
		other := w.packet(at(w.outside(2), 41000), at(w.outside(10), 80))
		s.refuses(fromPod, other.bytes(), "drop_source_range")
		d := w.forward(other.bytes(), server)
		d.from = at(w.node1(), 0x9000)
		s.other.refuses(fromPod, d.frame(), "drop_source_range")
	}, lb.TCP, lb.UDP)
}
