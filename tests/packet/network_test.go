// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// kinds are one service port under an address of each kind.
func (w world) kinds(affinity time.Duration, backends ...[]netip.AddrPort) []service {
	all := []service{
		{kind: lb.KindClusterIP, address: at(w.vip(10), 80)},
		{kind: lb.KindNodePort, address: at(w.node(), 30080)},
		{kind: lb.KindExternalIP, address: at(w.outside(10), 80)},
		{kind: lb.KindLoadBalancer, address: at(w.outside(11), 80)},
	}
	for i := range all {
		all[i].name, all[i].affinity, all[i].tiers = "web", affinity, backends
	}
	return all
}

func TestEveryKindOfFrontendIsTranslatedBothWays(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.kinds(0, w.tier(8080, 2))...))
		for n, s := range w.kinds(0) {
			in := w.packet(at(w.pod(1), 41000+uint16(n)), s.address)
			out := in.to(at(w.pod(2), 8080))
			step{hook: fromPod, in: in, verdict: "translate_balance", out: &out}.play(r, 1)
			talk{in, out}.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// Requirement C3: the datapath knows no range of NodePorts.
func TestANodePortMayBeAnyPort(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for _, port := range []uint16{1, 80, 9000, 29999, 30000, 32767, 32768, 60999, 61000, 65535} {
			r.publish(w.decide(service{name: "port-" + strconv.Itoa(int(port)), kind: lb.KindNodePort, address: at(w.node(), port), tiers: tiersOf(w.tier(8080, 2))}))
			in := w.packet(at(w.pod(1), port), at(w.node(), port))
			src := r.start(in).out.src // one client port towards one backend again and again would clash
			if src != in.src {
				t.Errorf("port %d: leaves from %s", port, src)
			}
			talk{in, in.to(at(w.pod(2), 8080))}.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// withoutSlowPath takes the slow path away until the test ends: what needs it is dropped then, as drop_no_program. For framed
// doors.
func (r *rig) withoutSlowPath() {
	r.Helper()
	for index, program := range map[bpf.NearlbProgram]*ebpf.Program{
		bpf.NearlbProgramPROGRAM_FROM_POD_SLOW: r.objects.FromPodSlow, bpf.NearlbProgramPROGRAM_TO_POD_SLOW: r.objects.ToPodSlow,
		bpf.NearlbProgramPROGRAM_FROM_NET_SLOW: r.objects.FromNetSlow, bpf.NearlbProgramPROGRAM_TO_NET_SLOW: r.objects.ToNetSlow,
	} {
		r.Cleanup(r.takeAway(index, program))
	}
}

// takeAway takes a program away from those that call it, until it is put back.
func (r *rig) takeAway(index bpf.NearlbProgram, program *ebpf.Program) (putBack func()) {
	r.Helper()
	check(r, r.objects.Programs.Delete(uint32(index)))
	return func() { check(r, r.objects.Programs.Put(uint32(index), program)) }
}

// The cost of a packet is that of the fast path for connections that are known, and for everything that is no service's:
// the node's own traffic, too, although NodePorts are at its address.
func TestTheFastPathTakesWhatItShould(t *testing.T) {
	for _, w := range through(framedOnly(), worlds(lb.TCP, lb.UDP)) {
		t.Run(w.String(), func(t *testing.T) {
			r := newRig(t, bpf.Options{}).at(w)
			r.publish(w.decide(w.kinds(0, w.tier(8080, 2))...))
			var talks []talk
			for n, s := range w.kinds(0) {
				talks = append(talks, r.start(w.packet(at(w.pod(1), 41000+uint16(n)), s.address)))
			}
			r.withoutSlowPath()
			for _, c := range talks {
				c.goOn(r, "translate_established", "translate_reply")
			}
			own := w.packet(at(w.outside(1), 41000), at(w.node(), 22))
			for _, in := range []packet{own, own.with("A", "x"), own.to(at(w.outside(2), 443)), own.to(at(w.pod(9), 8080))} {
				step{hook: fromPod, in: in, verdict: "pass_not_service"}.play(r, 1)
				step{hook: toPod, in: in.reply("A", "y"), verdict: "pass_not_service"}.play(r, 2)
			}
			for _, s := range w.kinds(0) {
				r.expect(fromPod, w.packet(at(w.pod(1), 42000), s.address), "drop_no_program") // what a new flow needs
			}
		})
	}
}

// A node's address is the node's: nothing but its NodePorts is answered, refused or dropped there.
func TestANodesOwnAddressStaysTheNodes(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{name: "web", kind: lb.KindNodePort, address: at(w.node(), 30080), tiers: tiersOf(w.tier(8080, 2))}))
		ping := packet{src: at(w.pod(1), 0), dst: at(w.node(), 0), protocol: w.icmp(), icmp: w.echo(true)}
		other := world{v6: w.v6, protocol: lb.Protocol(47), door: w.door}
		in := w.packet(at(w.pod(1), 41000), at(w.node(), 30081))
		for _, s := range []step{
			{hook: fromPod, in: ping, verdict: "pass_icmp"},
			{hook: fromPod, in: ping.cut(7, 8, 16), verdict: "pass_fragment"},
			{hook: fromPod, in: in, verdict: "pass_not_service"},
			{hook: fromPod, in: in.with("A", "x"), verdict: "pass_not_service"},
			{hook: fromPod, in: long(in).cut(8, 600, 1200), verdict: "pass_fragment"},
			{hook: fromPod, in: other.packet(at(w.pod(1), 0), at(w.node(), 0)), verdict: "pass_protocol"},
		} {
			s.play(r, 1)
		}
		wrong := world{v6: w.v6, protocol: map[lb.Protocol]lb.Protocol{lb.TCP: lb.UDP, lb.UDP: lb.TCP}[w.protocol], door: w.door}
		r.expect(fromPod, wrong.packet(at(w.pod(1), 41000), at(w.node(), 30080)), "pass_not_service")
		// A load balancer that hands out the node's address makes it a service's.
		r.publish(w.decide(service{name: "lb", kind: lb.KindLoadBalancer, address: at(w.node(), 443), tiers: tiersOf(w.tier(8443, 2))}))
		r.expect(fromPod, ping, "reject_echo")
		r.expect(fromPod, w.packet(at(w.pod(1), 41001), at(w.node(), 30080)), "translate_balance")
		r.remove(lb.ServiceName{Namespace: "default", Name: "lb"})
		r.expect(fromPod, ping, "pass_icmp")
		r.expect(fromPod, w.packet(at(w.pod(1), 41002), at(w.node(), 30080)), "translate_balance")
	}, lb.TCP, lb.UDP)
}

