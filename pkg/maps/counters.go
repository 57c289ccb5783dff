// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"iter"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

type kernelCounters[T any] struct {
	written
	table *ebpf.Map
}

func (c *kernelCounters[T]) read(index uint32) (sum T, err error) {
	var each []T
	if err := c.table.Lookup(index, &each); err != nil {
		return sum, err
	}
	for i := range each {
		add(&sum, &each[i])
	}
	return sum, nil
}

// readEach reads the whole table in batches if many of its entries are wanted: a call for each costs more than the others do.
func (c *kernelCounters[T]) readEach(indexes []uint32) iter.Seq2[T, error] {
	if len(indexes) < batchFrom || int(slices.Max(indexes)) > batchShare*len(indexes) {
		return oneByOne(c, indexes)
	}
	sums, err := c.first(slices.Max(indexes) + 1)
	if err != nil { // the kernel cannot
		return oneByOne(c, indexes)
	}
	return func(yield func(T, error) bool) {
		for _, index := range indexes {
			if !yield(sums[index], nil) {
				return
			}
		}
	}
}

const (
	batchFrom  = 64 // entries that are wanted
	batchShare = 4  // at least one in so many
	batchSize  = 512
)

// first reads the entries below a number.
func (c *kernelCounters[T]) first(count uint32) ([]T, error) {
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	var cursor ebpf.MapBatchCursor
	sums := make([]T, count)
	keys, values := make([]uint32, batchSize), make([]T, batchSize*processors)
	for {
		n, err := c.table.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, err
		}
		for i, key := range keys[:n] {
			if key >= count {
				continue
			}
			for _, one := range values[i*processors : (i+1)*processors] {
				add(&sums[key], &one)
			}
		}
		if err != nil || n == 0 || keys[n-1]+1 >= count {
			return sums, nil
		}
	}
}

// oneByOne reads each entry by itself.
func oneByOne[T any](c counters[T], indexes []uint32) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, index := range indexes {
			if !yield(c.read(index)) {
				return
			}
		}
	}
}

func (c *kernelCounters[T]) zero(index uint32) error {
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	return c.tell(c.table.Put(index, make([]T, processors)))
}

// add sums counters, which are 64-bit numbers only.
func add[T any](sum, one *T) {
	count := unsafe.Sizeof(*sum) / 8
	to, from := unsafe.Slice((*uint64)(unsafe.Pointer(sum)), count), unsafe.Slice((*uint64)(unsafe.Pointer(one)), count)
	for i := range to {
		to[i] += from[i]
	}
}
