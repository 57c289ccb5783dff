// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// FuzzPacket sends raw frames through the programs of a pod's door or the network's, with and without a flow that they may hit. try checks what is true of
// every packet: one verdict, an action that fits it, and nothing written but what the verdict may write. What is answered for a name is what the responder says.
func FuzzPacket(f *testing.F) {
	privileged.Require(f)
	for _, w := range worlds(lb.TCP, lb.UDP, lb.SCTP) {
		for hook, all := range samples(w) {
			for _, p := range all {
				f.Add(p.bytes(), hook == toPod, true, false)
				f.Add(p.bytes(), hook == toPod, true, true)
			}
		}
	}
	addQuestions(f)
	r := newRig(f, patientNames())
	for _, w := range worlds(lb.TCP, lb.UDP, lb.SCTP) {
		web := w.decide(service{name: "web-" + w.String(), address: at(w.vip(10), 80), tiers: tiersOf(w.tier(w.target(), 2))})
		none := w.decide(service{name: "none-" + w.String(), address: at(w.vip(12), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints})
		self := w.decide(service{name: "self-" + w.String(), address: at(w.vip(13), 80), tiers: tiersOf(w.tier(w.target(), 1))})
		r.publish(web, none, self)
	}
	responder := r.answersBoth(f)
	f.Fuzz(func(t *testing.T, frame []byte, reply, known, network bool) {
		r := r.over(t)
		if network {
			r.door = networkDoor
		}
		r.evict()
		if known {
			for _, w := range worlds(lb.TCP, lb.UDP, lb.SCTP) {
				in, _ := webPackets(w)
				r.pick(in)
			}
		}
		hook := fromPod
		if reply {
			hook = toPod
		}
		for range 2 { // the second finds what the first left
			if got, ok := r.try(hook, frame); ok && got.verdict == "reject_name" {
				namedWorld{rig: r, responder: responder}.checkAnswer(frame, got)
			}
		}
	})
}
