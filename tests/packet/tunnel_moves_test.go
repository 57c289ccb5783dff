// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// threeNodes are those of the tunnel, and a third by which clients come.
func threeNodes() maps.Tunnel {
	t := tunnelNodes()
	t.Nodes["n3"] = maps.TunnelNode{Addresses: []netip.Addr{world{}.stranger(), world{v6: true}.stranger()}, Carries: true, Direct: true}
	return t
}

// A client comes to one server by two frontends from one port, which the server's node keeps apart: by another port, under which answers, errors
// and fragments find the connection, whichever node brings it.
func TestAServersNodeKeepsCarriedConnectionsFromOnePortApart(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.tell(threeNodes())
		s.serve(w, nil, 2)
		s.serve(w, func(o *service) { o.name, o.address = "other", at(w.outside(11), 80) }, 2)
		server := at(w.pod(2), 8080)
		one := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), server)
		in := w.packet(at(w.outside(1), 41000), at(w.outside(11), 80))
		got, err := s.other.run(fromPod, s.enters(fromPod, in.bytes(), w.forward(routed(in), server), "translate_balance"))
		check(s, err)
		src, dst := endpoints(s, got.frame)
		if src.Addr() != in.src.Addr() || src.Port() == in.src.Port() || dst != server || got.action != actUnspec {
			s.Fatalf("%s: left from %s to %s", got.verdict, src, dst)
		}
		two := talk{in, in.from(src).to(dst)}
		for range 2 {
			s.goesOnThrough(w, one)
			s.goesOnThrough(w, two)
		}
		for _, f := range failures() {
			sent := two.out.reply("PA", "text")
			about := f.of(sent.from(two.in.dst).to(two.in.src), w.router(), quotations()[0])
			there := s.enters(fromPod, about.bytes(), w.forward(routed(about), netip.AddrPort{}), "translate_icmp")
			s.other.goes(fromPod, there, routed(f.of(sent, two.in.src.Addr(), quotations()[0])), "translate_icmp", actUnspec)
		}
		for _, from := range []netip.Addr{w.stranger(), w.node1(), w.stranger()} {
			for _, c := range []talk{one, two} {
				d := w.forward(c.in.with("A", "moved").bytes(), server)
				d.from = at(from, 0x9000)
				s.other.goes(fromPod, d.frame(), c.out.with("A", "moved").bytes(), "translate_established", actUnspec)
				answer := c.out.reply("PA", "here")
				back := w.back(answer.from(c.in.dst).to(c.in.src).bytes())
				back.to = at(from, tunnelPort)
				s.other.enters(toPod, answer.bytes(), back, "translate_reply")
			}
		}
	}, lb.TCP, lb.UDP)
}

