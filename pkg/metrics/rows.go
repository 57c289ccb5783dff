// SPDX-License-Identifier: Apache-2.0

package metrics

import "iter"

// rows keep what a table said at the last look, by id.
type rows[T any] struct {
	blocks []*[rowBlock]dated[T]
	now    uint32 // number of the look
}

// rowBlock is how many rows are made room for at once: rows are many, and to move them as they grow takes several times their memory.
const rowBlock = 1024

type dated[T any] struct {
	row  T
	look uint32 // that it is of
}

// turn begins a look.
func (r *rows[T]) turn() { r.now++ }

// before is what the id had at the last look; nothing: the zero value.
func (r *rows[T]) before(id uint32) (row T) {
	if h := r.at(id); h != nil && h.look == r.now-1 {
		return h.row
	}
	return row
}

// at is where a row is; nil: there is no room for it yet.
func (r *rows[T]) at(id uint32) *dated[T] {
	if block := id / rowBlock; int(block) < len(r.blocks) {
		return &r.blocks[block][id%rowBlock]
	}
	return nil
}

func (r *rows[T]) set(id uint32, row T) {
	for r.at(id) == nil {
		r.blocks = append(r.blocks, new([rowBlock]dated[T]))
	}
	*r.at(id) = dated[T]{row, r.now}
}

// turned ends a look. If not everything could be read, what was not is not new the next time.
func (r *rows[T]) turned(failed error) {
	if failed == nil {
		return
	}
	for _, block := range r.blocks {
		for i := range block {
			if h := &block[i]; h.look == r.now-1 && h.look > 0 {
				h.look = r.now
			}
		}
	}
}

// get is what the id has.
func (r *rows[T]) get(id uint32) (row T, found bool) {
	if h := r.at(id); h != nil && h.look == r.now {
		return h.row, true
	}
	return row, false
}

func (r *rows[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, block := range r.blocks {
			for i := range block {
				if block[i].look == r.now && !yield(block[i].row) {
					return
				}
			}
		}
	}
}
