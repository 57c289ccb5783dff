// SPDX-License-Identifier: Apache-2.0

package maps

import "sort"

// ids hands out numbers from first to limit-1: those never used before ones given back, and of those the longest unused, so
// that an id changes hands as seldom as possible.
type ids struct {
	next, limit uint32
	free        []uint32
	used        int
}

// newIDs restores the state in which exactly the given numbers are taken.
func newIDs(first, limit uint32, taken map[uint32]bool) *ids {
	i := &ids{next: first, limit: limit, used: len(taken)}
	for id := range taken {
		i.next = max(i.next, id+1)
	}
	for id := first; id < i.next; id++ {
		if !taken[id] {
			i.free = append(i.free, id)
		}
	}
	return i
}

func (i *ids) take() (uint32, bool) {
	if i.next < i.limit {
		i.next++
		i.used++
		return i.next - 1, true
	}
	if len(i.free) == 0 {
		return 0, false
	}
	id := i.free[0]
	i.free = i.free[1:]
	i.used++
	return id, true
}

func (i *ids) give(id uint32) {
	i.free = append(i.free, id)
	i.used--
}

// span is a contiguous run of slots.
type span struct{ first, count uint32 }

func (s span) end() uint32 { return s.first + s.count }

// spans hands out contiguous runs of slots: best fit, neighbours joined when they come back.
type spans struct {
	free []span // ordered, none touching another
	left uint32
}

func newSpans(size uint32) *spans { return &spans{free: []span{{0, size}}, left: size} }

// take finds the smallest free run that is large enough; the first of equals.
func (s *spans) take(count uint32) (uint32, bool) {
	best := -1
	for i, f := range s.free {
		if f.count >= count && (best < 0 || f.count < s.free[best].count) {
			best = i
			if f.count == count {
				break
			}
		}
	}
	if best < 0 || count == 0 {
		return 0, false
	}
	first := s.free[best].first
	s.cut(best, span{first, count})
	return first, true
}

// reserve takes a certain run; false if any of it is taken already.
func (s *spans) reserve(want span) bool {
	i := sort.Search(len(s.free), func(i int) bool { return s.free[i].end() > want.first })
	if i == len(s.free) || want.count == 0 || s.free[i].first > want.first || s.free[i].end() < want.end() {
		return false
	}
	s.cut(i, want)
	return true
}

// cut takes part of the free run i.
func (s *spans) cut(i int, part span) {
	whole := s.free[i]
	s.left -= part.count
	var rest []span
	if part.first > whole.first {
		rest = append(rest, span{whole.first, part.first - whole.first})
	}
	if part.end() < whole.end() {
		rest = append(rest, span{part.end(), whole.end() - part.end()})
	}
	s.free = append(s.free[:i], append(rest, s.free[i+1:]...)...)
}

// give returns a run that take or reserve gave.
func (s *spans) give(back span) {
	i := sort.Search(len(s.free), func(i int) bool { return s.free[i].first > back.first })
	s.left += back.count
	if i < len(s.free) && s.free[i].first == back.end() {
		back.count += s.free[i].count
		s.free = append(s.free[:i], s.free[i+1:]...)
	}
	if i > 0 && s.free[i-1].end() == back.first {
		s.free[i-1].count += back.count
		return
	}
	s.free = append(s.free[:i], append([]span{back}, s.free[i:]...)...)
}
