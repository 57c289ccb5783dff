// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// first is what n1 sends for a client's first packet.
func (s nodePair) first(w world, in packet, server netip.AddrPort) datagram {
	if s.way == lb.OffNodeDSR && w.protocol == lb.TCP {
		return w.direct(routed(in), server)
	}
	return w.forward(routed(in), server)
}

// told is that packet as n2 has it when it is taken out: what the server is told of segments has changed, unless answers take no tunnel.
func (s nodePair) told(w world, in packet) packet {
	if s.way == lb.OffNodeDSR {
		return in
	}
	return w.clamped(in, false)
}

// unknown is the datagram in which n2 sends a packet back that n1 sent for a client.
func (s nodePair) unknown(w world, in packet) datagram {
	back := w.back(routed(in))
	back.kind = kindUnknown
	return back
}

// returned is that datagram, sent by n2, which has no such backend.
func (s nodePair) returned(w world, in packet, server netip.AddrPort, verdict string) []byte {
	s.Helper()
	there := s.enters(fromPod, in.bytes(), s.first(w, in, server), verdict)
	return s.other.enters(fromPod, there, s.unknown(w, in), "translate_returned")
}

// goesBySNAT wants what came back sent to the server by n1 itself.
func (s nodePair) goesBySNAT(w world, in packet, back []byte, server netip.AddrPort, verdict string) talk {
	s.Helper()
	got, err := s.run(fromPod, back)
	check(s, err)
	src, dst := endpoints(s, got.frame)
	if src.Addr() != w.own() || dst != server {
		s.Errorf("left from %s to %s, want from %s to %s", src, dst, w.own(), server)
	}
	want := aged(routed(in.from(src).to(server)))
	if got.verdict != verdict || got.action != actRedirect || !bytes.Equal(got.frame, want) {
		s.Errorf("verdict %s, want %s; action %d, frame out (-want +got)\n%s", got.verdict, verdict, got.action, cmp.Diff(show(want), show(got.frame)))
	}
	return talk{in, in.from(src).to(server)}
}

// forEachWayThere is forEachNodePair with Services that ask for carry, and with such as ask for dsr.
func forEachWayThere(t *testing.T, test func(nodePair, world), protocols ...lb.Protocol) {
	t.Helper()
	forEachNodePair(t, func(s nodePair, w world) {
		for _, s.way = range []lb.OffNode{lb.OffNodeCarry, lb.OffNodeDSR} {
			s.evict()
			s.other.evict()
			test(s, w)
		}
	}, protocols...)
}

// The other node's agent is dead or behind: the Service is not there, or has other endpoints. Clients reach the backend by SNAT, with their first
// packet.
func TestABackendThatItsNodeDoesNotKnowIsReachedBySNAT(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		server := at(w.pod(2), 8080)
		for what, behind := range map[string]func(){
			"no such endpoint": func() { s.serveOn(s.other, w, nil, 9) },
			"no such Service":  func() { s.other.remove(lb.ServiceName{Namespace: "default", Name: "web"}) },
		} {
			s.evict()
			s.other.evict()
			s.serve(w, nil, 2)
			behind()
			in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
			c := s.goesBySNAT(w, in, s.returned(w, in, server, "translate_balance"), server, "translate_uncarried")
			for range 2 {
				s.goesOn(c, "translate_established")
			}
			const snat, alias = uint8(bpf.NearlbFlowFlagsFLOW_SNAT), uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
			if all := s.liveFlows(); len(all) != 2 || (all[0].Flags|all[1].Flags) != snat|alias {
				s.Errorf("%s: flows %+v, want the two of one by SNAT", what, all)
			}
			if all := s.other.liveFlows(); len(all) != 0 {
				s.Errorf("%s: flows %+v on the other node, want none", what, all)
			}
			if s.Failed() {
				s.Errorf("%s, way %v", what, s.way)
				return
			}
		}
	}, lb.TCP, lb.UDP)
}

