// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Requirement C15: a pod reaches itself through its Service.
func TestAPodReachesItselfThroughItsService(t *testing.T) {
	self := func(w world) []lb.Decision {
		return []lb.Decision{
			w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 1))}),
			w.decide(service{name: "two", address: at(w.vip(11), 80), tiers: tiersOf(w.tier(8080, 1))}),
		}
	}
	packets := func(w world) (in, looped, reply packet) {
		in = w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		looped = in.from(at(w.loopback(), 41000)).to(at(w.pod(1), 8080)).back()
		return in, looped, looped.reply("SA", "answer").back()
	}
	back := func(in, reply packet) *packet { return became(reply.from(in.dst).to(in.src).back()) }
	runRows(t, []row{
		{name: "both directions", services: self, doors: podsOnly(), steps: func(w world) []step {
			in, looped, reply := packets(w)
			return []step{
				{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped},
				{hook: toPod, in: looped, verdict: "pass_not_service"},
				{hook: fromPod, in: reply, verdict: "translate_hairpin", out: back(in, reply)},
				{hook: toPod, in: *back(in, reply), verdict: "pass_not_service"},
				{hook: fromPod, in: in.with("A", "x"), verdict: "translate_hairpin", out: became(looped.with("A", "x"))},
				{hook: fromPod, in: reply.with("FA", "y"), verdict: "translate_hairpin", out: back(in, reply.with("FA", "y"))},
			}
		}},
		{name: "one port towards two services that are the pod itself", services: self, doors: podsOnly(), steps: func(w world) []step {
			in, looped, reply := packets(w)
			second := in.to(at(w.vip(11), 80))
			return []step{
				{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped},
				doing(func(r *rig) {
					got := r.expect(fromPod, second, "translate_hairpin")
					src, dst := endpoints(r, got.frame)
					if src.Addr() != w.loopback() || src.Port() == 41000 || dst != looped.dst {
						r.Errorf("second flow: %s to %s; want another port of %s", src, dst, w.loopback())
					}
					step{hook: fromPod, in: reply.to(src), verdict: "translate_hairpin", out: became(reply.from(second.dst).to(second.src).back())}.play(r, 3)
				}),
				{hook: fromPod, in: reply, verdict: "translate_hairpin", out: back(in, reply)},
			}
		}},
		{name: "replies from another port pass", services: self, doors: podsOnly(), steps: func(w world) []step {
			in, looped, reply := packets(w)
			return []step{
				{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped},
				doing(func(r *rig) {
					got, _ := r.try(fromPod, reply.from(at(w.pod(1), 8081)).bytes())
					if class(got.verdict) == "translate" {
						r.Errorf("reply from a port that no flow has: %s", got.verdict)
					}
				}),
			}
		}},
	})
}

func TestALostHairpinFlowIsMadeAgain(t *testing.T) {
	runRows(t, []row{{name: "mid-connection", doors: podsOnly(), services: func(w world) []lb.Decision {
		return []lb.Decision{w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 1))})}
	}, steps: func(w world) []step {
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		looped := in.from(at(w.loopback(), 41000)).to(at(w.pod(1), 8080)).back()
		return []step{
			{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped},
			doing(func(r *rig) { r.evict() }),
			{hook: fromPod, in: in.with("A", "x"), verdict: "translate_hairpin", out: became(looped.with("A", "x"))},
		}
	}}})
}

// A pod that does not listen says so to itself: its error about the looped packet becomes one about the packet it sent.
func TestErrorsOfAPodThatReachesItself(t *testing.T) {
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 1))}))
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		looped := in.from(at(w.loopback(), 41000)).to(at(w.pod(1), 8080)).back()
		step{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped}.play(r, 1)
		for _, f := range failures() {
			for _, n := range quotations() {
				want := f.of(in, in.dst.Addr(), n).back()
				r.compareError(f.name, fromPod, f.of(looped, w.pod(1), n), []packet{want})
			}
		}
	}, lb.TCP, lb.UDP)
}
