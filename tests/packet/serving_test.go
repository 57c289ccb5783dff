// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A decision that does not fit the tables leaves the tiers in force as they are: backends that serve no more stay in them, quiet.
func TestTheOneBackendOfATierThatServesIsFound(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for _, size := range []int{3, 7, 9, 12} { // where backends take turns, a slot for each
			pods := []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}[:size]
			serves := at(w.pod(pods[size/2]), 8080)
			web := service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, pods...)), states: map[netip.AddrPort]lb.State{}}
			for _, n := range pods {
				web.states[at(w.pod(n), 8080)] = lb.Quiet
			}
			web.states[serves] = lb.Active
			for _, d := range []lb.Decision{w.decide(web), turning(w.decide(web))} {
				r.publish(d)
				for port := range uint16(60) {
					if c := r.open(w, 41000+port); c.out.dst != serves {
						t.Fatalf("of %d, port %d goes to %s", size, c.in.src.Port(), c.out.dst)
					}
				}
				r.evict()
			}
		}
	}, lb.TCP, lb.UDP)
}
