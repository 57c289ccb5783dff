// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// What leaves the tunnel is let in by the device that answers to its client leave by, and a flow that is older than the routes follows them.
func TestWhatLeavesTheTunnelFollowsTheRoutesToItsClient(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.other.by = s.nodes
		s.serve(w, nil, 2)
		c := talk{in: w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))}
		c.out = c.in.to(at(w.pod(2), 8080))
		goes := func(in, out packet, verdict string, told action) {
			s.Helper()
			s.other.goes(fromPod, s.enters(fromPod, in.bytes(), w.forward(routed(in), c.out.dst), verdict), routed(out), verdict, told)
		}
		goes(c.in, w.clamped(c.out, false), "translate_balance", actRedirect)
		s.answersBack(w, c, "SA", "")
		in, out := c.in.with("A", "go"), c.out.with("A", "go")
		goes(in, out, "translate_established", actRedirect)
		about := failures()[0].of(c.out.reply("PA", "text").from(c.in.dst).to(c.in.src), w.router(), quotations()[0])
		there := s.enters(fromPod, about.bytes(), w.forward(routed(about), netip.AddrPort{}), "translate_icmp")
		s.other.goes(fromPod, there, routed(failures()[0].of(c.out.reply("PA", "text"), c.in.src.Addr(), quotations()[0])), "translate_icmp", actRedirect)

		for _, told := range []action{actUnspec, actRedirect} {
			by := map[action]netlink.Link{actUnspec: s.nodes, actRedirect: s.clients}[told]
			way := &netlink.Route{LinkIndex: by.Attrs().Index, Dst: netlink.NewIPNet(c.in.src.Addr().AsSlice()), Scope: netlink.SCOPE_LINK}
			check(s, netlink.RouteReplace(way))
			s.other.editFlows(func(f *bpf.NearlbFlow) { f.Touched -= 2 * bpf.JiffiesPerSecond() })
			for range 2 {
				s.other.goes(fromPod, w.answeredBy(in, c.out.dst), out.bytes(), "translate_established", told)
			}
			check(s, netlink.RouteDel(way))
		}
	}, lb.TCP, lb.UDP)
}

// answeredBy is a datagram of n1 with a client's packet.
func (w world) answeredBy(in packet, server netip.AddrPort) []byte {
	d := w.forward(in.bytes(), server)
	d.from = at(w.node1(), 0x9000)
	return d.frame()
}

// The kernel itself lets what leaves the tunnel pass, with a strict reverse path filter, though clients are behind another device than the other
// nodes: behind one without an Ethernet header, and behind one that has the tunnel's address. Each packet is counted and translated once, though its
// backend's port be a Service's.
func TestWhatLeavesTheTunnelComesByTheDeviceThatAStrictReversePathFilterExpects(t *testing.T) {
	for name, kind := range map[string]struct{ layer3, alike bool }{"ethernet": {}, "one address": {alike: true}, "layer 3": {layer3: true}} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				s, nodes, clients, pods := newUplinks(t, kind.layer3)
				if kind.alike {
					check(t, netlink.LinkSetHardwareAddr(clients.link, nodes.link.Attrs().HardwareAddr))
				}
				for _, w := range worlds(lb.TCP, lb.UDP) {
					w.door = networkDoor
					sub := s
					sub.other.rig = s.other.rig.in(t).at(w)
					sub.rig = &rig{TB: t}
					sub.comesIn(w, nodes, pods)
					if t.Failed() {
						t.Fatalf("in world %s", w)
					}
				}
			})
		})
	}
}

// newUplinks is n2 with one device towards the other nodes, one towards clients and one of its pods.
func newUplinks(t *testing.T, layer3 bool) (s nodePair, nodes, clients, pods tap) {
	t.Helper()
	r := newRig(t, bpf.Options{Knobs: map[string]any{"tunnel_there": uint8(1)}})
	check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	for _, which := range []string{"all", "default"} {
		check(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+which+"/rp_filter", []byte("1"), 0))
	}
	nodes = addTap(t, "nodes", false, false, "172.31.0.1/24", "fd00:31::1/64")
	clients = addTap(t, "clients", layer3, false, "192.0.2.2/24", "2001:db8:2::2/64")
	pods = addTap(t, "pods", false, false)
	fromClients := r.objects.FromNet
	if layer3 {
		var err error
		fromClients, _, err = r.objects.Layer3()
		check(t, err)
	}
	attachIngress(t, nodes.link, r.objects.FromNet)
	attachIngress(t, clients.link, fromClients)
	s = nodePair{way: lb.OffNodeCarry, other: joinSite(t, site{r, clients.link, nodes.link})}
	four, six := world{}, world{v6: true}
	check(t, r.tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), Tunnel: tunnelNodes(),
		Devices: map[uint32]maps.DeviceSources{uint32(nodes.link.Attrs().Index): {}, uint32(clients.link.Attrs().Index): {}},
		Node4:   four.node2(), Node6: six.node2(), NodePort4: four.node2(), NodePort6: six.node2()}))
	for _, w := range worlds(lb.TCP) {
		addNeighbour(t, nodes.link, w.node1())
		addNeighbour(t, pods.link, w.pod(2))
		check(t, netlink.RouteReplace(&netlink.Route{LinkIndex: pods.link.Attrs().Index, Dst: &net.IPNet{IP: w.pod(2).AsSlice(), Mask: net.CIDRMask(w.pod(2).BitLen(), w.pod(2).BitLen())}, Scope: netlink.SCOPE_LINK}))
	}
	return s, nodes, clients, pods
}

