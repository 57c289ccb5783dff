// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// patient lets a heartbeat last for an hour: a test that is slow is no responder that is dead.
func patient() bpf.Options {
	return bpf.Options{Knobs: map[string]any{"responder_silence": uint64(3600e9)}}
}

// beat is what the agent tells of its responder.
func (r *rig) beat(alive bool) {
	var now unix.Timespec
	check(r, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	if r.tables.Beat(0); alive {
		r.tables.Beat(uint64(now.Nano()))
	}
}

// cluster DNS, pod 3, behind the node's responder.
func (w world) responder() netip.AddrPort { return at(w.node(), 10053) }

func (w world) names(tiers ...[]netip.AddrPort) lb.Decision {
	return w.decide(service{
		name: "kube-dns", address: at(w.vip(10), 53), tiers: append([][]netip.AddrPort{{w.responder()}}, tiers...),
		states: map[netip.AddrPort]lb.State{w.responder(): lb.Responder},
	})
}

func TestQuestionsGoToTheNodesResponderWhileItLives(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		r.publish(w.names(w.tier(53, 3)))
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 53))
		near, far := in.to(w.responder()), in.to(at(w.pod(3), 53))
		r.beat(true)
		step{hook: fromPod, in: in, verdict: "translate_balance", out: &near}.play(r, 1)
		step{hook: toPod, in: near.reply("SA", "answer"), verdict: "translate_reply", out: became(near.reply("SA", "answer").from(in.dst))}.play(r, 2)
		step{hook: fromPod, in: in.with("A", "again"), verdict: "translate_established", out: became(near.with("A", "again"))}.play(r, 3)
		r.beat(false)
		if w.protocol == lb.UDP { // each question is decided anew
			step{hook: fromPod, in: in.with("A", "dead"), verdict: "translate_rehome", out: became(far.with("A", "dead"))}.play(r, 4)
			step{hook: fromPod, in: in.with("A", "dead"), verdict: "translate_established", out: became(far.with("A", "dead"))}.play(r, 5)
		} else { // the kernel of a process that is gone resets what is open
			step{hook: fromPod, in: in.with("A", "dead"), verdict: "translate_established", out: became(near.with("A", "dead"))}.play(r, 4)
			step{hook: fromPod, in: in, verdict: "translate_rehome", out: &far}.play(r, 5)
		}
		other := w.packet(at(w.pod(1), 41001), at(w.vip(10), 53))
		step{hook: fromPod, in: other, verdict: "translate_balance", out: became(other.to(far.dst))}.play(r, 6)
		r.beat(true)
		third := w.packet(at(w.pod(1), 41002), at(w.vip(10), 53))
		step{hook: fromPod, in: third, verdict: "translate_balance", out: became(third.to(near.dst))}.play(r, 7)
	}, lb.TCP, lb.UDP)
}

func TestAResponderThatIsSilentForASecondIsDead(t *testing.T) {
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.names(w.tier(53, 3)))
		r.tables.Beat(1) // long ago
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 53))
		step{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(at(w.pod(3), 53)))}.play(r, 1)
	}, lb.TCP, lb.UDP)
}

func TestAResponderAnswersWithoutEndpointsOfTheClustersDNS(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		r.publish(w.names())
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 53))
		r.beat(false)
		step{hook: fromPod, in: in, verdict: "drop_no_backend"}.play(r, 1)
		r.beat(true)
		step{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(w.responder()))}.play(r, 2)
	}, lb.TCP, lb.UDP)
}

func TestTheNodesOwnQuestionsGoToItsResponderWhileItLives(t *testing.T) {
	o := patient()
	o.Trace = true
	r := newRig(t, o)
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t)
			check(r, r.tables.Configure(onNode(w)))
			r.publish(w.names(w.tier(53, 3)))
			r.beat(true)
			w.to(at(w.vip(10), 53), "translate_balance", w.responder()).play(r, w)
			r.beat(false)
			w.to(at(w.vip(10), 53), "translate_balance", at(w.pod(3), 53)).play(r, w)
		})
	}
}
