// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// F5: weight 0 takes an endpoint out of every choice, as if it were not ready; what is left decides about hints and tiers.
func TestAnEndpointOfWeightZeroGetsNoNewConnections(t *testing.T) {
	const hints = `
		10.1.0.1 ready node=n1 zone=a forZone=a weight=0
		10.1.0.2 ready node=n2 zone=b forZone=b
		10.1.0.3 ready node=n3 zone=a forZone=a`
	for _, row := range []struct{ name, text, want string }{
		{"the others", hints, "balance same-zone zone: 10.1.0.3"},
		{"it needs no hint", "10.1.0.1 ready node=n1 weight=0\n10.1.0.3 ready node=n3 zone=a forZone=a", "balance same-zone zone: 10.1.0.3"},
		{"the next tier", "10.1.0.1 ready zone=a forZone=a weight=0\n10.1.0.2 ready zone=b forZone=b", "balance all cluster: 10.1.0.2"},
		{"those that terminate", "10.1.0.1 ready weight=0\n10.1.0.2 leaving", "balance terminating cluster: 10.1.0.2"},
		{"nobody", "10.1.0.1 ready weight=0\n10.1.0.2 leaving weight=0", "reject no-endpoints"},
		{"a copy with a weight counts", "10.1.0.1 ready weight=0 slice=a\n10.1.0.1 ready weight=1 slice=b", "balance all cluster: 10.1.0.1"},
		{"wherever it says to be", "10.1.0.1 ready node=n1 zone=a weight=0\n10.1.0.1 ready", "balance all cluster: 10.1.0.1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			equal(t, "cluster IP", show(frontend(t, decided(t, web(), n1(), row.text), "10.96.0.10:80/TCP").Internal), row.want)
		})
	}
	d := decided(t, web(), n1(), hints)
	for _, e := range d.Endpoints {
		if e.Address.Addr() == ips("10.1.0.1")[0] && (e.Selected || e.Reason != lb.ReasonWeightZero) {
			t.Errorf("selected %v for %s, want not, for %s", e.Selected, e.Reason, lb.ReasonWeightZero)
		}
	}
	for _, b := range d.Backends { // its connections go on
		if b.State != lb.Active {
			t.Errorf("%s is %s, want active", b.Key.Address, b.State)
		}
	}
	in := lb.Input{Service: web(), Endpoints: endpoints(t, hints)}
	if n, _ := decide.LocalReady(in, n1(), true); n != 0 {
		t.Errorf("%d local endpoints are ready for load balancers, want none", n)
	}
}

// Without any annotation nobody has a weight; with one all have.
func TestWeightsAreOfAllOrNone(t *testing.T) {
	weights := func(text string) (all []uint32) {
		for _, b := range decided(t, web(), n1(), text).Backends {
			all = append(all, b.Weight)
		}
		return all
	}
	if got := weights("10.1.0.1 ready\n10.1.0.2 ready"); !slices.Equal(got, []uint32{0, 0}) {
		t.Errorf("without annotation: %v", got)
	}
	if got := weights("10.1.0.1 ready weight=3\n10.1.0.2 ready\n10.1.0.3 unready weight=9"); !slices.Equal(got, []uint32{3, lb.DefaultWeight, 0}) {
		t.Errorf("with one: %v", got)
	}
}

// F5, C13: each share of at least 100 slots is right to 1 %; every backend has a slot.
func TestWeightedSharesAreRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(1, 65535), rapid.Uint32Range(1, 10), rapid.Just(uint32(100)), rapid.Just(uint32(65535))), 1, 300).Draw(t, "weights")
		shares := decide.SharesOf(weights, weights)
		if shares == nil {
			return // one slot more or less than others: TestSharesAreWithinOnePercentOfEqual
		}
		sum, slots := uint64(0), uint64(0)
		for i, w := range weights {
			sum += uint64(w)
			slots += uint64(shares[i])
		}
		for i, w := range weights {
			want := float64(slots) * float64(w) / float64(sum)
			off := float64(shares[i]) - want
			if shares[i] == 0 || want >= 100 && (off > want/100 || off < -want/100) {
				t.Fatalf("weight %d of %d has %d of %d slots, want %.1f", w, sum, shares[i], slots, want)
			}
		}
		if slots > 20_000 {
			return // what follows is the same for any table, and long
		}
		table := decide.WeightedMaglev(someSeeds(len(weights)), shares)
		counts := make([]uint32, len(weights))
		for _, i := range table {
			counts[i]++
		}
		if !slices.Equal(counts, shares) {
			t.Fatalf("slots %v, want %v", counts, shares)
		}
	})
}

func someSeeds(n int) (seeds []uint64) {
	for i := range uint64(n) {
		seeds = append(seeds, (i+1)*0x9e3779b97f4a7c15)
	}
	return seeds
}

// A weight that changes by a little moves few connections that nobody remembers; C14 with weights.
func TestAChangedWeightMovesFewSlots(t *testing.T) {
	seeds := someSeeds(10)
	before, after := make([]uint32, 10), make([]uint32, 10)
	for i := range before {
		before[i], after[i] = 400, 400
	}
	before[3], after[3] = 100, 140 // of 4,093 slots 110 and 152
	shares := [2][]uint32{decide.Shares(before, 4093), decide.Shares(after, 4093)}
	a, b := decide.WeightedMaglev(seeds, shares[0]), decide.WeightedMaglev(seeds, shares[1])
	moved := 0
	for slot := range a {
		if a[slot] != b[slot] {
			moved++
		}
	}
	if gained := int(shares[1][3] - shares[0][3]); moved < gained || moved > 4093*15/100 {
		t.Errorf("%d of 4093 slots moved for %d", moved, gained)
	}
}

// With more backends than slots each has one.
func TestSharesOfATableThatIsTooSmall(t *testing.T) {
	weights := make([]uint32, 20)
	for i := range weights {
		weights[i] = uint32(1 + i)
	}
	for _, share := range decide.Shares(weights, 7) {
		if share != 1 {
			t.Fatalf("a share of %d", share)
		}
	}
	if shares := decide.Shares([]uint32{65535, 1, 1, 1}, 5); !slices.Equal(shares, []uint32{2, 1, 1, 1}) {
		t.Errorf("shares %v", shares)
	}
}

// A step of a slow start moves what the endpoint gains, and little else: the size of the table stays.
func TestAStepOfASlowStartMovesLittle(t *testing.T) {
	for _, n := range []int{2, 3, 10, 100} {
		seeds, weights := make([]uint64, n), make([]uint32, n)
		for i := range seeds {
			seeds[i] = decide.BackendSeed(lb.BackendKey{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
			weights[i] = lb.DefaultWeight
		}
		size := decide.TableSize(n)
		var last []uint32
		for step := uint32(1); step <= lb.WarmSteps; step++ {
			due := slices.Repeat([]uint32{lb.DefaultWeight * lb.WarmSteps}, n)
			due[n-1] = lb.DefaultWeight * step
			table := decide.Maglev(seeds, size)
			if shares := decide.SharesOf(weights, due); shares != nil {
				table = decide.WeightedMaglev(seeds, shares)
			} else if step != lb.WarmSteps {
				t.Fatalf("%d backends, step %d: no shares", n, step)
			}
			if len(table) != size {
				t.Fatalf("%d backends, step %d: %d slots, want %d", n, step, len(table), size)
			}
			moved := 0
			for i := range last {
				if table[i] != last[i] {
					moved++
				}
			}
			if moved > size/12 {
				t.Errorf("%d backends, step %d: %d slots of %d moved", n, step, moved, size)
			}
			last = table
		}
	}
}
