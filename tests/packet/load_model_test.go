// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/loadmodel"
)

// drawLoad is a backend's load near the limits of the rule.
func drawLoad(draw *rand.Rand) loadmodel.Load {
	return loadmodel.Load{Open: draw.IntN(20) - 1, Weight: 1 + draw.IntN(3), Told: draw.IntN(4) > 0, Others: draw.IntN(40), Unsure: []int{0, 0, 1, 4, 16}[draw.IntN(5)],
		Answers: []int{0, 300, 900, 1000, 1900, 2100, 9000}[draw.IntN(7)], AnswersTimely: draw.IntN(4) > 0}
}

// shows has the programs know this of a backend.
func (r *rig) shows(id uint32, l loadmodel.Load) {
	long := uint32(24*3600) * bpf.JiffiesPerSecond()
	h := bpf.NearlbBackendHealth{Open: int32(l.Open), Weight: uint32(l.Weight), SynTime: uint32(l.Answers), SynTimed: bpf.Jiffies(), OthersAt: max(1, bpf.Jiffies()),
		Others: uint32(l.Others) | uint32(powerOf(l.Unsure))<<bpf.NearlbOthersOTHERS_SHIFT}
	if !l.Told {
		h.OthersAt -= long
	}
	if !l.AnswersTimely {
		h.SynTimed -= long
	}
	check(r, r.objects.BackendHealth.Put(id, &h))
}

// powerOf is what the tables have for a power of two.
func powerOf(n int) (power int) {
	for ; n > 0; n /= 2 {
		power++
	}
	return power
}

// Each connection is opened three times: of equal loads it shows which backend its hash chooses, with others' connections there whether they count
// for it, and then the programs decide as the model does.
func TestTheProgramsCompareLoadsAsTheModelDoes(t *testing.T) {
	forEachDoor(t, withSets(64), func(t *testing.T, r *rig, w world) {
		r.publish(byLoad(webTiers(w, w.tier(8080, 2, 3))))
		draw := rand.New(rand.NewPCG(5, 6))
		a, b := at(w.pod(2), 8080), at(w.pod(3), 8080)
		ids := map[netip.AddrPort]uint32{a: r.suspect(a).ID, b: r.suspect(b).ID}
		other := map[netip.AddrPort]netip.AddrPort{a: b, b: a}
		goes := func(port uint16, of map[netip.AddrPort]loadmodel.Load) netip.AddrPort {
			r.forget()
			for backend, l := range of {
				r.shows(ids[backend], l)
			}
			return r.open(w, port).out.dst
		}
		idle := loadmodel.Load{Weight: 1, Told: true}
		moved, asked := 0, 0
		for n := range 60 {
			port := 41000 + uint16(n)
			first := goes(port, map[netip.AddrPort]loadmodel.Load{a: idle, b: idle})
			asks := goes(port, map[netip.AddrPort]loadmodel.Load{first: {Weight: 1, Told: true, Others: 1}, other[first]: idle}) != first
			one, two := drawLoad(draw), drawLoad(draw)
			want := first
			if one.IsMore(two, asks) {
				want = other[first]
				moved++
			}
			if asks {
				asked++
			}
			if got := goes(port, map[netip.AddrPort]loadmodel.Load{first: one, other[first]: two}); got != want {
				t.Errorf("of %+v and %+v, others %v, the connection goes to %s, want %s", one, two, asks, got, want)
			}
		}
		if moved < 10 || asked < 40 || asked == 60 {
			t.Errorf("of 60 connections %d go to the second backend, and others count for %d: the test says little", moved, asked)
		}
		r.forgetHealth()
		r.forget()
	}, lb.TCP, lb.UDP)
}
