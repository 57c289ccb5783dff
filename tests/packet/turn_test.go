// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// turning is a Service whose new connections take turns.
func turning(d lb.Decision) lb.Decision { d.Balancing = lb.BalanceRoundRobin; return d }

// Each backend in turn, whatever the client's port; packets of a connection, copies of its SYN, and one in the middle whose entry is lost take no
// turn.
func TestNewConnectionsTakeTurns(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(turning(webTiers(w, w.tier(8080, 2, 3, 4))))
		var order []netip.AddrPort
		for i := range 12 {
			c := r.open(w, 41000+7*uint16(i))
			for range i % 3 {
				if again := c.sends(r, "translate_established"); !again.same(c) {
					t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
				}
			}
			if w.protocol == lb.TCP && i%4 == 0 {
				r.evict()
				r.expect(fromPod, c.in.with("A", "x"), "translate_recover")
			}
			order = append(order, c.out.dst)
		}
		if seen := map[netip.AddrPort]bool{order[0]: true, order[1]: true, order[2]: true}; len(seen) != 3 {
			t.Errorf("the first three went to %v", order[:3])
		}
		for i, to := range order[3:] {
			if to != order[i] {
				t.Fatalf("the order was %v", order)
			}
		}
	}, lb.TCP, lb.UDP)
}

// The turns of a backend that is left out are those of all others, and of none alone.
func TestTurnsPassOverABackendThatIsLeftOut(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(turning(webTiers(w, w.tier(8080, 2, 3, 4, 5))))
		r.forgetHealth()
		out := at(w.pod(2), 8080)
		r.eject(out)
		got := map[netip.AddrPort]int{}
		for port := range uint16(240) {
			got[r.open(w, 41000+port).out.dst]++
		}
		if len(got) != 3 || got[out] > 0 {
			t.Errorf("connections: %v", got)
		}
		for to, n := range got {
			if n < 65 || n > 100 {
				t.Errorf("%s got %d of 240", to, n)
			}
		}
	}, lb.TCP)
}

// A client's first connection takes a turn, the others go where it went.
func TestWithAffinityAClientTakesOneTurn(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(turning(w.decide(service{name: "web", address: at(w.vip(10), 80), affinity: time.Hour, tiers: tiersOf(w.tier(8080, 11, 12, 13))})))
		seen := map[netip.AddrPort]bool{}
		for client := 1; client <= 3; client++ {
			open := func(port uint16) netip.AddrPort {
				return r.start(w.packet(at(w.pod(client), port), at(w.vip(10), 80))).out.dst
			}
			first := open(41000)
			for port := range uint16(4) {
				if to := open(41001 + port); to != first {
					t.Errorf("client %d came to %s, then to %s", client, first, to)
				}
			}
			seen[first] = true
		}
		if len(seen) != 3 {
			t.Errorf("three clients came to %v", seen)
		}
	}, lb.TCP)
}
