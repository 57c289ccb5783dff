// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A flow with a translated port has two entries. When one of them was evicted, the connection goes on with the next packet
// of the client, from the port that the server knows.
func TestAFlowThatLostOneOfItsTwoEntriesGoesOn(t *testing.T) {
	const alias = 1 // FLOW_ALIAS
	for name, lost := range map[string]uint8{"the client's": 0, "the server's": alias} {
		t.Run(name, func(t *testing.T) {
			forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
				r.publish(twins(w)...)
				in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
				first, second := r.start(in), r.start(in.to(at(w.vip(11), 80)))
				second.goOn(r, "translate_established", "translate_reply")
				r.editFlows(func(f *bpf.NearlbFlow) {
					if f.KeyPort != f.TwinPort && f.Flags&alias == lost {
						f.Word &^= 3
					}
				})
				forward := "translate_recover"
				if w.protocol == lb.UDP {
					forward = "translate_balance"
				}
				second.goOn(r, forward, "translate_reply")
				second.goOn(r, "translate_established", "translate_reply")
				first.goOn(r, "translate_established", "translate_reply")
			}, lb.TCP, lb.UDP)
		})
	}
}

// So it does where the connection is over by then that had the client's own port: what the server sees is in the second entry alone.
func TestAFlowThatLostItsFirstEntryGoesOnFromThePortThatItsServerKnows(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		r.start(in)
		second := r.start(in.to(at(w.vip(11), 80)))
		second.goOn(r, "translate_established", "translate_reply")
		r.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&alias == 0 {
				f.Word &^= 3
			}
		})
		second.goOn(r, "translate_recover", "translate_reply")
		second.goOn(r, "translate_established", "translate_reply")
	}, lb.TCP)
}
