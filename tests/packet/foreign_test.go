// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// A masquerade of the CNI's takes ports of SNAT now and then (fully-random: 1024 to 65535). Answers to it look like answers to a
// connection of SNAT that was forgotten, from the SYN-ACK on: whatever has no flow passes, also where connection tracking cannot be
// asked, or knows nothing.
func TestRepliesThatNoFlowHasPass(t *testing.T) {
	for name, knobs := range map[string]map[string]any{"asked": nil, "not to be asked": {"conntrack_lookup": uint8(0)}} {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{Knobs: knobs}, func(s site, w world) {
				s.publish(far(w, 2))
				for _, yield := range []maps.Yield{maps.YieldNothing, maps.YieldOld, maps.YieldOld | maps.YieldNew} {
					check(s, s.tables.Configure(s.withYield(yield)))
					for _, flags := range []string{"SA", "A", "PA", "FA", "R", "RA"} {
						reply := w.packet(at(w.pod(2), 8080), at(w.own(), snatPorts().Last)).with(flags, "answer")
						s.expectPlain(reply, "pass_unknown_reply")
						for _, change := range changes(w) {
							s.expectPlain(change(reply), "pass_unknown_reply")
						}
						parts := pieces(long(reply), 9)
						s.expectPlain(parts[0], "pass_unknown_reply")
						s.expectPlain(parts[1], "pass_fragment")
						s.expectPlain(parts[2], "pass_fragment")
					}
				}
				s.configure(snatPorts())
			}, lb.TCP, lb.UDP, lb.SCTP)
		})
	}
}

// ownKinds is one service port under an address of the node itself, as external IP and as load balancer IP.
func (w world) ownKinds() []service {
	return []service{
		{name: "external", kind: lb.KindExternalIP, address: at(w.node(), 80), onHost: true, tiers: tiersOf(w.tier(8080, 2))},
		{name: "balancer", kind: lb.KindLoadBalancer, address: at(w.node(), 81), onHost: true, tiers: tiersOf(w.tier(8081, 2))},
	}
}

// An address of the node that Services have as well (k3s gives them the nodes' own) stays the node's but for their ports: tunnels
// to it, its file system and its answers from name servers come in fragments.
func TestANodesAddressThatServicesHaveTooStaysTheNodes(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for _, s := range w.ownKinds() {
			r.publish(w.decide(s))
		}
		for n, s := range w.ownKinds() {
			in := w.packet(at(w.pod(1), 41000+uint16(n)), s.address)
			out := in.to(s.tiers[0][0])
			step{hook: fromPod, in: in, verdict: "translate_balance", out: &out}.play(r, 1)
			talk{in, out}.goOn(r, "translate_established", "translate_reply")
			ins, outs := pieces(long(in.with("A", "")), 6), pieces(long(out.with("A", "")), 6)
			step{hook: fromPod, in: ins[0], verdict: "translate_established", out: &outs[0]}.play(r, 2)
			step{hook: fromPod, in: ins[1], verdict: "translate_fragment", out: &outs[1]}.play(r, 3)
		}
		ping := packet{src: at(w.pod(1), 0), dst: at(w.node(), 0), protocol: w.icmp(), icmp: w.echo(true)}
		other := w.packet(at(w.pod(1), 41000), at(w.node(), 8472))
		for _, s := range []step{
			{hook: fromPod, in: ping, verdict: "pass_icmp"},
			{hook: fromPod, in: ping.cut(7, 8, 16), verdict: "pass_fragment"},
			{hook: fromPod, in: other, verdict: "pass_not_service"},
			{hook: fromPod, in: pieces(long(other), 8)[0], verdict: "pass_not_service"},
			{hook: fromPod, in: pieces(long(other), 8)[1], verdict: "pass_fragment"},
			{hook: fromPod, in: pieces(long(other), 8)[2], verdict: "pass_fragment"},
		} {
			s.play(r, 1)
		}
	}, lb.TCP, lb.UDP)
}

// The same where the address is another node's, which this one cannot tell from a load balancer's: nothing but its ports is taken.
func TestFragmentsToABalancersAddressPassWhereNoPortIsItsOwn(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for _, kind := range []lb.Kind{lb.KindExternalIP, lb.KindLoadBalancer} {
			s := service{name: "web", kind: kind, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2))}
			r.publish(w.decide(s))
			other := w.packet(at(w.pod(1), 41000), at(w.outside(10), 8472))
			for _, p := range pieces(long(other), 8) {
				r.expectPass(fromPod, p)
			}
			in := w.packet(at(w.pod(1), 41001), s.address)
			out := in.to(at(w.pod(2), 8080))
			ins, outs := pieces(long(in), 9), pieces(long(out), 9)
			for i, verdict := range []string{"translate_balance", "translate_fragment", "translate_fragment"} {
				step{hook: fromPod, in: ins[i], verdict: verdict, out: &outs[i]}.play(r, i+1)
			}
			r.expect(fromPod, pieces(long(in), 10)[1], "pass_fragment") // before its first: nobody can say whose it is
			r.remove(lb.ServiceName{Namespace: "default", Name: "web"})
			r.forget()
		}
	}, lb.TCP, lb.UDP)
}

// Packets of the node itself and of tunnels cost no more than the fast path, whoever else has the address.
func TestTheFastPathTakesWhatIsTheNodesOwn(t *testing.T) {
	for _, w := range through(framedOnly(), worlds(lb.TCP, lb.UDP)) {
		t.Run(w.String(), func(t *testing.T) {
			r := newRig(t, bpf.Options{}).at(w)
			for _, s := range w.ownKinds() {
				r.publish(w.decide(s))
			}
			r.withoutSlowPath()
			own := w.packet(at(w.outside(1), 41000), at(w.node(), 22))
			for _, in := range []packet{own, own.with("A", "x")} {
				step{hook: fromPod, in: in, verdict: "pass_not_service"}.play(r, 1)
			}
			r.expect(fromPod, w.packet(at(w.pod(1), 42000), at(w.node(), 80)), "drop_no_program") // what a new flow needs
		})
	}
}

// Tunnels between nodes (IPIP, GRE), ESP and whatever else has no ports is looked at once, at every door.
func TestTheFastPathTakesProtocolsWithoutPorts(t *testing.T) {
	for _, w := range through(framedOnly(), worlds(4, 41, 47, 50, 89, 112, 137)) {
		t.Run(w.String(), func(t *testing.T) {
			r := newRig(t, bpf.Options{}).at(w)
			r.publish(web(world{v6: w.v6, protocol: lb.TCP, door: w.door})...)
			r.withoutSlowPath()
			p := w.packet(at(w.outside(1), 0), at(w.node(), 0))
			p.payload = make([]byte, 600)
			for _, hook := range []string{fromPod, toPod} {
				step{hook: hook, in: p, verdict: "pass_protocol"}.play(r, 1)
				step{hook: hook, in: p.reply("", "back"), verdict: "pass_protocol"}.play(r, 2)
			}
			r.expect(fromPod, p.to(at(w.vip(10), 0)), "drop_no_program") // a Service's address, which refuses it
			r.expect(fromPod, p.to(at(w.vip(99), 0)), "drop_no_program") // in a range of theirs
		})
	}
}
