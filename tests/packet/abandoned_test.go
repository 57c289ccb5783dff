// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// abandon makes every entry one that was claimed so long ago, and not published since.
func (r *rig) abandon(ago time.Duration) {
	r.Helper()
	r.editEntries(func(f *bpf.NearlbFlow) {
		f.Word = f.Word&^uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK) | uint32(bpf.NearlbFlowPhaseFLOW_CLAIMED)
		f.Touched = bpf.Jiffies() - uint32(ago/time.Second)*bpf.JiffiesPerSecond()
	}, bpf.NearlbFlowPhaseFLOW_LIVE, bpf.NearlbFlowPhaseFLOW_CLAIMED)
}

// findsClaimed has a packet find its entry claimed just now. A machine that stood still for seconds in between tries again.
func (r *rig) findsClaimed(in packet) {
	r.Helper()
	for {
		began := time.Now()
		r.abandon(0)
		got, err := r.run(fromPod, in.bytes())
		check(r, err)
		if got.verdict == "drop_flow_race" {
			return
		}
		if took := time.Since(began); took < time.Second {
			r.Fatalf("%s %v after the claim", got.verdict, took)
		}
	}
}

// An agent that is killed as it carries flows over leaves an entry that is claimed and will never be published. A connection of its
// ends finds it in its way for a few seconds, and not for ever.
func TestAnEntryWhoseWriterWasKilledStopsNobody(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in, out := webPackets(w)
		step{hook: fromPod, in: in, verdict: "translate_balance", out: &out}.play(r, 1)
		r.findsClaimed(in)
		r.abandon(5 * time.Second)
		step{hook: fromPod, in: in, verdict: "translate_balance", out: &out}.play(r, 2)
		talk{in, out}.goOn(r, "translate_established", "translate_reply")
		if n := len(r.liveFlows()); n != 1 {
			t.Errorf("%d entries", n)
		}
	}, lb.TCP, lb.UDP)
}

// Nor does a set fill with such entries.
func TestEntriesWhoseWriterWasKilledAreTaken(t *testing.T) {
	forEachDoor(t, unhurried(1), func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		for port := range uint16(8) {
			r.expect(fromPod, w.packet(at(w.pod(1), 41000+port), at(w.vip(10), 80)), "translate_balance")
		}
		r.abandon(5 * time.Second)
		for port := range uint16(8) {
			r.expect(fromPod, w.packet(at(w.pod(1), 42000+port), at(w.vip(10), 80)), "translate_balance")
		}
	}, lb.TCP, lb.UDP)
}
