// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// array is a table that is plain memory, shared with the programs: elements of a fixed number of 32-bit words. Each word is
// read and written whole, so a reader sees the old word or the new one.
type array struct {
	words  []uint32
	stride int    // words from one element to the next; the kernel rounds elements up to 8 bytes
	size   uint32 // elements
	wrote  func() // called after each write; tests look at the tables there
}

// strideOf is the number of words between elements of size bytes.
func strideOf(size uintptr) int { return int((size + 7) / 8 * 2) }

func newArray[T any](words []uint32, size uint32) *array {
	var element T
	return &array{words: words, stride: strideOf(unsafe.Sizeof(element)), size: size}
}

// packed shows an array of lines of slots as an array of slots.
func packed(lines *array) *array {
	if lines == nil { // its table could not be mapped
		return nil
	}
	return &array{words: lines.words, stride: 1, size: lines.size * bpf.SlotsPerLine}
}

func (a *array) word(index uint32, word int) *uint32 { return &a.words[int(index)*a.stride+word] }

func (a *array) load(index uint32, word int) uint32 { return atomic.LoadUint32(a.word(index, word)) }

func (a *array) store(index uint32, word int, value uint32) {
	atomic.StoreUint32(a.word(index, word), value)
	a.written()
}

func (a *array) written() {
	if a.wrote != nil {
		a.wrote()
	}
}

// wordsOf shows a value of a generated layout as words. Sizes of all layouts are multiples of four bytes.
func wordsOf[T any](value *T) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(value)), unsafe.Sizeof(*value)/4)
}

// read copies an element, word by word; a concurrent writer may tear it between words.
func read[T any](a *array, index uint32) (value T) {
	for i := range wordsOf(&value) {
		wordsOf(&value)[i] = a.load(index, i)
	}
	return value
}

// write stores the words of an element that differ, in the order given, or in their own where none is given.
func write[T any](a *array, index uint32, value T, order ...int) (changed bool) {
	words := wordsOf(&value)
	if len(order) == 0 {
		for i := range words {
			order = append(order, i)
		}
	}
	for _, i := range order {
		if a.load(index, i) != words[i] {
			a.store(index, i, words[i])
			changed = true
		}
	}
	return changed
}

// fill stores first words of successive elements that nobody reads yet; faster than one atomic store each.
func (a *array) fill(first uint32, values []uint32) {
	const lookEvery = 61
	at := int(first) * a.stride
	for i, v := range values {
		a.words[at] = v
		at += a.stride
		if i%lookEvery == 0 {
			a.written()
		}
	}
	a.written()
}

// in says whether count elements from first on exist.
func (a *array) in(first, count uint32) bool {
	return uint64(first)+uint64(count) <= uint64(a.size)
}

// check refuses memory that is shorter than its elements.
func (a *array) check(name string) error {
	if len(a.words) < int(a.size)*a.stride {
		return fmt.Errorf("map table %s: %d bytes of memory for %d elements of %d", name, 4*len(a.words), a.size, 4*a.stride)
	}
	return nil
}
