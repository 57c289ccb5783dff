// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"math/bits"

	"github.com/nearlb/nearlb/pkg/lb"
)

// tableSizes are the primes next below powers of two. Steps are wide on purpose: as long as the size stays the same, one
// backend more or less moves few slots of the others; where it changes, nearly all move.
var tableSizes = [...]int{509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287}

// slotsPerBackend keeps every share within 1 % of equal: shares differ by one slot at the most.
const slotsPerBackend = 100

// TableSize is the number of slots of a tier's Maglev table: a prime of at least 100 slots for each backend, so that each
// share is within 1 % of equal (requirements C13, C14), at most 524287. The bound of 1 % therefore holds up to 5242
// backends; above that, n backends have shares within n/5242.87 % of equal. One backend needs one slot, none needs none.
func TableSize(backends int) int {
	switch {
	case backends <= 0:
		return 0
	case backends == 1:
		return 1
	}
	for _, size := range tableSizes {
		if size/slotsPerBackend >= backends {
			return size
		}
	}
	return tableSizes[len(tableSizes)-1]
}

// Maglev fills a table of size slots, a prime, with indexes into backends, which are hash seeds in canonical order
// (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", 2016, section 3.4): each backend in
// turn takes the next free slot of its own permutation of the table. Shares differ by one slot at the most. The result
// depends on the seeds and their order alone, so every node and every restart makes the same table. Empty without
// backends or slots; a size that is not prime works too, less evenly mixed. About size * ln(size) steps.
func Maglev(backends []uint64, size int) []int {
	if len(backends) == 0 || size <= 0 {
		return nil
	}
	slots := make([]int, size)
	if len(backends) == 1 {
		return slots
	}
	walkers := permutations(backends, size)
	taken := make([]uint64, (size+63)/64)
	turn := 0
	for range size {
		slots[walkers[turn].claim(taken, size)] = turn
		if turn++; turn == len(walkers) {
			turn = 0
		}
	}
	return slots
}

// walker goes through one backend's permutation of the table: next, next+skip, next+2*skip ... modulo the size.
type walker struct{ next, skip int }

func permutations(seeds []uint64, size int) []walker {
	walkers := make([]walker, len(seeds))
	for i, seed := range seeds {
		walkers[i].next = below(mix(seed^0x9e3779b97f4a7c15), size)
		walkers[i].skip = 1 + below(mix(seed^0xc2b2ae3d27d4eb4f), size-1)
	}
	return walkers
}

// claim takes the walker's next slot that is free; there must be one.
func (w *walker) claim(taken []uint64, size int) int {
	next, skip := w.next, w.skip
	for step := 0; ; step++ {
		if step == size {
			skip = 1 // the size is not prime and this walk misses the free ones
		}
		slot := next
		if next += skip; next >= size {
			next -= size
		}
		if bit := uint64(1) << (slot & 63); taken[slot>>6]&bit == 0 {
			taken[slot>>6] |= bit
			w.next = next
			return slot
		}
	}
}

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
