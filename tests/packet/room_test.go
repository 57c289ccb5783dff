// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// takeRest gives all free entries of the table to answered flows of many clients, none of which has an eighth of a block: their last packet
// was so long ago.
func (r *rig) takeRest(w world, idle time.Duration) {
	r.Helper()
	n := 0
	touched := bpf.Jiffies() - uint32(idle/time.Second)*bpf.JiffiesPerSecond()
	for i := range r.objects.Flows.MaxEntries() {
		var set bpf.NearlbFlowSet
		var tags bpf.NearlbFlowBlock
		block, of := i/uint32(len(tags.Sets)), i%uint32(len(tags.Sets))
		check(r, r.objects.Flows.Lookup(i, &set))
		check(r, r.objects.FlowTags.Lookup(block, &tags))
		for way := range set.Ways {
			if f := &set.Ways[way]; bpf.NearlbFlowPhase(f.Word)&bpf.NearlbFlowPhaseFLOW_PHASE_MASK == bpf.NearlbFlowPhaseFLOW_FREE {
				n++
				*f = bpf.NearlbFlow{
					Word: uint32(bpf.NearlbFlowPhaseFLOW_LIVE), Touched: touched, Protocol: uint8(w.protocol), KeyPort: uint16(n), TwinPort: uint16(n),
					Client: bpf.NearlbAddress{Bytes: w.pod(100 + n%32).As16()},
					Seen:   uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED),
				}
				tags.Sets[of] |= 0xff << (8 * way)
			}
		}
		check(r, r.objects.Flows.Put(i, &set))
		check(r, r.objects.FlowTags.Put(block, &tags))
	}
}

// The second entry of a connection that goes on was evicted, and its blocks are full: it takes the place of an idle one, or the packet waits
// for that. Its server knows its port.
func TestAConnectionThatLosesItsSecondEntryKeepsItsPortInAFullTable(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachDoor(t, withSets(8), func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		first, c := r.start(in), r.start(in.to(at(w.vip(11), 80)))
		if c.out.src == c.in.src {
			t.Fatal("the second connection leaves from its own port")
		}
		for range 2 {
			first.goOn(r, "translate_established", "translate_reply")
			c.goOn(r, "translate_established", "translate_reply")
		}
		r.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&alias != 0 {
				f.Word &^= 3
			}
		})
		r.takeRest(w, 0)
		r.expect(fromPod, c.in.with("A", "go"), "drop_flows_full")
		r.editFlows(func(f *bpf.NearlbFlow) {
			if f.Client != (bpf.NearlbAddress{Bytes: c.in.src.Addr().As16()}) {
				f.Touched -= 120 * bpf.JiffiesPerSecond()
			}
		})
		c.goOn(r, "translate_recover", "translate_reply")
		c.goOn(r, "translate_established", "translate_reply")
		first.goOn(r, "translate_established", "translate_reply")
	}, lb.TCP)
}

// Where SNAT has few ports, their blocks are all that the second entries have: idle connections make room there.
func TestSNATWithFewPortsFindsRoomAmongIdleConnections(t *testing.T) {
	for _, n := range []uint16{1, 4} {
		crossWorlds(t, 8, ports(n), func(t *testing.T, r *rig, w world) {
			r.publish(crossServices(w, 1)...)
			r.takeRest(w, 5*time.Minute)
			r.crosses(w, 1, 0)
		})
	}
}

// One port of SNAT serves towards so many servers that its second entries have nearly half of the table.
func TestSNATFromOnePortLeavesNoRoomToOthers(t *testing.T) {
	const servers = 30
	crossWorlds(t, 8, ports(1), func(t *testing.T, r *rig, w world) {
		for i := range servers {
			r.publish(w.decide(service{
				name: fmt.Sprint("s", i), kind: lb.KindLoadBalancer, address: at(w.outside(10+i), 80), tiers: tiersOf(w.tier(8080, 2+i)), remote: true,
			}))
		}
		for i := range servers {
			r.crosses(w, 1+i%5, i)
		}
	})
}

// crosses opens a connection through SNAT, and has it answered.
func (r *rig) crosses(w world, client, service int) {
	r.Helper()
	in := w.packet(at(w.outside(client), uint16(41000+service)), at(w.outside(10+service), 80))
	src, err := r.cross(in)
	if err != nil {
		r.Fatal(err)
	}
	if !src.IsValid() || src == in.src {
		r.Fatalf("connection %d of a client off the node left as %v", service, src)
	}
}

// Clients off the node may have any number of addresses: they take from a client on it only what it has beyond a quarter of a block.
func TestClientsOffTheNodeLeaveOneOnItAQuarterOfTheTable(t *testing.T) {
	const sets = 8
	forEachWorld(t, withSets(sets), func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2))}),
			w.decide(service{name: "open", kind: lb.KindLoadBalancer, address: at(w.outside(200), 80), tiers: tiersOf(w.tier(8080, 3))}))
		for i := range sets * 8 {
			r.established(w.packet(at(w.pod(1), uint16(1024+i)), at(w.vip(10), 80)))
		}
		pod := bpf.NearlbAddress{Bytes: w.pod(1).As16()}
		has := func() (n int) {
			for _, f := range r.liveFlows() {
				if f.Client == pod {
					n++
				}
			}
			return n
		}
		if n := has(); n != sets*8 {
			t.Fatalf("the pod has %d of %d entries", n, sets*8)
		}
		connected := 0
		for i := range 120 { // each from an address of its own
			in := w.packet(at(w.outside(1+i), 41000), at(w.outside(200), 80))
			got, err := r.quick(fromNet, in.with("S", ""))
			check(r, err)
			if got.action == actShot {
				continue
			}
			connected++
			r.editFlows(func(f *bpf.NearlbFlow) {
				f.Seen |= uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)
			})
		}
		if n := has(); n != sets*8/4-1 || connected != sets*8-n {
			t.Errorf("the pod has %d of %d entries left, %d clients off the node connected", n, sets*8, connected)
		}
	}, lb.TCP)
}
