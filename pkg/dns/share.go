// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"sync"
)

// share divides places among clients. A client may take one more while it has fewer than are free: alone it gets half of them, and who
// comes later finds room.
type share struct {
	most int // places

	mu    sync.Mutex
	taken int
	by    map[netip.Addr]int // places that a client has; none without any
}

// take gets a place, which is to be given back; false: there is none for this client now.
func (s *share) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[client] >= s.most-s.taken {
		return false
	}
	if s.by == nil {
		s.by = map[netip.Addr]int{}
	}
	s.taken++
	s.by[client]++
	return true
}

func (s *share) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.by[client]--; s.by[client] == 0 {
		delete(s.by, client)
	}
}
