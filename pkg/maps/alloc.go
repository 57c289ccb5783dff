// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"math/bits"
	"slices"
	"sort"
)

// ids hands out numbers from first to limit-1: those never used before ones given back, and of those the longest unused, so
// that an id changes hands as seldom as possible.
type ids struct {
	next, limit uint32
	free        []uint32
	used        int
}

// newIDs restores the state in which exactly the given numbers are taken.
func newIDs(first, limit uint32, taken *idSet) *ids {
	i := &ids{next: max(first, taken.end()), limit: limit, used: taken.count}
	for id := first; id < i.next; id++ {
		if !taken.has(id) {
			i.free = append(i.free, id)
		}
	}
	return i
}

// idSet is a set of small numbers, a bit for each. The zero value is empty.
type idSet struct {
	words []uint64
	count int
}

func (s *idSet) has(id uint32) bool {
	return int(id>>6) < len(s.words) && s.words[id>>6]&(1<<(id&63)) != 0
}

func (s *idSet) add(id uint32) {
	if s.has(id) {
		return
	}
	if more := int(id>>6) + 1 - len(s.words); more > 0 {
		s.words = append(s.words, make([]uint64, more)...)
	}
	s.words[id>>6] |= 1 << (id & 63)
	s.count++
}

// end is one more than the greatest number; 0 without any.
func (s *idSet) end() uint32 {
	for i, word := range slices.Backward(s.words) {
		if word != 0 {
			return uint32(i*64 + bits.Len64(word))
		}
	}
	return 0
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

// takenSlots are the slots that are taken already, a bit for each, while spans are restored.
type takenSlots struct {
	words []uint64
	size  uint32
}

func newTakenSlots(size uint32) *takenSlots { return &takenSlots{make([]uint64, (size+63)/64), size} }

// reserve takes a certain run, which must be inside; false if any of it is taken already.
func (t *takenSlots) reserve(want span) bool {
	for word, mask := range want.masks() {
		if t.words[word]&mask != 0 {
			return false
		}
	}
	for word, mask := range want.masks() {
		t.words[word] |= mask
	}
	return want.count > 0
}

// masks are the words of a bit map that a run is in, and its bits in each.
func (s span) masks() iter.Seq2[uint32, uint64] {
	return func(yield func(uint32, uint64) bool) {
		for first := s.first; first < s.end(); {
			word := first / 64
			last := min(s.end(), (word+1)*64) // of this word, exclusive
			mask := (^uint64(0) << (first % 64)) & (^uint64(0) >> (63 - (last-1)%64))
			if !yield(word, mask) {
				return
			}
			first = last
		}
	}
}

// next is the first slot from here on that is taken, or is not; size if there is none.
func (t *takenSlots) next(from uint32, taken bool) uint32 {
	for from < t.size {
		word := t.words[from/64]
		if !taken {
			word = ^word
		}
		if word >>= from % 64; word != 0 {
			return min(t.size, from+uint32(bits.TrailingZeros64(word)))
		}
		from = (from/64 + 1) * 64
	}
	return t.size
}

// spans are what is left.
func (t *takenSlots) spans() *spans {
	s := &spans{}
	for first := t.next(0, false); first < t.size; {
		end := t.next(first, true)
		s.free = append(s.free, span{first, end - first})
		s.left += end - first
		first = t.next(end, false)
	}
	return s
}

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
