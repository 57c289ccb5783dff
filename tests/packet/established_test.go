// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// web is a service with one backend, pod 2, whose port differs from the service's (requirement C17) where the protocol
// lets it.
func web(w world) []lb.Decision {
	return []lb.Decision{w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(w.target(), 2))})}
}

// target is the port of backends: SCTP's checksum covers the ports and cannot be mended in place.
func (w world) target() uint16 {
	if w.protocol == lb.SCTP {
		return 80
	}
	return 8080
}

// webPackets are the first packet of a connection to web, as the client sends it and as the backend sees it.
func webPackets(w world) (in, out packet) {
	in = w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
	return in, in.to(at(w.pod(2), w.target()))
}

// webOf publishes web with pod 2's backend in the given state, pod 3 beside it.
func webOf(w world, state lb.State, tiers ...[]netip.AddrPort) lb.Decision {
	return w.decide(service{
		name: "web", address: at(w.vip(10), 80), tiers: tiers, extra: w.tier(8080, 2),
		states: map[netip.AddrPort]lb.State{at(w.pod(2), 8080): state},
	})
}

func TestAConnectionIsTranslatedBothWays(t *testing.T) {
	runRows(t, []row{
		{name: "new flow, reply, established", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			reply := out.reply("SA", "answer")
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: toPod, in: reply, verdict: "translate_reply", out: became(reply.from(in.dst))},
				{hook: fromPod, in: in.with("A", ""), verdict: "translate_established", out: became(out.with("A", ""))},
				{hook: fromPod, in: in.with("PA", "odd"), verdict: "translate_established", out: became(out.with("PA", "odd"))},
				{hook: toPod, in: reply.with("PA", "more of it"), verdict: "translate_reply", out: became(reply.with("PA", "more of it").from(in.dst))},
				{hook: toPod, in: reply.with("FA", ""), verdict: "translate_reply", out: became(reply.with("FA", "").from(in.dst))},
				{hook: fromPod, in: in.with("FA", ""), verdict: "translate_established", out: became(out.with("FA", ""))},
				{hook: toPod, in: reply.with("A", ""), verdict: "translate_reply", out: became(reply.with("A", "").from(in.dst))},
			}
		}},
		{name: "a first packet sent twice", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: fromPod, in: in, verdict: "translate_established", out: &out},
			}
		}},
		{name: "packets that no service has pass", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{
				{hook: fromPod, in: in.to(at(w.outside(1), 80)), verdict: "pass_not_service"},
				{hook: toPod, in: in.from(at(w.outside(1), 80)).to(at(w.pod(1), 5)), verdict: "pass_not_service"},
				{hook: toPod, in: out, verdict: "pass_not_service"},                 // somebody reaches pod 2
				{hook: toPod, in: out.reply("SA", ""), verdict: "pass_not_service"}, // a reply without a flow
			}
		}},
		{name: "a reply from another backend is none", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			reply := out.reply("SA", "")
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: toPod, in: reply.from(at(w.pod(2), 8081)), verdict: "pass_not_service"},
				{hook: toPod, in: reply.from(at(w.pod(3), 8080)), verdict: "pass_not_service"},
				{hook: toPod, in: reply.to(at(w.pod(4), 41000)), verdict: "pass_not_service"},
				{hook: toPod, in: reply.to(at(w.pod(1), 41001)), verdict: "pass_not_service"},
			}
		}},
	})
}

func TestAConnectionWhoseFlowIsLostIsMadeAgain(t *testing.T) {
	many := func(w world) []lb.Decision {
		return []lb.Decision{w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2, 3, 4, 5, 6, 7))})}
	}
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(many(w)...)
		for port := range uint16(64) {
			in := w.packet(at(w.pod(1), 42000+port), at(w.vip(10), 80))
			_, out := r.pick(in)
			r.evict()
			verdict := map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol]
			step{hook: fromPod, in: in.with("PA", "go on"), verdict: verdict, out: became(out.with("PA", "go on"))}.play(r, 1)
			reply := out.reply("A", "")
			step{hook: toPod, in: reply, verdict: "translate_reply", out: became(reply.from(in.dst))}.play(r, 2)
			step{hook: fromPod, in: in.with("A", ""), verdict: "translate_established", out: became(out.with("A", ""))}.play(r, 3)
		}
	}, lb.TCP, lb.UDP)
}

