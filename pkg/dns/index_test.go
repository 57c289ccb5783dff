// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An index finds what a plain list of the same additions and removals has, and keeps its blocks in bounds.
func TestAnIndexFindsWhatAListHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x index
		has := map[owned]bool{}
		// Few different addresses, near each other, of both families, and those beside the range of IPv4 among IPv6.
		draw := rapid.Custom(func(t *rapid.T) netip.Addr {
			low := byte(rapid.IntRange(0, 255).Draw(t, "low"))
			return []netip.Addr{
				netip.AddrFrom4([4]byte{10, 1, low & 3, low}), netip.AddrFrom16([16]byte{0: 0xfd, 15: low}),
				netip.AddrFrom16([16]byte{9: 1, 15: low}), netip.AddrFrom16([16]byte{15: low}),
			}[rapid.IntRange(0, 3).Draw(t, "family")]
		})
		for range rapid.IntRange(0, 40).Draw(t, "turns") {
			from, adds := draw.Draw(t, "from"), rapid.Bool().Draw(t, "adds")
			entry := uint32(rapid.IntRange(0, 3).Draw(t, "entry"))
			for range rapid.IntRange(1, 100).Draw(t, "so many") {
				o := owned{from.As16(), entry}
				if adds {
					x.add(o)
					has[o] = true
				} else {
					x.remove(o)
					delete(has, o)
				}
				from = from.Next()
			}
		}
		var all []owned
		for _, b := range x.blocks {
			if len(b) == 0 || len(b) > blockSize {
				t.Fatalf("a block of %d", len(b))
			}
			all = append(all, b...)
		}
		if !slices.IsSortedFunc(all, owned.compare) || len(all) != len(has) {
			t.Fatalf("%d of %d, sorted: %v", len(all), len(has), slices.IsSortedFunc(all, owned.compare))
		}
		asked := draw.Draw(t, "asked")
		step := 4
		if asked.Is4() {
			step = 8
		}
		for bits := step; bits <= asked.BitLen(); bits += step {
			p, want := netip.PrefixFrom(asked, bits).Masked(), false
			for o := range has {
				want = want || p.Contains(netip.AddrFrom16(o.address).Unmap())
			}
			if got := x.below(p); got != want {
				t.Fatalf("below %v: %v", p, got)
			}
		}
		var want []uint32
		for entry := range uint32(4) {
			if has[owned{asked.As16(), entry}] {
				want = append(want, entry)
			}
		}
		if got := x.owners(nil, asked); !slices.Equal(got, want) {
			t.Fatalf("owners of %v: %v, want %v", asked, got, want)
		}
	})
}
