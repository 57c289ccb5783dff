// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// tableSizes are the primes next below powers of two. Steps are wide on purpose: as long as the size stays the same, one
// backend more or less moves few slots of the others; where it changes, nearly all move.
var tableSizes = [...]int{509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287}

// slotsPerBackend keeps every share within 1 % of what it should be: shares are right to one slot.
const slotsPerBackend = 100

// TableSize is the number of slots of a tier's Maglev table: a prime of at least 100 slots for each backend, so that each
// share is within 1 % of equal (requirements C13, C14), at most 524287. The bound of 1 % therefore holds up to 5242
// backends; above that, n backends have shares within n/5242.87 % of equal. One backend needs one slot, none needs none.
func TableSize(backends int) int { return WeightedTableSize(backends, uint64(max(backends, 0)), 1) }

// WeightedTableSize is TableSize for backends whose weights have this sum, and the least of them: it has 100 slots. The bound of 1 %
// therefore holds for a backend that gets at least a 5242nd of the connections; it is some slots off where many others have a slot that is
// more than their part.
func WeightedTableSize(backends int, sum uint64, least uint32) int {
	switch {
	case backends <= 0:
		return 0
	case backends == 1:
		return 1
	}
	for _, size := range tableSizes {
		if uint64(size)*uint64(least)/sum >= slotsPerBackend {
			return size
		}
	}
	return tableSizes[len(tableSizes)-1]
}

// Maglev fills a table of size slots, a prime, with indexes into backends, which are hash seeds in canonical order
// (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", 2016, section 3.4): each backend in
// turn takes the next free slot of its own permutation of the table. Shares differ by one slot at the most. The result
// depends on the seeds and their order alone, so every node and every restart makes the same table. Empty without
// backends or slots; a size that is not prime works too, less evenly mixed. About size * ln(size) / 2 steps: a walk to a
// free slot is long when few are left, so the last ones are searched instead (remaining).
func Maglev(backends []uint64, size int) []uint32 {
	if len(backends) == 0 || size <= 0 {
		return nil
	}
	slots := make([]uint32, size)
	if len(backends) == 1 {
		return slots
	}
	f := newFilling(backends, slots)
	turn := uint32(0)
	next := func() {
		if turn++; turn == uint32(len(backends)) {
			turn = 0
		}
	}
	for range f.walked {
		f.walk(turn)
		next()
	}
	f.findFree()
	for range len(f.free) {
		f.search(turn)
		next()
	}
	return slots
}

// WeightedMaglev is Maglev for backends of unequal shares, which are numbers of slots (Shares): they take turns as often as they have
// slots, evenly spread.
func WeightedMaglev(backends []uint64, shares []uint32) []uint32 {
	size := total(shares)
	slots := make([]uint32, size)
	if len(backends) < 2 {
		return slots
	}
	f := newFilling(backends, slots)
	order := turns(shares, size)
	for _, turn := range order[:f.walked] {
		f.walk(turn)
	}
	f.findFree()
	for _, turn := range order[f.walked:] {
		f.search(turn)
	}
	return slots
}

// InTurn is a table whose slots are taken in order: shares are numbers of slots, evenly spread; nil: each of so many backends has one.
func InTurn(backends int, shares []uint32) []uint32 {
	if shares != nil {
		return turns(shares, total(shares))
	}
	slots := make([]uint32, backends)
	for i := range slots {
		slots[i] = uint32(i)
	}
	return slots
}

// total is the number of slots of all.
func total(shares []uint32) (size int) {
	for _, share := range shares {
		size += int(share)
	}
	return size
}

