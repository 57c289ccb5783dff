// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// wordResponder is the heartbeat of who answers names: two words, read and written as one.
const wordResponder = int(unsafe.Offsetof(bpf.NearlbSettings{}.Responder) / 4)

// Beat tells the programs that names are answered on this node, at a time of CLOCK_MONOTONIC in nanoseconds: backends of state
// lb.Responder serve for a second from then on, as long as a socket takes what comes for them. 0: nobody answers any more. It waits for no
// publication, and does nothing once the tables are closed.
func (t *Tables) Beat(at uint64) {
	t.beating.Lock()
	defer t.beating.Unlock()
	if !t.closed {
		t.store.beat(at)
	}
}

func (s *store) beat(at uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(s.settings.word(0, wordResponder))), at)
}

// LastBeat is what Beat was told last; 0 where nobody answers.
func (r *Reader) LastBeat() uint64 {
	s := read[bpf.NearlbSettings](r.store.settings, 0)
	return s.Responder
}
