// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// weighted are endpoints in the cluster tier with these weights, by host.
func weighted(weights ...uint32) (all []ep) {
	for host, weight := range weights {
		all = append(all, ep{host: host, state: lb.Active, near: lb.TierCluster, weight: weight})
	}
	return all
}

// slotsOf counts the slots of the first tier of a Service's ClusterIP, by host.
func slotsOf(b *bench, n, hosts int) []uint32 {
	key := keyOf(made(n).Frontends[0].Key)
	number, _, _ := b.store.frontends.get(key)
	tier := read[recordValue](b.store.records, number).Sides[0].Tiers[0]
	counts := make([]uint32, hosts)
	for i := range tier.Count {
		row := read[backendRow](b.store.backends, b.store.slots.load(tier.First+i, 0))
		counts[AddrPortOf(row).Addr().As4()[3]]++
	}
	return counts
}

// F5: one connection of a thousand, to 1 %, and any others; a changed weight is in force with its decision, equal ones are no weights.
func TestWeightsAreShares(t *testing.T) {
	sizes := tinySizes()
	sizes.Slots = 1 << 20
	b := newBench(t, memoryStore(sizes))
	b.sharesOf, b.tableSize = decide.SharesOf, decide.TableSize
	for _, weights := range [][]uint32{{1, 999}, {100, 100, 100}, {1, 100, 100}, {5, 3, 2, 7}, {65535, 13, 40000}} {
		t.Run(strings.ReplaceAll(fmt.Sprint(weights), " ", "-"), func(t *testing.T) {
			if _, err := b.Apply(made(1, weighted(weights...)...)); err != nil {
				t.Fatal(err)
			}
			total, all := 0.0, uint32(0)
			got := slotsOf(b, 1, len(weights))
			for i, w := range weights {
				total += float64(w)
				all += got[i]
			}
			for i, w := range weights {
				if want := float64(w) / total * float64(all); float64(got[i]) < 0.99*want || float64(got[i]) > 1.01*want {
					t.Errorf("host %d of weight %d has %d of %d slots, want %.1f", i, w, got[i], all, want)
				}
			}
		})
	}
}

// Slots that somebody changed while no agent ran are found and mended, as those of equal backends are.
func TestARestoredTableOfWeightsIsCompared(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	d := made(1, weighted(1, 3, 9)...)
	if _, err := b.Apply(d); err != nil {
		t.Fatal(err)
	}
	want := slotsOf(b, 1, 3)
	number, _, _ := s.frontends.get(keyOf(d.Frontends[0].Key))
	tier := read[recordValue](s.records, number).Sides[0].Tiers[0]
	slots := make([]uint32, tier.Count)
	for i := range slots {
		slots[i] = s.slots.load(tier.First+uint32(i), 0)
	}
	slices.Reverse(slots) // the same shares, other slots
	s.slots.fill(tier.First, slots)

	again := newBench(t, s)
	if stats, err := again.Apply(d); err != nil || stats.SlotRuns != 0 {
		t.Errorf("%d tables of slots were written (%v), want none", stats.SlotRuns, err)
	}
	again.Reclaim(again.time)
	if drift, err := again.Audit(true); err != nil || len(drift) != 1 {
		t.Errorf("after the decision came: %v (%v), want the slots", drift, err)
	}
	for i := range tier.Count {
		if id := s.slots.load(tier.First+i, 0); id != slots[len(slots)-1-int(i)] {
			t.Fatalf("slot %d has %d", i, id)
		}
	}
	if got := slotsOf(again, 1, 3); !slices.Equal(got, want) {
		t.Errorf("shares %v, want %v", got, want)
	}
	restarted := newBench(t, s)
	if stats, err := restarted.Apply(d); err != nil || stats.SlotRuns != 0 || stats.Records != 0 {
		t.Errorf("a restart wrote %+v (%v)", stats, err)
	}
}

func TestAChangedWeightIsNoted(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	b.Note(true)
	if _, err := b.Apply(made(1, weighted(1, 1)...)); err != nil {
		t.Fatal(err)
	}
	stats, err := b.Apply(made(1, weighted(1, 22)...))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range stats.Noted {
		got = append(got, fmt.Sprintf("%s %s: %s -> %s", n.What, n.Backend, n.From, n.To))
	}
	want := []string{"weight-changed 10.244.0.0:8080: 50 % -> 4.348 %", "weight-changed 10.244.0.1:8080: 50 % -> 95.65 %"}
	if !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
}
