// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// searchEvery is how often the flow table is searched for the same removed endpoint.
const searchEvery = 20 * time.Second

// Reclaim frees what nothing can name any more: records and slots after their grace, removed endpoints and service ports
// when no connection and no affinity entry names them, sources of SNAT when no connection does. It gives the number of
// things freed. Call it every second or so; it is cheap when there is nothing to free, and searches the flow table only when
// there is. now is the same clock as time.Now.
func (t *Tables) Reclaim(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unsettled = false
	freed := t.reclaimSpace(now)
	freed += t.reclaimRanges(now)
	freed += t.reclaimIDs(now)
	freed += t.reclaimNames(now)
	for _, name := range slices.Collect(maps.Keys(t.behind)) {
		t.inherit(name)
	}
	return freed
}

// reclaimSpace frees records and slots whose grace is over.
func (t *Tables) reclaimSpace(now time.Time) (freed int) {
	records := t.records[:0]
	for _, r := range t.records {
		if now.Sub(r.at) < grace {
			records = append(records, r)
			continue
		}
		t.recordIDs.give(r.id)
		freed++
	}
	t.records = records
	runs := t.runs[:0]
	for _, r := range t.runs {
		switch {
		case r.refs > 0: // in use again
			r.waiting = false
		case now.Sub(r.since) < grace:
			runs = append(runs, r)
		default:
			t.freeRun(r)
			freed++
		}
	}
	clear(t.runs[len(runs):])
	t.runs = runs
	return freed
}

func (t *Tables) freeRun(r *run) {
	t.slots.give(r.span)
	if r.port != nil && r.port.runs[r.key] == r {
		delete(r.port.runs, r.key)
	}
}

func (t *Tables) reclaimRanges(now time.Time) (freed int) {
	for _, s := range t.services {
		for _, p := range s.ports {
			for key, since := range p.ranges {
				switch {
				case since.IsZero():
				case now.Sub(since) >= grace && t.dropRange(p, key) == nil:
					freed++
				default:
					t.unsettled = true
				}
			}
		}
	}
	return freed
}

// reclaimIDs frees removed endpoints and sources of SNAT, and clears bits of the address filter, that no connection needs.
func (t *Tables) reclaimIDs(now time.Time) (freed int) {
	wanted := t.due(now)
	if wanted.empty() {
		return 0
	}
	t.searchFlows(wanted)
	if len(wanted.backends) > 0 && !t.forgetAffinity(wanted) {
		return 0
	}
	for id, named := range wanted.backends {
		if !named {
			t.freeBackend(t.gone[id])
			freed++
		}
	}
	for bit, named := range wanted.bits {
		if !named {
			bit.put(t.store.filter, false)
			delete(t.stale, bit)
			freed++
		}
	}
	for index, named := range wanted.sources {
		if !named {
			t.freeSource(index)
			freed++
		}
	}
	return freed
}

// search is what the flow table is searched for, and whether it was found.
type search struct {
	backends map[uint32]bool
	bits     map[filterBit]bool
	sources  map[uint8]bool
}

func (s *search) empty() bool { return len(s.backends)+len(s.bits)+len(s.sources) == 0 }

// due are the removed endpoints, stale bits and unused sources whose grace is over and that were not searched for of late.
func (t *Tables) due(now time.Time) *search {
	s := &search{map[uint32]bool{}, map[filterBit]bool{}, map[uint8]bool{}}
	isDue := func(since, searched time.Time) bool {
		return now.Sub(since) >= grace && now.Sub(searched) >= searchEvery
	}
	for id, b := range t.gone {
		if isDue(b.since, b.searched) && !b.inForce() {
			s.backends[id], b.searched = false, now
		}
	}
	for bit, m := range t.stale {
		if isDue(m.since, m.searched) {
			s.bits[bit], m.searched = false, now
		}
	}
	for index, m := range t.sources.unused {
		if isDue(m.since, m.searched) {
			s.sources[index], m.searched = false, now
		}
	}
	return s
}

// inForce says whether some record in force names the endpoint though its Service does not: one that was refused half-way, or
// a frontend that waits for its new owner.
func (b *backend) inForce() bool {
	if b.port == nil {
		return false
	}
	for _, r := range b.port.runs {
		if r.refs > 0 && slices.Contains(r.ids, b.id) {
			return true
		}
	}
	return false
}