// turns says which backend's turn it is, for each slot: the k-th of n turns of a backend comes when (2k+1)/2n of the slots are taken;
// where two come at once, that of the first backend. They are sorted by counting.
func turns(shares []uint32, size int) []uint32 {
	at := func(k, share uint32) int { return int((2*uint64(k) + 1) * uint64(size) / (2 * uint64(share))) }
	ends := make([]uint32, size+1)
	for _, share := range shares {
		for k := range share {
			ends[at(k, share)+1]++
		}
	}
	for i := range size {
		ends[i+1] += ends[i]
	}
	order := make([]uint32, size)
	for i, share := range shares {
		for k := range share {
			place := &ends[at(k, share)]
			order[*place] = uint32(i)
			*place++
		}
	}
	return order
}

// SharesOf are the shares of backends with these weights in a table of their own size; nil: they are equal but for one slot, or a weight is 0.
// due is what they get at the moment, beside each other: a backend that starts slowly has its weight's place in the size, so that its steps
// move no connections of the others.
func SharesOf(weights, due []uint32) []uint32 {
	sum, least := uint64(0), ^uint32(0)
	for _, weight := range weights {
		sum += uint64(weight)
		least = min(least, weight)
	}
	if len(weights) == 0 || least == 0 || slices.Min(due) == slices.Max(due) {
		return nil
	}
	shares := Shares(due, WeightedTableSize(len(weights), sum, least))
	if slices.Max(shares)-slices.Min(shares) <= 1 {
		return nil
	}
	return shares
}

// Shares divides the slots of a table by weight; none is 0. A backend that is due less than one slot gets one. The rest is shared in
// proportion, rounded down; what is left goes to the largest remainders, the first backend first. With fewer slots than backends each gets
// one nevertheless.
func Shares(weights []uint32, size int) []uint32 {
	shares, sum, left := singles(weights, size)
	var rest []int // those that get more
	slots := left
	for i, w := range weights {
		if shares[i] == 0 {
			shares[i] = uint32(uint64(w) * uint64(slots) / sum)
			left -= int(shares[i])
			rest = append(rest, i)
		}
	}
	loss := func(i int) uint64 { return uint64(weights[i]) * uint64(slots) % sum }
	slices.SortStableFunc(rest, func(a, b int) int { return cmp.Compare(loss(b), loss(a)) })
	for _, i := range rest[:max(left, 0)] {
		shares[i]++
	}
	return shares
}

// singles gives one slot to each backend that is due less than one, lightest first, and returns the sum of the weights of the others, and
// the slots that are left for them.
func singles(weights []uint32, size int) (shares []uint32, sum uint64, left int) {
	shares, left = make([]uint32, len(weights)), size
	lightest := make([]int, len(weights))
	for i, w := range weights {
		sum += uint64(w)
		lightest[i] = i
	}
	slices.SortStableFunc(lightest, func(a, b int) int { return cmp.Compare(weights[a], weights[b]) })
	for _, i := range lightest {
		if left > 0 && uint64(weights[i])*uint64(left) >= sum {
			break
		}
		shares[i] = 1
		sum -= uint64(weights[i])
		left--
	}
	return shares, sum, left
}

// searchedSlots is the number of slots that are left when a search of all of them (as many steps as are left) becomes quicker
// than a walk (size/left steps, of which one takes twice as long).
func searchedSlots(size int) int { return int(math.Sqrt(2 * float64(size))) }

// filling is a table that is being filled: walked slots by walks, then findFree, then the others by searches.
type filling struct {
	slots   []uint32
	walkers []walker
	taken   []uint64 // a bit for each slot
	walked  int
	free    []uint32 // the last free slots
}

// walker goes through one backend's permutation of the table: next, next+skip, next+2*skip ... modulo the size.
type walker struct {
	next, skip uint32
	step       uint64 // fraction of skip, once it was asked for
}

func newFilling(seeds []uint64, slots []uint32) *filling {
	size := len(slots)
	walkers := make([]walker, len(seeds))
	for i, seed := range seeds {
		walkers[i].next = uint32(below(mix(seed^0x9e3779b97f4a7c15), size))
		walkers[i].skip = uint32(1 + below(mix(seed^0xc2b2ae3d27d4eb4f), size-1))
	}
	return &filling{slots: slots, walkers: walkers, taken: make([]uint64, (size+63)/64), walked: size - searchedSlots(size)}
}

