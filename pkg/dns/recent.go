// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	wire "github.com/miekg/dns"
)

// counted is a lock that counts how often it was locked to write.
type counted struct {
	sync.RWMutex
	written atomic.Uint64
}

// Lock counts before anything is written.
func (c *counted) Lock() {
	c.RWMutex.Lock()
	c.written.Add(1)
}

const (
	recentSlots = 2048 // for so many different questions, of which two may want the same slot
	recentBytes = 512  // the longest question and answer that are kept, together
	idSize      = 2    // of the number that a message begins with
)

// recent are answers as they were sent. Clients ask for the same names again and again, in the same bytes but the id. An answer is repeated as
// long as nothing was written to the view since before it was made: it is what would be said now. Methods may be called from any goroutine.
type recent struct {
	view  *View
	seed  maphash.Seed
	slots [recentSlots]atomic.Pointer[said]
}

// said is an answer that was sent. It is never edited.
type said struct {
	written      uint64 // of the view's lock, before the answer was made
	question     string // without its id
	answer       []byte
	qtype, rcode string // as observers are told
}

func newRecent(v *View) *recent { return &recent{view: v, seed: maphash.MakeSeed()} }

func (r *recent) slot(question []byte) *atomic.Pointer[said] {
	return &r.slots[maphash.Bytes(r.seed, question)%recentSlots]
}

// find is nil where the question has to be looked up.
func (r *recent) find(message []byte) *said {
	if len(message) < headerSize {
		return nil
	}
	question := message[idSize:]
	s := r.slot(question).Load()
	if s == nil || s.question != string(question) || s.written != r.view.mu.written.Load() {
		return nil
	}
	return s
}

// keep keeps what was said to a message, unless the view was written to since, or the next answer may have another order.
func (r *recent) keep(written uint64, message []byte, reply *wire.Msg, answer []byte) {
	if len(message)+len(answer) > recentBytes || len(reply.Answer) > 1 || len(reply.Extra) > 1 || len(answer) < headerSize {
		return
	}
	if r.view.mu.written.Load() != written {
		return
	}
	s := &said{written: written, question: string(message[idSize:]), answer: append([]byte(nil), answer...)}
	s.qtype, s.rcode = wordsOf(reply)
	r.slot(message[idSize:]).Store(s)
}

// appendTo writes the answer to a message with that id.
func (s *said) appendTo(room, message []byte) []byte {
	return append(append(room, message[:idSize]...), s.answer[idSize:]...)
}