// A pod comes by another node to a server on the address of the pod's own node: there the packet could not pass the reverse path filter, and no
// route leads past that.
func TestAClientOnTheNodeThatIsItsBackendIsServedBySNAT(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		server, in := at(w.pod(2), 8080), w.packet(at(w.pod(5), 41000), at(w.outside(10), 80))
		near := addDevice(s, "pod5", netip.PrefixFrom(server.Addr(), server.Addr().BitLen()).String())
		check(s, netlink.RouteReplace(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: netlink.NewIPNet(w.pod(5).AsSlice()), Scope: netlink.SCOPE_LINK}))
		back := s.returned(w, in, server, "translate_balance")
		check(s, netlink.LinkDel(near)) // n1 has no such address
		c := s.goesBySNAT(w, in, back, server, "translate_uncarried")
		s.goesOn(c, "translate_established")
		if all := s.other.liveFlows(); len(all) != 0 {
			s.Errorf("flows %+v on the other node, want none", all)
		}
	}, lb.TCP, lb.UDP)
}

// A client that sends several datagrams before it is answered: each finds the way that the first has found.
func TestDatagramsThatComeBackLaterTakeTheSameWay(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		server, in := at(w.pod(2), 8080), w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		s.serve(w, nil, 2)
		s.serveOn(s.other, w, nil, 9)
		var back [][]byte
		for _, verdict := range []string{"translate_balance", "translate_established", "translate_established"} {
			back = append(back, s.returned(w, in, server, verdict))
		}
		c := s.goesBySNAT(w, in, back[0], server, "translate_uncarried")
		if again := s.goesBySNAT(w, in, back[1], server, "translate_established"); again.out.src != c.out.src {
			s.Errorf("left from %s, and then from %s", c.out.src, again.out.src)
		}
		s.goesOn(c, "translate_established")
		s.goesBySNAT(w, in, back[2], server, "translate_established")
	}, lb.UDP)
}

// named is the backend that a datagram to n2 names.
func (w world) named(frame []byte) netip.AddrPort {
	option := frame[14+map[bool]int{false: 20, true: 40}[w.v6]+8+8+4:]
	address, _ := netip.AddrFromSlice(option[4 : 4+map[bool]int{false: 4, true: 16}[w.v6]])
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(option))
}

// A SYN that its first backend did not answer stays with the second, and goes on to the third when that does not answer either.
func TestASYNThatComesBackRemembersWhereItWas(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		s.serve(w, nil, 2, 3, 4)
		got, err := s.run(fromPod, in.bytes())
		check(s, err)
		seen := map[netip.AddrPort]bool{w.named(got.frame): true}
		s.waited(retryAfter)
		got, err = s.run(fromPod, in.bytes())
		check(s, err)
		second := w.named(got.frame)
		seen[second] = true
		s.serveOn(s.other, w, nil, 9)
		back := s.other.enters(fromPod, got.frame, s.unknown(w, in), "translate_returned")
		s.goesBySNAT(w, in, back, second, "translate_uncarried")
		s.waited(retryAfter)
		got, err = s.run(fromPod, in.bytes())
		check(s, err)
		if seen[w.named(got.frame)] = true; got.verdict != "translate_retry" || len(seen) != 3 {
			s.Errorf("verdict %s, went to %v", got.verdict, seen)
		}
	}, lb.TCP)
}

