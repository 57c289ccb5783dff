// SPDX-License-Identifier: Apache-2.0

package metrics

import "iter"

// rows keep what a table said at the last look, by id.
type rows[T any] struct {
	held []held[T]
	now  uint32 // number of the look
}

type held[T any] struct {
	row  T
	look uint32 // that it is of
}

// turn begins a look.
func (r *rows[T]) turn() { r.now++ }

// before is what the id had at the last look; nothing: the zero value.
func (r *rows[T]) before(id uint32) (row T) {
	if int(id) < len(r.held) && r.held[id].look == r.now-1 {
		return r.held[id].row
	}
	return row
}

func (r *rows[T]) set(id uint32, row T) {
	for int(id) >= len(r.held) {
		r.held = append(r.held, held[T]{})
	}
	r.held[id] = held[T]{row, r.now}
}

// turned ends a look. If not everything could be read, what was not is not new the next time.
func (r *rows[T]) turned(failed error) {
	for id := range r.held {
		if h := &r.held[id]; failed != nil && h.look == r.now-1 && h.look > 0 {
			h.look = r.now
		}
	}
}

// get is what the id has.
func (r *rows[T]) get(id uint32) (row T, found bool) {
	if int(id) < len(r.held) && r.held[id].look == r.now {
		return r.held[id].row, true
	}
	return row, false
}

func (r *rows[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i := range r.held {
			if r.held[i].look == r.now && !yield(r.held[i].row) {
				return
			}
		}
	}
}
