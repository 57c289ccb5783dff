// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// changed is a Service whose backends are pods of another node, with a change.
func changed(w world, change func(*lb.Decision), pods ...int) lb.Decision {
	d := far(w, pods...)
	if change != nil {
		change(&d)
	}
	return d
}

// opensAtXDP wants XDP to make the flow of a packet, as from_net makes it (rig.run), and tells the connection.
func (s site) opensAtXDP(in packet, verdict string) talk {
	s.Helper()
	before := *s.made
	c := s.remote(in, verdict)
	if *s.made != before+1 {
		s.Errorf("%s to %s: XDP left a connection to TC", in.src, in.dst)
	}
	return c
}

// Connections through SNAT are opened at XDP: each has the backend, the port and the entries that from_net would give it, however its Service
// balances, and goes on there.
func TestAConnectionThroughSNATOpensAtXDP(t *testing.T) {
	for name, change := range map[string]func(*lb.Decision){
		"by Maglev":         nil,
		"with affinity":     func(d *lb.Decision) { d.Frontends[0].Affinity = time.Hour },
		"by turns":          func(d *lb.Decision) { d.Balancing = lb.BalanceRoundRobin },
		"least connections": func(d *lb.Decision) { d.Balancing = lb.BalanceLeastConnections },
	} {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{}, func(s site, w world) {
				onOneProcessor(s)
				s.publish(changed(w, change, 2, 3, 4))
				for n := range 12 {
					in := w.packet(at(w.outside(1+n%6), uint16(41000+n)), at(w.outside(10), 80))
					verdict := "translate_balance"
					if name == "with affinity" && n >= 6 {
						verdict = "translate_affinity"
					}
					s.takesBoth(s.opensAtXDP(in, verdict).goneOn(s))
				}
			}, lb.TCP, lb.UDP)
		})
	}
}

// goneOn is the connection after its first packets both ways, which TC sees.
func (c talk) goneOn(s site) talk {
	s.Helper()
	s.goesOn(c, "translate_established")
	return c
}

// Through the tunnel as well.
func TestAConnectionThroughTheTunnelOpensAtXDP(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		onOneProcessor(s)
		for _, cookie := range []uint64{0, newCookie} {
			s.evict()
			s.other.evict()
			s.tell(tunnelNodes())
			if w.cookie = cookie; cookie != 0 {
				s.tell(keyed(cookie, cookie))
			}
			before := *s.made
			s.takesBothThrough(w, s.opensThrough(w))
			if *s.made != before+1 {
				t.Errorf("%s: XDP left a connection to TC", w)
			}
		}
	}, lb.TCP, lb.UDP)
}

// And to a node that answers the client itself.
func TestAConnectionThroughTheTunnelToANodeThatAnswersTheClientOpensAtXDP(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		onOneProcessor(s)
		before := *s.made
		s.talksDirect(w)
		if *s.made != before+1 {
			t.Errorf("%s: XDP left a connection to TC", w)
		}
	}, lb.TCP, lb.UDP)
}