func TestAFlowKeepsItsBackendWhileItMay(t *testing.T) {
	tcp, udp := worlds(lb.TCP), worlds(lb.UDP)
	start := func(w world) (step, packet, packet) {
		in, out := webPackets(w)
		return step{hook: fromPod, in: in, verdict: "translate_balance", out: &out}, in, out
	}
	other := func(w world, p packet) *packet { return became(p.to(at(w.pod(3), 8080))) }
	become := func(w world, state lb.State) step {
		return doing(func(r *rig) { r.publish(webOf(w, state, w.tier(8080, 3))) })
	}
	runRows(t, []row{
		{name: "draining keeps both protocols (A9)", services: web, steps: func(w world) []step {
			first, in, out := start(w)
			return []step{first, become(w, lb.Draining), {hook: fromPod, in: in.with("A", "x"), verdict: "translate_established", out: became(out.with("A", "x"))}}
		}},
		{name: "TCP stays when its backend is not ready any more (C5)", worlds: tcp, services: web, steps: func(w world) []step {
			first, in, out := start(w)
			reply := out.reply("A", "")
			return []step{
				first, become(w, lb.Quiet),
				{hook: fromPod, in: in.with("A", "x"), verdict: "translate_established", out: became(out.with("A", "x"))},
				{hook: toPod, in: reply, verdict: "translate_reply", out: became(reply.from(in.dst))},
			}
		}},
		{name: "a SYN leaves a backend that is not usable", worlds: tcp, services: web, steps: func(w world) []step {
			first, in, _ := start(w)
			return []step{
				first, become(w, lb.Quiet),
				{hook: fromPod, in: in, verdict: "translate_rehome", out: other(w, in)},
				{hook: fromPod, in: in.with("A", ""), verdict: "translate_established", out: other(w, in.with("A", ""))},
				{hook: toPod, in: other(w, in).reply("SA", ""), verdict: "translate_reply", out: became(other(w, in).reply("SA", "").from(in.dst))},
			}
		}},
		{name: "UDP is re-homed on the same port (C5)", worlds: udp, services: web, steps: func(w world) []step {
			first, in, out := start(w)
			return []step{
				first, become(w, lb.Quiet),
				{hook: fromPod, in: in, verdict: "translate_rehome", out: other(w, in)},
				{hook: fromPod, in: in, verdict: "translate_established", out: other(w, in)},
				{hook: toPod, in: other(w, in).reply("", "yes"), verdict: "translate_reply", out: became(in.reply("", "yes"))},
				{hook: toPod, in: out.reply("", "late"), verdict: "pass_not_service"},
			}
		}},
		{name: "UDP to a service without endpoints is refused", worlds: udp, services: web, steps: func(w world) []step {
			first, in, _ := start(w)
			return []step{first, doing(func(r *rig) {
				r.publish(w.decide(service{
					name: "web", address: at(w.vip(10), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints, extra: w.tier(8080, 2),
					states: map[netip.AddrPort]lb.State{at(w.pod(2), 8080): lb.Quiet},
				}))
				r.expect(fromPod, in, "reject_no_endpoints")
			})}
		}},
		{name: "UDP stays on a backend that is out of the tiers and serving", worlds: udp, services: web, steps: func(w world) []step {
			first, in, out := start(w)
			return []step{first, become(w, lb.Active), {hook: fromPod, in: in, verdict: "translate_established", out: &out}}
		}},
		{name: "TCP outlives its service", worlds: tcp, services: web, steps: func(w world) []step {
			first, in, out := start(w)
			return []step{
				first, doing(func(r *rig) { r.remove(lb.ServiceName{Namespace: "default", Name: "web"}) }),
				{hook: fromPod, in: in.with("A", "x"), verdict: "translate_established", out: became(out.with("A", "x"))},
				{hook: toPod, in: out.reply("A", ""), verdict: "translate_reply", out: became(in.reply("A", ""))},
			}
		}},
		{name: "recovery puts the backend back (C6)", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{
				become(w, lb.Quiet),
				{hook: fromPod, in: in, verdict: "translate_balance", out: other(w, in)},
				doing(func(r *rig) { r.publish(web(w)...); r.evict() }),
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
			}
		}},
	})
}

func TestTiersAreTriedInOrder(t *testing.T) {
	tiered := func(states map[int]lb.State) func(world) []lb.Decision {
		return func(w world) []lb.Decision {
			s := service{
				name: "web", address: at(w.vip(10), 80), states: map[netip.AddrPort]lb.State{},
				tiers: tiersOf(w.tier(8080, 2), w.tier(8080, 3), w.tier(8080, 4)),
			}
			for n, state := range states {
				s.states[at(w.pod(n), 8080)] = state
			}
			return []lb.Decision{w.decide(s)}
		}
	}
	goes := func(n int) func(w world) []step {
		return func(w world) []step {
			in, _ := webPackets(w)
			return []step{{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(at(w.pod(n), 8080)))}}
		}
	}
	quiet, draining := lb.Quiet, lb.Draining
	runRows(t, []row{
		{name: "the first serves", services: tiered(nil), steps: goes(2)},
		{name: "the second when the first cannot", services: tiered(map[int]lb.State{2: quiet}), steps: goes(3)},
		{name: "the third", services: tiered(map[int]lb.State{2: quiet, 3: quiet}), steps: goes(4)},
		{name: "draining is usable where a tier lists it (A8)", services: tiered(map[int]lb.State{2: draining}), steps: goes(2)},
		{name: "none", services: tiered(map[int]lb.State{2: quiet, 3: quiet, 4: quiet}), steps: func(w world) []step {
			in, _ := webPackets(w)
			return []step{{hook: fromPod, in: in, verdict: "drop_no_backend"}}
		}},
	})
}

func TestABackendLeftInATierIsPassedOverUnderItsOwnTier(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{
			name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2, 3, 4), w.tier(8080, 5)),
			states: map[netip.AddrPort]lb.State{at(w.pod(2), 8080): lb.Quiet},
		}))
		seen := map[netip.AddrPort]int{}
		for port := range uint16(200) {
			_, out := r.pick(w.packet(at(w.pod(1), 43000+port), at(w.vip(10), 80)))
			seen[out.dst]++
		}
		if seen[at(w.pod(2), 8080)] > 0 || seen[at(w.pod(3), 8080)] < 50 || seen[at(w.pod(4), 8080)] < 50 {
			t.Errorf("backends of new flows: %v; want pods 3 and 4, none to pod 2, which is not serving", seen)
		}
	}, lb.TCP)
}