// A connection is answered where its last packet says, and how that says: past a node that has seen an answer, through one that has not, whichever
// they are.
func TestADirectConnectionIsAnsweredAsItsLastNodeSays(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		s.tell(threeNodes())
		c := s.talksDirect(w)
		for _, row := range []struct {
			from netip.Addr
			kind uint32
		}{{w.stranger(), kindForward}, {w.stranger(), kindDirect}, {w.node1(), kindDirect}, {w.node1(), kindForward}, {w.stranger(), kindDirect}} {
			d := w.forward(c.in.with("A", "moved").bytes(), c.out.dst)
			d.from, d.kind = at(row.from, 0x9000), row.kind
			s.other.goes(fromPod, d.frame(), c.out.with("A", "moved").bytes(), "translate_established", actUnspec)
			answer := c.out.reply("PA", "here")
			seen := answer.from(c.in.dst).to(c.in.src)
			if row.kind == kindDirect {
				s.other.goes(toPod, answer.bytes(), seen.bytes(), "translate_reply", actUnspec)
				continue
			}
			back := w.back(seen.bytes())
			back.to = at(row.from, tunnelPort)
			s.other.enters(toPod, answer.bytes(), back, "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// A SYN that comes again at once is a copy: with and without affinity it stays with its server, and in the entries that it made.
func TestACopyOfACarriedSYNStays(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		for _, affinity := range []time.Duration{0, time.Hour} {
			s.evict()
			s.other.evict()
			s.serve(w, func(o *service) { o.affinity = affinity }, 2, 3, 4)
			in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
			got, err := s.run(fromPod, in.bytes())
			check(s, err)
			server := w.named(got.frame)
			s.other.goes(fromPod, got.frame, routed(s.told(w, in).to(server)), "translate_balance", actUnspec)
			for range 2 {
				there := s.enters(fromPod, in.bytes(), s.first(w, in, server), "translate_established")
				s.other.goes(fromPod, there, routed(s.told(w, in).to(server)), "translate_established", actUnspec)
			}
			if one, other := s.liveFlows(), s.other.liveFlows(); len(one) != 1 || len(other) != 1 {
				s.Errorf("flows %+v and %+v, want one each", one, other)
			}
		}
	}, lb.TCP)
}

// The SYN of a carried connection goes to another server of the same node, as its first one does not answer in time: the answer that comes late is
// refused there, as the client may have no way to that server.
func TestALateAnswerToACarriedSYNIsRefused(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		s.serve(w, nil, 2, 3)
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		var servers []netip.AddrPort
		for _, verdict := range []string{"translate_balance", "translate_retry"} {
			got, err := s.run(fromPod, in.bytes())
			check(s, err)
			if server := w.named(got.frame); got.verdict == verdict {
				servers = append(servers, server)
				s.other.goes(fromPod, got.frame, routed(s.told(w, in).to(server)), "translate_balance", actUnspec)
			}
			s.waited(retryAfter)
		}
		if len(servers) != 2 || servers[0] == servers[1] {
			s.Fatalf("the SYN went to %v", servers)
		}
		late := in.to(servers[0]).reply("SA", "")
		got, err := s.other.run(toPod, late.bytes())
		check(s, err)
		answer, ok := parse(got.frame)
		if src, dst := endpoints(s, got.frame); got.verdict != "reject_late_answer" || !ok || got.action != actRedirect || src != late.dst || dst != late.src || answer.transport[13] != 4 {
			s.Errorf("%s, action %d, answer\n%s", got.verdict, got.action, show(got.frame))
		}
		s.answersBack(w, talk{in, in.to(servers[1])}, "SA", "")
		in = in.from(at(w.outside(2), 41000))
		got, err = s.run(fromPod, in.bytes())
		check(s, err)
		server := w.named(got.frame)
		s.other.goes(fromPod, got.frame, routed(s.told(w, in).to(server)), "translate_balance", actUnspec)
		direct := in.to(map[netip.AddrPort]netip.AddrPort{servers[0]: servers[1], servers[1]: servers[0]}[server]).reply("SA", "")
		s.other.goes(toPod, direct.bytes(), direct.bytes(), "pass_not_service", actUnspec)
	}, lb.TCP)
}

// What is behind a packet in its frame, where that is shorter than Ethernet allows, is nobody's business on the way.
func TestPaddingPassesTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "SA", "")
		s.goesOnThrough(w, c)
		padded := func(frame []byte) []byte { return slices.Concat(frame, []byte("padding")) }
		in, answer := c.in.with("A", "x"), c.out.reply("PA", "y")
		seen := answer.from(c.in.dst).to(c.in.src)
		for range 2 {
			got, err := s.run(fromPod, padded(in.bytes()))
			check(s, err)
			want := w.sourced(got.frame, w.forward(routed(in), c.out.dst))
			if got.verdict != "translate_established" || !bytes.Equal(got.frame[12:], padded(want)[12:]) {
				s.Errorf("%s\n%s", got.verdict, show(got.frame))
			}
			s.other.goes(fromPod, got.frame, padded(routed(c.out.with("A", "x"))), "translate_established", actUnspec)
			got, err = s.other.run(toPod, padded(answer.bytes()))
			check(s, err)
			s.goes(fromPod, got.frame, padded(routed(seen)), "translate_reply", actRedirect)
		}
	}, lb.TCP, lb.UDP)
}

