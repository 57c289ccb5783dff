// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// The server of a client off the node is on another node: the second entry goes with the first one, and the node's own host resets what
// the first server answers late.
func TestASYNThroughSNATThatNobodyAnswersGoesToAnotherBackend(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2, 3, 4))
		for n := range 5 {
			in := w.packet(at(w.outside(1), uint16(41000+n)), at(w.outside(10), 80))
			c := s.remote(in, "translate_balance")
			s.waited(0)
			if again := s.remote(in, "translate_established"); !again.same(c) {
				s.Errorf("a copy leaves as %s to %s", again.out.src, again.out.dst)
			}
			tried := map[netip.AddrPort]bool{c.out.dst: true}
			for range 2 {
				s.waited(retryAfter)
				late := c
				c = s.remote(in, "translate_retry")
				s.expectPlain(late.out.reply("SA", ""), "pass_unknown_reply")
				tried[c.out.dst] = true
			}
			s.waited(retryAfter)
			s.remote(in, "translate_established")
			if len(tried) != 3 {
				s.Errorf("tried: %v", tried)
			}
			s.goesOn(c, "translate_established")
			if flows := len(s.liveFlows()); flows != 2 {
				s.Errorf("%d entries", flows)
			}
			s.evict()
		}
	}, lb.TCP)
}

// One port is all that SNAT has: it goes along, and whoever comes to the first server gets it there.
func TestASYNThroughSNATLeavesItsPort(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.configure(maps.PortRange{First: 61000, Last: 61000})
		s.publish(far(w, 2))
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		c := s.remote(in, "translate_balance")
		s.publish(far(w, 2, 3))
		s.waited(retryAfter)
		moved := s.remote(in, "translate_retry")
		if moved.out.src != c.out.src || moved.out.dst != at(w.pod(3), 8080) {
			s.Errorf("left as %s to %s", moved.out.src, moved.out.dst)
		}
		s.publish(far(w, 2))
		heir := s.connect(w, 2)
		if !heir.same(c) {
			s.Errorf("the next client leaves as %s to %s", heir.out.src, heir.out.dst)
		}
		s.goesOn(heir, "translate_established")
		s.goesOn(moved, "translate_established")

		// both ports are taken: the SYN finds none towards the other server, and no client loses one
		s.publish(far(w, 3))
		s.expectPlain(w.packet(at(w.outside(3), 41000), at(w.outside(10), 80)), "drop_ports_full")
		s.goesOn(moved, "translate_established")
		s.configure(snatPorts())
	}, lb.TCP)
}

// A server here sees the client's own address, one on another node does not.
func TestASYNFromOffTheNodeGoesBetweenItsBackendsAndOthers(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		here, there := at(w.pod(2), 8080), at(w.pod(3), 8080)
		both := func(first, second netip.AddrPort) {
			d := w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf([]netip.AddrPort{first}, []netip.AddrPort{second}), remote: true})
			for i := range d.Backends {
				if d.Backends[i].Key.Address == here {
					d.Backends[i].Near = lb.TierNode
				}
			}
			s.publish(d)
		}
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		both(here, there)
		c := s.start(in)
		if !c.same(talk{in, in.to(here)}) {
			s.Errorf("left as %s to %s", c.out.src, c.out.dst)
		}
		s.waited(retryAfter)
		moved := s.remote(in, "translate_retry")
		if moved.out.src.Addr() != w.own() || moved.out.dst != there {
			s.Errorf("left as %s to %s", moved.out.src, moved.out.dst)
		}
		c.refuses(s.rig)
		s.goesOn(moved, "translate_established")

		s.evict()
		both(there, here)
		far := s.remote(in, "translate_balance")
		near := far.again(s.rig, retryAfter, "translate_retry")
		if !near.same(talk{in, in.to(here)}) {
			s.Errorf("left as %s to %s", near.out.src, near.out.dst)
		}
		s.expectPlain(far.out.reply("SA", ""), "pass_unknown_reply")
		near.connects(s.rig)
		if flows := len(s.liveFlows()); flows != 1 {
			s.Errorf("%d entries", flows)
		}
	}, lb.TCP)
}
