// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// knownLoad is what a node knows of the load of a backend.
type knownLoad struct {
	open, weight  int
	told          bool // what other nodes have is known:
	others        int
	unsure        int // a power of two, or 0
	answers       int // microseconds, 0: not known
	answersTimely bool
}

// isMore is the rule by which a new connection does not stay with the backend that its hash chose (bpf/lib/load.h).
func (a knownLoad) isMore(b knownLoad, asksOthers bool) bool {
	load, other := (max(a.open, 0)+1)*b.weight, (max(b.open, 0)+1)*a.weight
	if asksOthers && a.told && b.told {
		all, allOther := load+a.others*b.weight, other+b.others*a.weight
		if unsure := a.unsure*b.weight + b.unsure*a.weight; all > allOther+unsure || allOther > all+unsure {
			load, other = all, allOther
		}
	}
	if a.isSlower(b, 8) {
		load *= 2
	}
	if b.isSlower(a, 8) {
		other *= 2
	}
	return load > other || load == other && a.isSlower(b, 2)
}

func (a knownLoad) isSlower(b knownLoad, times int) bool {
	if !a.answersTimely || !b.answersTimely || b.answers == 0 {
		return false
	}
	return a.answers >= 1000 && a.answers > b.answers*times
}

// drawLoad is a backend's load near the limits of the rule.
func drawLoad(draw *rand.Rand) knownLoad {
	return knownLoad{open: draw.IntN(20) - 1, weight: 1 + draw.IntN(3), told: draw.IntN(4) > 0, others: draw.IntN(40), unsure: []int{0, 0, 1, 4, 16}[draw.IntN(5)],
		answers: []int{0, 300, 900, 1000, 1900, 2100, 9000}[draw.IntN(7)], answersTimely: draw.IntN(4) > 0}
}

// shows has the programs know this of a backend.
func (r *rig) shows(id uint32, l knownLoad) {
	long := uint32(24*3600) * bpf.JiffiesPerSecond()
	h := bpf.NearlbBackendHealth{Open: int32(l.open), Weight: uint32(l.weight), SynTime: uint32(l.answers), SynTimed: bpf.Jiffies(), OthersAt: max(1, bpf.Jiffies()),
		Others: uint32(l.others) | uint32(powerOf(l.unsure))<<bpf.NearlbOthersOTHERS_SHIFT}
	if !l.told {
		h.OthersAt -= long
	}
	if !l.answersTimely {
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
		goes := func(port uint16, of map[netip.AddrPort]knownLoad) netip.AddrPort {
			r.forget()
			for backend, l := range of {
				r.shows(ids[backend], l)
			}
			return r.open(w, port).out.dst
		}
		idle := knownLoad{weight: 1, told: true}
		moved, asked := 0, 0
		for n := range 60 {
			port := 41000 + uint16(n)
			first := goes(port, map[netip.AddrPort]knownLoad{a: idle, b: idle})
			asks := goes(port, map[netip.AddrPort]knownLoad{first: {weight: 1, told: true, others: 1}, other[first]: idle}) != first
			one, two := drawLoad(draw), drawLoad(draw)
			want := first
			if one.isMore(two, asks) {
				want = other[first]
				moved++
			}
			if asks {
				asked++
			}
			if got := goes(port, map[netip.AddrPort]knownLoad{first: one, other[first]: two}); got != want {
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