// Traffic policy Local speaks to clients off the node only: a pod's door keeps to the internal side.
func TestEachDoorObeysItsSide(t *testing.T) {
	none := func(action lb.Action, reason lb.Reason) func(*lb.Side) {
		return func(s *lb.Side) { s.Action, s.Reason, s.Tiers = action, reason, nil }
	}
	sided := func(external func(world) func(*lb.Side)) func(world) []lb.Decision {
		return func(w world) []lb.Decision {
			s := service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2)), extra: w.tier(8080, 3)}
			s.external = external(w)
			s.lists = map[netip.AddrPort][]lb.List{at(w.pod(3), 8080): {lb.ListLocal}}
			return []lb.Decision{w.decide(s)}
		}
	}
	to := func(n int, verdict string) func(world) []step {
		return func(w world) []step {
			in := w.packet(at(w.pod(1), 41000), at(w.outside(10), 80))
			if verdict != "translate_balance" {
				return []step{doing(func(r *rig) {
					r.expect(fromPod, in, verdict)
					if n := len(r.liveFlows()); n != 0 {
						r.Errorf("%s left %d flows", verdict, n)
					}
				})}
			}
			out := in.to(at(w.pod(n), 8080))
			return []step{{hook: fromPod, in: in, verdict: verdict, out: &out}}
		}
	}
	drop := func(world) func(*lb.Side) { return none(lb.Drop, lb.ReasonNoLocalEndpoints) }
	reject := func(world) func(*lb.Side) { return none(lb.Reject, lb.ReasonNoEndpoints) }
	local := func(w world) func(*lb.Side) {
		return func(s *lb.Side) {
			s.Reason, s.List = lb.ReasonLocal, lb.ListLocal
			s.Tiers = []lb.Tier{{Name: lb.TierNode, Backends: w.keys("", w.tier(8080, 3))}}
		}
	}
	runRows(t, []row{
		{name: "dropped off the node", doors: networkOnly(), services: sided(drop), steps: to(0, "drop_no_local_endpoints")},
		{name: "dropped off the node, balanced on it", doors: podsOnly(), services: sided(drop), steps: to(2, "translate_balance")},
		{name: "rejected off the node", doors: networkOnly(), services: sided(reject), steps: to(0, "reject_no_endpoints")},
		{name: "rejected off the node, balanced on it", doors: podsOnly(), services: sided(reject), steps: to(2, "translate_balance")},
		{name: "the local list off the node", doors: networkOnly(), services: sided(local), steps: to(3, "translate_balance")},
		{name: "the cluster list on it", doors: podsOnly(), services: sided(local), steps: to(2, "translate_balance")},
	})
}