// Once a connection is answered it stays on its way, whoever says that it is not known, and so does one that went to another node; and whoever
// passes for a node can send back nothing but what opens a connection.
func TestNobodyTakesAConnectionOutOfTheTunnel(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		third := tunnelNodes()
		third.Nodes["n3"] = maps.TunnelNode{Addresses: []netip.Addr{world{}.stranger(), world{v6: true}.stranger()}, Carries: true}
		in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		refused := func(what, verdict string, change func(*datagram)) {
			d := s.unknown(w, in)
			d.from = netip.AddrPortFrom(d.from.Addr(), 0x9000)
			if change(&d); !s.Failed() {
				if s.refuses(fromPod, d.frame(), verdict); s.Failed() {
					s.Errorf("%s, way %v", what, s.way)
				}
			}
		}
		s.enters(fromPod, in.bytes(), s.first(w, in, server), "translate_balance")
		refused("from no node", "drop_tunnel_source", func(d *datagram) { d.from = at(w.stranger(), 0x9000) })
		s.tell(third)
		refused("from another node", "drop_tunnel_stray", func(d *datagram) { d.from = at(w.stranger(), 0x9000) })
		s.tell(tunnelNodes())
		refused("of another client", "drop_tunnel_stray", func(d *datagram) { d.inner = in.from(at(w.outside(2), 41000)).bytes()[14:] })
		refused("to another port", "drop_tunnel_stray", func(d *datagram) { d.inner = in.to(at(w.outside(10), 81)).bytes()[14:] })
		refused("a fragment", "drop_tunnel_stray", func(d *datagram) { d.inner = long(in.with("S", "")).cut(7, 0, 600).bytes()[14:] })
		refused("an error", "drop_tunnel_malformed", func(d *datagram) {
			about := failures()[0].of(in.to(server).reply("", ""), w.router(), quotations()[0])
			d.inner = about.bytes()[14:]
		})
		if w.protocol == lb.TCP {
			for _, flags := range []string{"A", "SA", "R", "FA"} {
				refused(flags, "drop_tunnel_stray", func(d *datagram) { d.inner = in.with(flags, "").bytes()[14:] })
			}
		}
		carry := uint8(bpf.NearlbFlowFlagsFLOW_CARRY)
		if all := s.liveFlows(); len(all) != 1 || all[0].Flags&carry == 0 {
			s.Errorf("flows %+v, want one through the tunnel", all)
		}
		there := s.enters(fromPod, in.bytes(), s.first(w, in, server), "translate_established")
		s.other.goes(fromPod, there, routed(s.told(w, in).to(server)), "translate_balance", actUnspec)
		s.answersBack(w, talk{in, in.to(server)}, "SA", "")
		refused("once it is answered", "drop_tunnel_stray", func(*datagram) {})
	}, lb.TCP, lb.UDP)
}

// What a node is asked to do for nobody that it knows goes back whole to the node that asked, and is remembered by no flow; what opens no
// connection does not.
func TestWhatIsForNobodyKnownGoesBackToTheNodeThatItCameFrom(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		for what, row := range map[string]struct {
			in     packet
			option netip.AddrPort
		}{
			"to no Service":              {in.to(at(w.outside(77), 80)), server},
			"to no port of a Service":    {in.to(at(w.outside(10), 81)), server},
			"to a pod":                   {in.to(server), server},
			"for no backend of the node": {in, at(w.pod(9), 8080)},
			"for no port of a backend":   {in, at(server.Addr(), 22)},
		} {
			d := w.forward(row.in.bytes(), row.option)
			d.from = at(w.node1(), 0x9000)
			back := w.back(row.in.bytes())
			back.kind = kindUnknown
			if s.other.enters(fromPod, d.frame(), back, "translate_returned"); w.protocol == lb.TCP {
				d.inner = row.in.with("A", "").bytes()[14:]
				s.other.refuses(fromPod, d.frame(), "drop_tunnel_stray")
			}
			if s.Failed() {
				s.Errorf("datagram %s", what)
				return
			}
		}
		s.serve(w, nil, 2, 3)
		s.exchangeLocal()
		got, err := s.run(fromPod, in.bytes())
		check(s, err)
		back := s.unknown(w, in)
		s.other.enters(fromPod, got.frame, back, "translate_returned")
		if flows := s.other.liveFlows(); len(flows) > 0 {
			s.Errorf("%d flows", len(flows))
		}
	}, lb.TCP, lb.UDP)
}