// comesIn sends packets of a client through the tunnel, and wants them at the pod's device.
func (s nodePair) comesIn(w world, nodes, pods tap) {
	s.Helper()
	server := at(w.pod(2), 8080)
	s.serveOn(s.other, w, nil, 2)
	s.other.publish(w.decide(service{name: "trap", kind: lb.KindExternalIP, address: server, tiers: tiersOf(w.tier(8080, 3))}))
	in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
	for i, text := range []string{"", "go", "on"} {
		if i > 0 {
			in = in.with("A", text)
		}
		out := in.to(server)
		if i == 0 {
			out = w.clamped(out, false)
		}
		before := s.other.total()
		nodes.send(s, offload{}, w.answeredBy(in, server))
		_, got := pods.receive(s)
		want := slices.Concat(podMAC, pods.mac(), routed(out)[12:])
		if !bytes.Equal(got, want) {
			s.Errorf("packet %d: want\n%s\ngot\n%s", i, show(want), show(got))
		}
		if n := s.other.total() - before; n != 1 {
			s.Errorf("packet %d: counted %d times: %v", i, n, s.other.counters())
		}
	}
}

// Answers enter the tunnel wherever the routes to their client lead: by a device without an Ethernet header as well, whole, with a checksum that the
// device was to make, or to be cut.
func TestAnAnswerEntersTheTunnelByWhateverDeviceLeadsToItsClient(t *testing.T) {
	for name, layer3 := range map[string]bool{"ethernet": false, "layer 3": true} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				s, nodes, clients, pods := newUplinks(t, layer3)
				toClients := s.other.objects.ToNet
				if layer3 {
					var err error
					_, toClients, err = s.other.objects.Layer3()
					check(t, err)
				}
				privileged.Attach(t, clients.link.Attrs().Index, ebpf.AttachTCXEgress, toClients)
				for _, w := range worlds(lb.TCP, lb.UDP) {
					w.door = networkDoor
					sub := s
					sub.other.rig = s.other.rig.in(t).at(w)
					sub.rig = &rig{TB: t}
					if sub.answersBy(w, nodes, pods); t.Failed() {
						t.Fatalf("in world %s", w)
					}
				}
			})
		})
	}
}

// answersBy opens a connection through the tunnel, and wants the pod's answers at the device towards the other nodes.
func (s nodePair) answersBy(w world, nodes, pods tap) {
	s.Helper()
	server := at(w.pod(2), 8080)
	s.serveOn(s.other, w, nil, 2)
	in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
	nodes.send(s, offload{}, w.answeredBy(in, server))
	pods.receive(s)
	answer := in.to(server).reply("A", "an answer")
	for name, shape := range wireShapes(s, w) {
		o, sent := shape(w, answer)
		pods.send(s, o, sent)
		whole, _ := parse(sent)
		header := map[lb.Protocol]int{lb.TCP: 20, lb.UDP: 8}[w.protocol]
		want, got := whole.transport[header:], []byte(nil)
		for len(got) < len(want) {
			_, frame := nodes.receive(s)
			front := 14 + map[bool]int{false: 36, true: 56}[w.v6]
			inner := slices.Concat(frame[:14], frame[front:])
			if src, dst := endpoints(s, inner); src != in.dst || dst != in.src || len(frame) > 1514 {
				s.Errorf("%s: %d bytes from %s to %s", name, len(frame), src, dst)
			}
			if err := checkChecksums(inner); err != nil {
				s.Fatalf("%s: %v\n%s", name, err, show(frame))
			}
			d := w.back(inner)
			d.from = netip.AddrPortFrom(d.from.Addr(), binary.BigEndian.Uint16(frame[front-16:]))
			if want := slices.Concat(podMAC, nodes.mac(), d.frame()[12:]); o.SegmentSize == 0 && !bytes.Equal(frame, want) {
				s.Errorf("%s: want\n%s\ngot\n%s", name, show(want), show(frame))
			}
			p, _ := parse(inner)
			got = append(got, p.transport[header:]...)
		}
		if !bytes.Equal(want, got) {
			s.Errorf("%s: the data changed on its way", name)
		}
	}
}