// A terminating backend keeps its clients' SYNs while its list is in force at their door.
func TestADrainingBackendTakesNewConnectionsOfTheSideThatListsIt(t *testing.T) {
	listed := func(w world, list lb.List) lb.Decision {
		return w.decide(service{
			name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 3)), extra: w.tier(8080, 2),
			states: map[netip.AddrPort]lb.State{at(w.pod(2), 8080): lb.Draining},
			lists:  map[netip.AddrPort][]lb.List{at(w.pod(2), 8080): {list}},
			external: func(s *lb.Side) {
				s.List, s.Tiers = lb.ListLocal, []lb.Tier{{Name: lb.TierNode, Backends: w.keys("", w.tier(8080, 2))}}
			},
		})
	}
	steps := func(list lb.List, verdict string, n int) func(world) []step {
		return func(w world) []step {
			in := w.packet(at(w.pod(1), 41000), at(w.outside(10), 80))
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(at(w.pod(2), 8080)))},
				doing(func(r *rig) { r.publish(listed(w, list)) }),
				{hook: fromPod, in: in, verdict: verdict, out: became(in.to(at(w.pod(n), 8080)))},
			}
		}
	}
	before := func(w world) []lb.Decision {
		return []lb.Decision{w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2))})}
	}
	runRows(t, []row{
		{name: "in the local list, from off the node", worlds: worlds(lb.TCP), doors: networkOnly(), services: before, steps: steps(lb.ListLocal, "translate_established", 2)},
		{name: "in the local list, from the node", worlds: worlds(lb.TCP), doors: podsOnly(), services: before, steps: steps(lb.ListLocal, "translate_rehome", 3)},
		{name: "in the cluster list, from the node", worlds: worlds(lb.TCP), doors: podsOnly(), services: before, steps: steps(lb.ListCluster, "translate_established", 2)},
	})
}

// Affinity belongs to the service port, whatever address its client came by.
func TestAffinityIsSharedByTheKindsOfAServicePort(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.kinds(time.Hour, w.tier(8080, 2))...))
		r.expect(fromPod, w.packet(at(w.pod(1), 41000), at(w.vip(10), 80)), "translate_balance")
		r.publish(w.decide(w.kinds(time.Hour, w.tier(8080, 2, 3, 4, 5, 6, 7, 8, 9))...))
		for round := range uint16(5) {
			for n, s := range w.kinds(0) {
				in := w.packet(at(w.pod(1), 42000+round*10+uint16(n)), s.address)
				step{hook: fromPod, in: in, verdict: "translate_affinity", out: became(in.to(at(w.pod(2), 8080)))}.play(r, int(round))
			}
		}
	}, lb.TCP, lb.UDP)
}

// What policy Local may not use is not used for affinity's sake.
func TestAffinityKeepsToTheListOfTheSide(t *testing.T) {
	r := newRig(t, bpf.Options{})
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t)
			s := service{
				name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), affinity: time.Hour, tiers: tiersOf(w.tier(8080, 2)), extra: w.tier(8080, 3),
				lists: map[netip.AddrPort][]lb.List{at(w.pod(3), 8080): {lb.ListLocal}},
				external: func(s *lb.Side) {
					s.List, s.Tiers = lb.ListLocal, []lb.Tier{{Name: lb.TierNode, Backends: w.keys("", w.tier(8080, 3))}}
				},
			}
			outside := w
			outside.door = networkDoor
			r.publish(outside.decide(s))
			in := w.packet(at(w.pod(1), 41000), s.address)
			step{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(at(w.pod(2), 8080)))}.play(r, 1)
			r = r.at(outside)
			for n, verdict := range []string{"translate_balance", "translate_affinity"} {
				in.src = at(w.pod(1), 41001+uint16(n))
				step{hook: fromPod, in: in, verdict: verdict, out: became(in.to(at(w.pod(3), 8080)))}.play(r, 2+n)
			}
		})
	}
}

// A network device in promiscuous mode shows packets for others: they are theirs, and answering or translating them would double them.
func TestFramesForOthersPass(t *testing.T) {
	through := []door{networkDoor}
	runRows(t, []row{
		{name: "to a service", doors: through, services: web, steps: func(w world) []step {
			in, _ := webPackets(w)
			return []step{{hook: fromPod, in: in.back(), verdict: "pass_not_service"}}
		}},
		{name: "to a service without endpoints", doors: through, services: deny(lb.Reject, lb.ReasonNoEndpoints), steps: func(w world) []step {
			in, _ := webPackets(w)
			return []step{{hook: fromPod, in: in.back(), verdict: "pass_not_service"}}
		}},
		{name: "of a known connection", doors: through, services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: fromPod, in: in.with("A", "x").back(), verdict: "pass_not_service"},
			}
		}},
	})
}

// The address that stands for a pod which reaches itself means nothing to the network.
func TestTheHairpinAddressIsNobodysOffTheNode(t *testing.T) {
	runRows(t, []row{{name: "from a backend", doors: networkOnly(), services: web, steps: func(w world) []step {
		in, _ := webPackets(w)
		looped := in.to(at(w.loopback(), 41000))
		return []step{
			{hook: fromPod, in: looped, verdict: "pass_not_service"},
			{hook: fromPod, in: looped.with("A", "x"), verdict: "pass_not_service"},
		}
	}}})
}
