// SPDX-License-Identifier: Apache-2.0

package journal

import "sync"

// Ring keeps the last lines within a number of bytes, in memory. Who follows it asks again with the number that it got. It takes no
// memory before the first line.
type Ring struct {
	limit int

	mu    sync.Mutex
	lines [][]byte // oldest first
	first uint64   // number of the oldest
	bytes int
	news  chan struct{} // closed with the next line; nil: nobody waits
}

// lineCost is what a line takes beside its bytes.
const lineCost = 24

// NewRing keeps so many bytes at most.
func NewRing(limit int) *Ring { return &Ring{limit: limit} }

// Add takes a line over. It forgets the oldest ones to make room.
func (r *Ring) Add(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.bytes += len(line) + lineCost
	for r.bytes > r.limit && len(r.lines) > 1 {
		r.bytes -= len(r.lines[0]) + lineCost
		r.lines[0] = nil
		r.lines = r.lines[1:]
		r.first++
	}
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// From gives the lines from a number on, the number of the next one to come, how many between the two are forgotten, and what is closed
// when another comes. The lines must not be changed.
func (r *Ring) From(number uint64) (lines [][]byte, next, forgotten uint64, news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = r.first + uint64(len(r.lines))
	if number < r.first {
		forgotten, number = r.first-number, r.first
	}
	if number < next {
		lines = append(lines, r.lines[number-r.first:]...)
	}
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return lines, next, forgotten, r.news
}