// exchangeLocal gives the keys of two backends of n2 each other's element, as the kernel may while one is read.
func (s nodePair) exchangeLocal() {
	s.Helper()
	var key bpf.NearlbLocalKey
	var id uint32
	ids := map[bpf.NearlbLocalKey]uint32{}
	sum := uint32(0)
	for entries := s.other.objects.LocalBackends.Iterate(); entries.Next(&key, &id); sum += id {
		ids[key] = id
	}
	if len(ids) != 2 {
		s.Fatalf("%d backends of this node, want two", len(ids))
	}
	for key, id := range ids {
		check(s, s.other.objects.LocalBackends.Put(&key, sum-id))
	}
}

// headed gives the way to an address headers of its own, which the kernel puts in front of what it routes itself, until the returned function is
// called.
func (s nodePair) headed(w world, to netip.Addr) (end func()) {
	s.Helper()
	route := &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Dst: netlink.NewIPNet(to.AsSlice()), Scope: netlink.SCOPE_LINK, Encap: ownHeaders()}
	check(s, netlink.RouteAdd(route))
	s.forgetWays()
	return func() {
		check(s, netlink.RouteDel(route))
		s.forgetWays()
	}
}

// No program sends a packet by such a route: clients go by SNAT to a backend whose node is behind one, with their first packet, and so do they where
// the way back is one, which that node says in its answers to hellos.
func TestANodeBehindARouteWithHeadersOfItsOwnIsNotReachedThroughTheTunnel(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		server, in := at(w.pod(2), 8080), w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		s.serve(w, nil, 2)
		for _, known := range []bool{true, false} {
			if !known { // the kernel tells the MTU otherwise then
				s.forgetNeighbour(s.nodes, w.node2())
			}
			end := s.headed(w, w.node2())
			s.evict()
			got, err := s.run(fromPod, in.bytes())
			check(s, err)
			if src, dst := endpoints(s, got.frame); src.Addr() != w.own() || dst != server || got.verdict != "translate_balance" || got.action != actRedirect {
				s.Errorf("the way there, neighbour known %v: %s, action %d, left from %s to %s", known, got.verdict, got.action, src, dst)
			}
			end()
			s.evict()
			s.enters(fromPod, in.bytes(), s.first(w, in, server), "translate_balance")
		}
		addNeighbour(s, s.nodes, w.node2())

		hello := world{v6: w.v6, protocol: lb.UDP}.packet(at(w.node1(), 40000), at(w.node2(), tunnelPort))
		hello.payload = []byte{0, 0x80, 0, 0, 0, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8}
		answer := hello.back().from(hello.dst).to(hello.src)
		answers := func(features byte) {
			answer.payload = slices.Clone(hello.payload)
			answer.payload[6], answer.payload[7] = 4, features
			s.other.goes(fromPod, hello.bytes(), answer.bytes(), "reject_hello", actRedirect)
		}
		largest := in.with(in.flags, string(make([]byte, 1500-len(w.forward(routed(in.with(in.flags, "")), server).frame())+14)))
		for _, in := range []packet{in, largest} {
			s.evict()
			there := s.enters(fromPod, in.bytes(), s.first(w, in, server), "translate_balance")
			answers(1)
			end := s.headed(w, w.node1())
			answers(1 | 2)
			back := s.other.enters(fromPod, there, s.unknown(w, in), "translate_returned")
			if !bytes.Equal(back[:12], slices.Concat(there[6:12], there[:6])) {
				s.Errorf("goes back to %x", back[:12])
			}
			end()
			c := s.goesBySNAT(w, in, slices.Concat(there[:12], back[12:]), server, "translate_uncarried")
			s.goesOn(c, "translate_established")
			if all := s.other.liveFlows(); len(all) != 0 {
				s.Errorf("flows %+v on the other node, want none", all)
			}
		}
	}, lb.TCP, lb.UDP)
}