// What XDP does not open passes, and leaves nothing.
func TestXDPLeavesConnectionsThatItDoesNotOpen(t *testing.T) {
	for name, row := range map[string]struct {
		service func(world) lb.Decision // nil: one with a backend on another node
		change  func(site, world)
		only    lb.Protocol // zero: each
	}{
		"to a backend of this node": {service: func(w world) lb.Decision {
			return w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2))})
		}},
		"whose SYN is kept": {only: lb.TCP, service: func(w world) lb.Decision {
			return changed(w, func(d *lb.Decision) { d.RetryRefused = true }, 2)
		}},
		"whose datagrams are counted": {only: lb.UDP, service: func(w world) lb.Decision {
			return changed(w, func(d *lb.Decision) { d.UDPRetry = 3 }, 2)
		}},
		"while the node drains":           {change: func(s site, _ world) { s.edit(func(x *bpf.NearlbSettings) { x.Draining = 1 }) }},
		"that may be of the kernel's NAT": {change: func(s site, _ world) { s.edit(func(x *bpf.NearlbSettings) { x.Yield = 2 }) }},
		"to a backend that it is to try": {change: func(s site, w world) {
			s.forgetHealth()
			s.begins(at(w.pod(2), 8080))
			s.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) { h.Until = 1 }) // long over
		}},
		"while flows are elsewhere": {change: func(s site, _ world) {
			check(s, s.objects.FlowSpills.Put(uint32(0), &bpf.NearlbFlowSpill{Spilled: 1}))
		}},
		"to a neighbour that is not known": {change: func(s site, w world) {
			check(s, netlink.NeighDel(&netlink.Neigh{LinkIndex: s.nodes.Attrs().Index, IP: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()}))
		}},
		"by a device that sends nothing for others": {change: func(s site, _ world) { s.serveXDP() }},
	} {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{}, func(s site, w world) {
				onOneProcessor(s)
				if row.only != 0 && row.only != w.protocol {
					return
				}
				d := changed(w, nil, 2)
				if row.service != nil {
					d = row.service(w)
				}
				s.publish(d)
				if row.change != nil {
					row.change(s, w)
				}
				in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
				for range 2 { // the first one might be that of the neighbour
					s.passesXDP(name, in.bytes())
				}
				if flows := s.liveFlows(); len(flows) > 0 {
					t.Errorf("%s: it left %v", w, flows)
				}
				s.serveXDP(s.clients, s.nodes)
				s.edit(func(x *bpf.NearlbSettings) { x.Draining, x.Yield = 0, 0 })
				check(s, s.objects.FlowSpills.Put(uint32(0), &bpf.NearlbFlowSpill{}))
				s.forgetHealth()
				if name == "to a neighbour that is not known" {
					addNeighbour(s, s.nodes, w.addr("172.31.0.", "fd00:31::", 2))
				}
			}, lb.TCP, lb.UDP)
		})
	}
}

// A SYN of a connection that is there, and one that finds no port, are TC's.
func TestXDPLeavesASYNThatOpensNothingNew(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		onOneProcessor(s)
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		for range 2 {
			s.passesXDP("a SYN of a live connection", c.in.bytes())
		}
		for n := range snatPorts().Count() - 1 {
			s.remote(w.packet(at(w.outside(2), 42000+n), c.in.dst), "translate_balance")
		}
		flows := len(s.liveFlows())
		for range 2 {
			s.passesXDP("no port is left", w.packet(at(w.outside(3), 43000), c.in.dst).bytes())
		}
		if now := len(s.liveFlows()); now != flows {
			t.Errorf("%s: %d entries, %d before", w, now, flows)
		}
	}, lb.TCP)
}

// So that the kernel asks whether a silent neighbour is still there, the first connection to it in eight seconds goes by TC.
func TestXDPLeavesAConnectionInEightSecondsToEachNeighbourToTC(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		onOneProcessor(s)
		s.publish(far(w, 2))
		port := uint16(41000)
		next := func() []byte {
			port++
			return w.packet(at(w.outside(1), port), at(w.outside(10), 80)).bytes()
		}
		forget := func() {
			for i := range s.objects.XdpNeighbours.MaxEntries() {
				check(s, s.objects.XdpNeighbours.Put(i, make([]bpf.NearlbXdpNeighbour, ebpf.MustPossibleCPU())))
			}
		}
		forget()
		s.passesXDP("the first", next())
		taken := func() {
			s.counted = s.counters()
			if got, err := s.runXDP(next()); err != nil || got.action != xdpRedirect {
				t.Errorf("%s: action %d, %v, want it to leave", w, got.action, err)
			}
		}
		taken()
		taken()
		var all []bpf.NearlbXdpNeighbour
		for i := range s.objects.XdpNeighbours.MaxEntries() {
			check(s, s.objects.XdpNeighbours.Lookup(i, &all))
			for j := range all {
				all[j].When -= 8 * bpf.JiffiesPerSecond()
			}
			check(s, s.objects.XdpNeighbours.Put(i, all))
		}
		s.passesXDP("the first after eight seconds", next())
		taken()
	}, lb.TCP, lb.UDP)
}
