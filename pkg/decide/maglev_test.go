// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// seeds are those of n backends 10.244.x.y:8080.
func seeds(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		address := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		out[i] = BackendSeed(lb.BackendKey{Address: netip.AddrPortFrom(address, 8080)})
	}
	return out
}

func shares(table []uint32, n int) []int {
	count := make([]int, n)
	for _, i := range table {
		count[i]++
	}
	return count
}

func TestTableSizesArePrimesOfAHundredSlotsForEachBackend(t *testing.T) {
	for n, want := range map[int]int{-1: 0, 0: 0, 1: 1, 2: 509, 5: 509, 6: 1021, 1000: 131071, 5000: 524287, 5242: 524287, 5243: 524287, 1 << 30: 524287} {
		if got := TableSize(n); got != want {
			t.Errorf("TableSize(%d) = %d, want %d", n, got, want)
		}
	}
	for _, size := range tableSizes {
		if !big.NewInt(int64(size)).ProbablyPrime(0) {
			t.Errorf("%d is not prime", size)
		}
	}
}

// C13, C14: three backends a third each, then two a half each; and so for any number.
func TestSharesAreWithinOnePercentOfEqual(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 6, 7, 40, 163, 655, 656, 1000, 5000, 5242} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			size := TableSize(n)
			for i, got := range shares(Maglev(seeds(n), size), n) {
				if equal := float64(size) / float64(n); float64(got) < equal*0.99 || float64(got) > equal*1.01 {
					t.Errorf("backend %d has %d of %d slots, equal is %.1f", i, got, size, equal)
				}
			}
		})
	}
}

// C14: a backend that leaves gives its slots away, the others keep theirs but for a few.
func TestOneBackendLessMovesFewSlotsOfTheOthers(t *testing.T) {
	for _, n := range []int{4, 9, 20, 100, 1000} {
		before := seeds(n)
		for _, gone := range []int{0, n / 2, n - 1} {
			t.Run(fmt.Sprintf("%d of %d", gone, n), func(t *testing.T) {
				size := TableSize(n)
				if TableSize(n-1) != size {
					t.Fatalf("the table changes its size from %d to %d backends", n, n-1)
				}
				after := slices.Delete(slices.Clone(before), gone, gone+1)
				moved := movedSlots(Maglev(before, size), Maglev(after, size), uint32(gone))
				if limit := size * 3 / 100; moved > limit {
					t.Errorf("%d of %d slots moved between backends that stayed, want at most %d", moved, size, limit)
				}
			})
		}
	}
}

// movedSlots counts slots of backends that stayed which changed hands when the one with index gone left.
func movedSlots(old, new []uint32, gone uint32) int {
	moved := 0
	for slot, owner := range old {
		if owner == gone {
			continue
		}
		if owner > gone {
			owner--
		}
		if new[slot] != owner {
			moved++
		}
	}
	return moved
}

func TestMaglevFillsAnyTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seeds := rapid.SliceOfN(rapid.Uint64(), 0, 50).Draw(t, "seeds")
		size := rapid.IntRange(-1, 700).Draw(t, "size")
		table := Maglev(seeds, size)
		if len(seeds) == 0 || size <= 0 {
			if len(table) != 0 {
				t.Fatalf("table of %d slots from nothing", len(table))
			}
			return
		}
		if len(table) != size {
			t.Fatalf("%d slots, want %d", len(table), size)
		}
		count := shares(table, len(seeds))
		if slices.Max(count)-slices.Min(count) > 1 {
			t.Fatalf("shares %v differ by more than one slot", count)
		}
	})
}

// plainMaglev is the algorithm as it is written in the paper.
func plainMaglev(seeds []uint64, size int) []uint32 {
	f := newFilling(seeds, make([]uint32, size))
	for i := range size {
		f.walk(uint32(i % len(seeds)))
	}
	return f.slots
}

// The last slots are searched and not walked to: that is an acceleration and no other algorithm. Agents of all versions fill
// the same tables, prime or not.
func TestTablesAreThoseOfThePaper(t *testing.T) {
	for n, size := range map[int]int{2: 509, 10: 1021, 100: 16381, 1000: 131071, 5000: 524287, 6000: 524287, 7: 510, 9: 1024, 3: 2} {
		if got, want := Maglev(seeds(n), size), plainMaglev(seeds(n), size); !slices.Equal(got, want) {
			t.Errorf("%d backends on %d slots: another table than by walking", n, size)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		seeds := rapid.SliceOfN(rapid.Uint64(), 2, 40).Draw(t, "seeds")
		size := rapid.IntRange(2, 3000).Draw(t, "size")
		if !slices.Equal(Maglev(seeds, size), plainMaglev(seeds, size)) {
			t.Fatalf("another table than by walking")
		}
	})
}

// Nodes of different versions must agree, so these values never change.
func TestSeedsAndTablesAreTheSameForEver(t *testing.T) {
	for address, want := range map[string]uint64{
		"10.244.1.2:8080":          0xcd29b4d6bb26912e,
		"[2001:db8::1]:443":        0x1714080a4615e4cf,
		"[::ffff:10.244.1.2]:8080": 0xcd29b4d6bb26912e,
	} {
		if got := BackendSeed(lb.BackendKey{Address: netip.MustParseAddrPort(address)}); got != want {
			t.Errorf("seed of %s is %#x, want %#x", address, got, want)
		}
	}
	want := []uint32{0, 1, 1, 0, 1, 2, 2, 2, 1, 2, 0, 0, 0}
	if got := Maglev(seeds(3), 13); !slices.Equal(got, want) {
		t.Errorf("table is %v, want %v", got, want)
	}
}

func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{3, 100, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			seeds, size := seeds(n), TableSize(n)
			for b.Loop() {
				Maglev(seeds, size)
			}
		})
	}
}

// Each backend comes once in a round, or as often as its share, evenly spread.
func TestATableOfTurnsSpreadsEachBackendsTurns(t *testing.T) {
	if got := InTurn(3, nil); !slices.Equal(got, []uint32{0, 1, 2}) {
		t.Errorf("three equal ones: %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		shares := rapid.SliceOfN(rapid.Uint32Range(1, 40), 1, 20).Draw(t, "shares")
		slots := InTurn(len(shares), shares)
		at := make([][]int, len(shares))
		for i, backend := range slots {
			at[backend] = append(at[backend], i)
		}
		for backend, places := range at {
			if uint32(len(places)) != shares[backend] {
				t.Fatalf("backend %d has %d turns, want %d", backend, len(places), shares[backend])
			}
			for k := 1; k < len(places); k++ {
				if gap, even := places[k]-places[k-1], len(slots)/len(places); gap > even+2*len(shares) {
					t.Fatalf("backend %d waits for %d turns, %d would be even, in %v", backend, gap, even, slots)
				}
			}
		}
	})
}