// searchFlows marks what some connection names. An entry that is being written now names nothing removed: its writer took the
// backend from a record in force.
func (t *Tables) searchFlows(s *search) {
	expiry := newExpiry(t.store.clock)
	for _, f := range liveFlows(t.store) {
		if expiry.surely(&f) {
			continue
		}
		if _, asked := s.backends[f.Backend]; asked && t.gone[f.Backend].value.Generation == f.Generation {
			s.backends[f.Backend] = true
		}
		s.note(&f)
	}
}

// note marks the bits and the source that a connection needs.
func (s *search) note(f *bpf.NearlbFlow) {
	endpoint := endpointHash(f.Frontend, f.FrontendPort)
	for _, bit := range []filterBit{{frontendPlane, addressHash(f.Frontend)}, {frontendPlane, endpoint}, {backendPlane, endpoint}} {
		if _, asked := s.bits[bit]; asked {
			s.bits[bit] = true
		}
	}
	if _, asked := s.sources[f.Source]; asked && f.Flags&flowSNAT != 0 {
		s.sources[f.Source] = true
	}
}

// forgetAffinity deletes what clients' affinity says of removed endpoints: no program honours it any more. False when the
// table could not be read to its end.
func (t *Tables) forgetAffinity(s *search) bool {
	var dead []bpf.NearlbAffinityKey
	for key, value := range t.store.affinity.all() {
		if _, asked := s.backends[value.Backend]; asked {
			dead = append(dead, key)
		}
	}
	if t.store.affinity.err() != nil {
		return false
	}
	for _, key := range dead {
		if !t.forgetClient(key, s) {
			return false
		}
	}
	return true
}

// forgetClient deletes an entry unless its client has come to another backend since it was read.
func (t *Tables) forgetClient(key bpf.NearlbAffinityKey, s *search) bool {
	now, found, err := t.store.affinity.get(key)
	if _, asked := s.backends[now.Backend]; found && asked && err == nil {
		err = t.store.affinity.remove(key)
	}
	return err == nil
}

// freeBackend makes an id free for another endpoint.
func (t *Tables) freeBackend(b *backend) {
	t.backendEnds(b)
	b.value.State = stateFree
	write(t.store.backends, b.id, b.value, wordState)
	delete(t.gone, b.id)
	b.dropNames()
	t.release(backendBit(AddrPortOf(b.value)))
	if b.port != nil {
		delete(b.port.backends, b.endpoint())
	}
	t.backendIDs.give(b.id)
}

// reclaimNames gives back the ids of service ports that have had nothing for a grace, and of nodes and zones without backends.
func (t *Tables) reclaimNames(now time.Time) (freed int) {
	for _, s := range t.services {
		for _, p := range s.ports {
			switch {
			case !p.empty() || s.decision != nil && s.asksFor(p):
				p.idle = time.Time{}
			case p.idle.IsZero():
				p.idle, t.unsettled = now, true
			case now.Sub(p.idle) >= grace && t.forgetName(p.named):
				t.portEnds(p)
				delete(s.ports, p.name)
				freed++
			default:
				t.unsettled = true
			}
		}
		t.forgetEmpty(s)
	}
	for _, kind := range []uint32{nodeName, zoneName} {
		for _, n := range t.names.byText[kind] {
			switch {
			case n.refs > 0:
			case t.forgetName(n):
				freed++
			default:
				t.unsettled = true
			}
		}
	}
	return freed
}

// asksFor says whether the decision in force has the port, though nothing of it is in the tables.
func (s *service) asksFor(p *port) bool {
	for i := range s.decision.Frontends {
		if s.decision.Frontends[i].Port == p.name {
			return true
		}
	}
	return false
}

func (t *Tables) forgetName(n *named) bool {
	if t.store.names.remove(n.key()) != nil {
		return false
	}
	t.names.forget(n)
	return true
}

// forgetEmpty drops a Service that has neither ports nor a decision.
func (t *Tables) forgetEmpty(s *service) {
	if s.decision == nil && len(s.ports) == 0 {
		delete(t.services, s.name)
	}
}
