// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

const (
	// searchEvery is how often the flow table is searched for the same removed endpoint.
	searchEvery = 20 * time.Second
)

// searchPiece bounds one piece of a search, to a millisecond or two: a publication may wait for it.
type searchPiece struct {
	sets    uint32 // of the flow table
	clients int    // with affinity
}

var defaultSearchPiece = searchPiece{sets: 1 << 13, clients: 1 << 12}

// search looks for connections, and then for clients' affinity, that name what is to be freed, and ends flows of frontends that moved. It takes several calls of Reclaim.
// What somebody asks for again meanwhile becomes another object, and stays. What was removed a grace ago cannot get new names
// meanwhile: programs take backends from records in force only.
type search struct {
	backends map[uint32]*sought[*goneBackend]
	bits     map[filterBit]*sought[*staleMark]
	sources  map[uint8]*sought[*staleMark]
	nodes    map[uint16]*sought[*named] // that connections came from

	frontends map[frontendKey]*staleMark // whose flows of other service ports end

	set  uint32                                                        // of the flow table: where to go on
	next func() (bpf.NearlbAffinityKey, bpf.NearlbAffinityValue, bool) // of the affinity table; nil: not begun
	stop func()
}

// sought is one thing that is searched for, and whether something names it.
type sought[T any] struct {
	what  T
	named bool
}

// search goes on with a search, or begins one if there is something to search for. At its end it frees what nothing names.
func (t *Tables) search(now time.Time) (freed int) {
	if t.searching == nil {
		if s := t.due(now); len(s.backends)+len(s.bits)+len(s.sources)+len(s.nodes)+len(s.frontends) > 0 {
			t.searching = s
		}
	}
	s := t.searching
	if s == nil || !t.searchFlows(s) || len(s.backends) > 0 && !t.searchAffinity(s) {
		return 0
	}
	t.searching = nil
	if len(s.backends) > 0 && t.store.affinity.err() != nil {
		return 0 // the table was not read to its end
	}
	return t.freeUnnamed(s)
}

// due are the removed endpoints and nodes, stale bits and unused sources whose grace is over and that were not searched for of late.
func (t *Tables) due(now time.Time) *search {
	s := &search{backends: map[uint32]*sought[*goneBackend]{}, bits: map[filterBit]*sought[*staleMark]{}, sources: map[uint8]*sought[*staleMark]{}, nodes: map[uint16]*sought[*named]{},
		frontends: map[frontendKey]*staleMark{}}
	isDue := func(since, searched time.Time) bool {
		return now.Sub(since) >= grace && now.Sub(searched) >= searchEvery
	}
	for id, g := range t.gone {
		if isDue(g.since, g.searched) && !g.inForce(id) {
			s.backends[id], g.searched = &sought[*goneBackend]{what: g}, now
		}
	}
	for bit, m := range t.stale {
		if isDue(m.since, m.searched) {
			s.bits[bit], m.searched = &sought[*staleMark]{what: m}, now
		}
	}
	for index, m := range t.sources.unused {
		if isDue(m.since, m.searched) {
			s.sources[index], m.searched = &sought[*staleMark]{what: m}, now
		}
	}
	for key, m := range t.moved {
		if isDue(m.since, m.searched) {
			s.frontends[key], m.searched = m, now
		}
	}
	for n := range t.names.unused {
		if n.carried && n.refs == 0 && isDue(n.since, n.searched) {
			s.nodes[n.number()], n.searched = &sought[*named]{what: n}, now
		}
	}
	return s
}

// searchFlows marks what the connections in the next sets of the flow table name. It returns true at the end of the table. An entry
// that is being written now names nothing that was removed: its writer took the backend from a record in force.
func (t *Tables) searchFlows(s *search) bool {
	expiry := newExpiry(t.store.clock)
	for place := range t.store.walk(&s.set, t.piece.sets) {
		f, ok := readFlow(t.store.flows, place)
		if ok && t.isOfFormer(s, &f) && t.store.freeFlow(place, f.Word) {
			continue
		}
		if ok && !expiry.surely(&f) {
			s.note(t.store, &f)
		}
	}
	return s.set == t.store.flows.size
}

// note marks what a connection needs.
func (s *search) note(in *store, f *bpf.NearlbFlow) {
	if b := s.backends[f.Backend]; b != nil && b.what.row.Generation == f.Generation {
		b.named = true
	}
	if len(s.bits) > 0 {
		for _, k := range []known{in.known(frontendPlane, f.Frontend, 0), in.known(frontendPlane, f.Frontend, f.FrontendPort),
			in.known(backendPlane, f.Frontend, f.FrontendPort)} {
			for _, bit := range k.bits() {
				if m := s.bits[bit]; m != nil {
					m.named = true
				}
			}
		}
	}
	if m := s.sources[f.Source]; m != nil && f.Flags&flowSNAT != 0 {
		m.named = true
	}
	if n := s.nodes[carriedBy(f)]; n != nil && f.Flags&flowCarried != 0 {
		n.named = true
	}
}

// searchAffinity deletes the affinity entries of removed endpoints, which no program honours any more. It returns true at the end
// of the table. An endpoint keeps its id while one of its entries could not be deleted.
func (t *Tables) searchAffinity(s *search) bool {
	if s.next == nil {
		s.next, s.stop = iter.Pull2(t.store.affinity.all())
	}
	for range t.piece.clients {
		key, value, more := s.next()
		if !more {
			s.stop()
			return true
		}
		if b := s.backends[value.Backend]; b != nil && !t.forgetClient(key, s) {
			b.named = true
		}
	}
	return false
}

// forgetClient deletes an entry unless its client has come to another backend since it was read, or its backend is back.
func (t *Tables) forgetClient(key bpf.NearlbAffinityKey, s *search) bool {
	now, found, err := t.store.affinity.get(key)
	if b := s.backends[now.Backend]; found && err == nil && b != nil && t.gone[now.Backend] == b.what {
		err = t.store.affinity.remove(key)
	}
	return err == nil
}

// freeUnnamed frees what the search did not find named, unless it is used again by now.
func (t *Tables) freeUnnamed(s *search) (freed int) {
	for id, b := range s.backends {
		if !b.named && t.gone[id] == b.what && !b.what.inForce(id) {
			t.freeBackend(id, b.what)
			freed++
		}
	}
	for bit, m := range s.bits {
		if !m.named && t.stale[bit] == m.what {
			bit.put(t.store.filter, false)
			delete(t.stale, bit)
			freed++
		}
	}
	for index, m := range s.sources {
		if !m.named && t.sources.unused[index] == m.what {
			t.freeSource(index)
			freed++
		}
	}
	for key, m := range s.frontends {
		if t.moved[key] == m {
			delete(t.moved, key)
		}
	}
	for _, n := range s.nodes {
		if !n.named && n.what.refs == 0 && !n.what.searched.IsZero() { // else it was a node of the tunnel once more
			n.what.carried = false // reclaimNames gives its number back
		}
	}
	return freed
}
