// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"pgregory.net/rapid"
)

func TestRunsNeverOverlapAndComeBackWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 200
		s := newSpans(size)
		var taken [size]bool
		var held []span
		mark := func(r span, as bool) {
			for i := r.first; i < r.end(); i++ {
				if taken[i] == as {
					t.Fatalf("slot %d changes hands twice", i)
				}
				taken[i] = as
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			count := uint32(rapid.IntRange(1, 40).Draw(t, "count"))
			switch {
			case len(held) > 0 && rapid.Bool().Draw(t, "give"):
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				s.give(held[i])
				mark(held[i], false)
				held = append(held[:i], held[i+1:]...)
			case rapid.Bool().Draw(t, "reserve"):
				want := span{uint32(rapid.IntRange(0, size-1).Draw(t, "first")), count}
				if s.reserve(want) {
					mark(want, true)
					held = append(held, want)
				}
			default:
				if first, ok := s.take(count); ok {
					mark(span{first, count}, true)
					held = append(held, span{first, count})
				} else if longestFree(taken[:]) >= int(count) {
					t.Fatalf("no run of %d found though there is one", count)
				}
			}
		}
		for _, h := range held {
			s.give(h)
		}
		if len(s.free) != 1 || s.free[0] != (span{0, size}) || s.left != size {
			t.Fatalf("all given back, free: %v", s.free)
		}
	})
}

func longestFree(taken []bool) (longest int) {
	length := 0
	for _, is := range taken {
		length++
		if is {
			length = 0
		}
		longest = max(longest, length)
	}
	return longest
}

func TestIDsAreNewOnesFirstAndThenTheLongestUnused(t *testing.T) {
	taken := &idSet{}
	taken.add(2)
	i := newIDs(1, 5, taken)
	var got []uint32
	for range 3 {
		id, ok := i.take()
		if !ok {
			t.Fatal("no id")
		}
		got = append(got, id)
	}
	if _, ok := i.take(); ok {
		t.Error("a fifth id of four")
	}
	i.give(4)
	i.give(2)
	again, _ := i.take()
	if got[0] != 3 || got[1] != 4 || got[2] != 1 || again != 4 {
		t.Errorf("ids %v, then %d", got, again)
	}
}