// The edges of a Service's source ranges are the same on both nodes.
func TestSourceRangesHaveTheirEdgesBehindTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		bits := w.outside(0).BitLen()
		for allowed, prefix := range map[[2]int]netip.Prefix{
			{16, 31}: netip.PrefixFrom(w.outside(16), bits-4),
			{6, 7}:   netip.PrefixFrom(w.outside(6), bits-1),
			{9, 9}:   netip.PrefixFrom(w.outside(9), bits),
			{0, 255}: netip.PrefixFrom(w.outside(0), 0).Masked(),
		} {
			s.evict()
			s.other.evict()
			s.serve(w, func(o *service) { o.ranges = []netip.Prefix{prefix} }, 2)
			server := at(w.pod(2), 8080)
			for _, n := range []int{allowed[0] - 1, allowed[0], allowed[1], allowed[1] + 1} {
				if n < 1 || n > 254 {
					continue
				}
				in := w.packet(at(w.outside(n), 41000), at(w.outside(10), 80))
				if n >= allowed[0] && n <= allowed[1] {
					s.carried(w, in, server)
					s.evict()
					s.other.evict()
					continue
				}
				s.refuses(fromPod, in.bytes(), "drop_source_range")
				d := w.forward(in.bytes(), server)
				d.from = at(w.node1(), 0x9000)
				s.other.refuses(fromPod, d.frame(), "drop_source_range")
			}
		}
	}, lb.TCP, lb.UDP)
}

// What leaves the tunnel takes the shortcut to its server, and is counted as it came.
func TestWhatLeavesTheTunnelTakesTheShortcut(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		r := newRig(t, bpf.Options{Knobs: map[string]any{"tunnel_there": uint8(1), "shortcut_there": uint8(1)}})
		h := hall{site: newSite(t, r)}
		h.by, h.server = h.clients, addDevice(t, "server")
		for _, w := range worlds(lb.TCP, lb.UDP) {
			w.door = networkDoor
			sub := h
			sub.rig = h.rig.in(t).at(w)
			if w.protocol == lb.TCP {
				addNeighbour(t, h.nodes, w.node1())
			}
			sub.leads(w, 2, h.server)
			four, six := world{}, world{v6: true}
			check(t, sub.tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), Tunnel: tunnelNodes(), Shortcut: maps.ShortcutOn,
				Devices: map[uint32]maps.DeviceSources{uint32(h.nodes.Attrs().Index): {}, uint32(h.clients.Attrs().Index): {}},
				Node4:   four.node2(), Node6: six.node2(), NodePort4: four.node2(), NodePort6: six.node2()}))
			way := &nodePair{site: site{rig: &rig{TB: t}}, other: sub.site, way: lb.OffNodeCarry}
			way.serveOn(sub.site, w, nil, 2)
			in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
			for i, in := range []packet{in, in.with("A", "go")} {
				want := in.to(server)
				if i == 0 {
					want = w.clamped(want, false)
				}
				got, err := sub.run(fromPod, w.answeredBy(in, server))
				check(t, err)
				if got.action != actRedirect || !bytes.Equal(got.frame[12:], routed(want)[12:]) {
					t.Errorf("%s, packet %d: %s, action %d\nwant\n%s\ngot\n%s", w, i, got.verdict, got.action, show(routed(want)), show(got.frame))
				}
			}
		}
	})
}

// Nobody is answered at an address that no host has: what comes from there opens nothing that goes on, and is the host's, which drops it.
func TestNoHostsAddressOpensAConnectionThatGoesOn(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		sources := []string{"224.0.0.251", "239.255.255.255", "255.255.255.255", "127.0.0.1", "0.0.0.0", "0.1.2.3"}
		if w.v6 {
			sources = []string{"ff02::fb", "ff0e::1", "::1", "::"}
		}
		for _, s.way = range []lb.OffNode{lb.OffNodeSNAT, lb.OffNodeCarry} {
			s.serve(w, nil, 2)
			for _, source := range sources {
				in := w.packet(at(netip.MustParseAddr(source), 41000), at(w.outside(10), 80))
				if got, err := s.run(fromPod, in.bytes()); err != nil || got.action != actUnspec {
					s.Errorf("way %v, from %s: %s, action %d, %v", s.way, source, got.verdict, got.action, err)
				}
			}
			if all := s.liveFlows(); len(all) != 0 {
				s.Errorf("way %v: flows %+v", s.way, all)
			}
		}
	}, lb.TCP, lb.UDP)
}
