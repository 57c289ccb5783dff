// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// An external IP goes from one Service to another, and both keep their endpoints: datagrams follow it, connections stay.
func TestFlowsOfAFrontendThatComesToAnotherService(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		blue := service{name: "blue", kind: lb.KindExternalIP, address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2))}
		green := service{name: "green", kind: lb.KindExternalIP, address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 3))}
		r.publish(w.decide(blue))
		c := r.open(w, 41000)
		if w.protocol == lb.TCP {
			c.connects(r)
		}
		blue.address = at(w.vip(11), 80)
		r.publish(w.decide(blue), w.decide(green))
		for now := time.Now().Add(time.Hour); ; {
			if r.tables.Reclaim(now); !r.tables.Searching() {
				break
			}
		}
		again := c.in
		if w.protocol == lb.TCP {
			again = again.with("A", "x")
		}
		got, out := r.pick(again)
		want := map[lb.Protocol]string{lb.TCP: "translate_established", lb.UDP: "translate_balance"}[w.protocol]
		to := map[lb.Protocol]int{lb.TCP: 2, lb.UDP: 3}[w.protocol]
		if got.verdict != want || out.dst != at(w.pod(to), 8080) {
			t.Errorf("%s to %s, want %s to pod %d", got.verdict, out.dst, want, to)
		}
	}, lb.TCP, lb.UDP)
}
