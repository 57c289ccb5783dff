// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"math"
)

// planes is the number of planes of the filter.
const planes = 2

// bitCounts counts for each bit of the address filter how many frontends or backends need it: nearly always none or one, so that
// a byte for each bit is the shortest form, of which only pages that are used take memory.
type bitCounts struct {
	few  []uint8           // math.MaxUint8: see many
	many map[filterBit]int // counts from math.MaxUint8 on
	used int               // bits that something needs
}

func newBitCounts() *bitCounts {
	return &bitCounts{few: make([]uint8, planes*64*filterWords), many: map[filterBit]int{}}
}

func (c *bitCounts) at(b filterBit) *uint8 { return &c.few[b] }

func (c *bitCounts) count(b filterBit) int {
	if n := *c.at(b); n < math.MaxUint8 {
		return int(n)
	}
	return c.many[b]
}

func (c *bitCounts) set(b filterBit, n int) {
	if n >= math.MaxUint8 {
		c.many[b] = n
	} else {
		delete(c.many, b)
	}
	*c.at(b) = uint8(min(n, math.MaxUint8))
}

// need counts one more in, and tells whether it is the first.
func (c *bitCounts) need(b filterBit) bool {
	n := c.count(b)
	c.set(b, n+1)
	if n == 0 {
		c.used++
	}
	return n == 0
}

// release counts one out, and tells whether it was the last.
func (c *bitCounts) release(b filterBit) bool {
	n := c.count(b)
	if n == 0 {
		return false
	}
	c.set(b, n-1)
	if n == 1 {
		c.used--
	}
	return n == 1
}

// all walks the bits that something needs.
func (c *bitCounts) all() iter.Seq2[filterBit, int] {
	return func(yield func(filterBit, int) bool) {
		for i, n := range c.few {
			if n == 0 {
				continue
			}
			b := filterBit(i)
			if !yield(b, c.count(b)) {
				return
			}
		}
	}
}