// walk gives a backend the next slot of its permutation that is free; there must be one.
func (f *filling) walk(turn uint32) { f.slots[f.walkers[turn].claim(f.taken, len(f.slots))] = turn }

func (w *walker) claim(taken []uint64, size int) uint32 {
	next, skip := w.next, w.skip
	for step := 0; ; step++ {
		if step == size {
			skip = 1 // the size is not prime and this walk misses the free ones
		}
		slot := next
		if next += skip; next >= uint32(size) {
			next -= uint32(size)
		}
		if bit := uint64(1) << (slot & 63); taken[slot>>6]&bit == 0 {
			taken[slot>>6] |= bit
			w.next = next
			return slot
		}
	}
}

func (f *filling) findFree() {
	for slot := range uint32(len(f.slots)) {
		if f.taken[slot>>6]&(1<<(slot&63)) == 0 {
			f.free = append(f.free, slot)
		}
	}
}

// search is walk without the walk.
func (f *filling) search(turn uint32) {
	w, size := &f.walkers[turn], uint32(len(f.slots))
	if w.step == 0 {
		w.step = fraction(w.skip, int(size))
	}
	var at int
	if w.step == 0 {
		at = slices.Index(f.free, w.claim(f.taken, int(size)))
	} else {
		at = w.nearest(f.free)
		slot := f.free[at]
		f.taken[slot>>6] |= 1 << (slot & 63)
		if w.next = slot + w.skip; w.next >= size {
			w.next -= size
		}
	}
	f.slots[f.free[at]] = turn
	last := len(f.free) - 1
	f.free[at] = f.free[last]
	f.free = f.free[:last]
}

// nearest is the slot that the walker would come to first: the one with the lowest (slot - next) / skip modulo the size. A quotient modulo
// the size is a fraction of the size; here it is one of 2^64, as step is, and products overflow to just what is wanted: quotients are 2^44
// apart or more, and wrong by 2^20 at the most.
func (w *walker) nearest(free []uint32) int {
	next, step := w.next, w.step
	best, at := ^uint64(0), 0
	for i, slot := range free {
		if distance := uint64(int64(slot)-int64(next)) * step; distance < best {
			best, at = distance, i
		}
	}
	return at
}

// fraction is 2^64 / size times the inverse of skip modulo size, rounded up; 0 where there is no inverse or the size is too
// large for the result to tell slots apart.
func fraction(skip uint32, size int) uint64 {
	if size > maxFractionSize {
		return 0
	}
	a, b, x, y := int64(skip), int64(size), int64(1), int64(0) // Euclid: a = skip * x, b = skip * y (modulo size)
	for b != 0 {
		q := a / b
		a, b, x, y = b, a-q*b, y, x-q*y
	}
	if a != 1 {
		return 0
	}
	if x < 0 {
		x += int64(size)
	}
	quotient, _ := bits.Div64(uint64(x), 0, uint64(size))
	return quotient + 1
}

// maxFractionSize is well above the largest table.
const maxFractionSize = 1 << 20

// below maps a hash evenly to 0..n-1, and to 0 when n is 0.
func below(hash uint64, n int) int {
	high, _ := bits.Mul64(hash, uint64(n))
	return int(high)
}

// BackendSeed hashes a backend's address and port: the same on every node, for every order and after every restart. The
// service port is not in it, a tier has backends of one service port only.
func BackendSeed(key lb.BackendKey) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a, 64 bits
	hash := uint64(offset)
	for _, b := range key.Address.Addr().As16() {
		hash = (hash ^ uint64(b)) * prime
	}
	port := key.Address.Port()
	hash = (hash ^ uint64(port>>8)) * prime
	hash = (hash ^ uint64(port&0xff)) * prime
	return mix(hash)
}

// mix is the finaliser of SplitMix64: every bit of the input moves every bit of the result.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
