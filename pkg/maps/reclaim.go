// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Reclaim frees what nothing can name any more: records and slots after their grace, removed endpoints and service ports
// when no connection and no affinity entry names them, sources of SNAT, and nodes of the tunnel, when no connection does. It gives the number of
// things freed. Call it every second or so; it is cheap when there is nothing to free. The tables of connections are searched only
// when something waits for that, and in pieces, one each time: call it again soon while Searching says so.
// now is the same clock as time.Now.
func (t *Tables) Reclaim(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	freed := t.reclaimSpace(now)
	freed += t.reclaimRanges(now)
	freed += t.search(now)
	freed += t.reclaimNames(now)
	t.verifySome()
	for _, name := range slices.SortedFunc(maps.Keys(t.behind), lb.ServiceName.Compare) {
		if s := t.services[name]; s != nil {
			t.inherit(s)
		}
	}
	t.settleHealth()
	return freed
}

// Searching says whether a search that Reclaim began is not over.
func (t *Tables) Searching() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.searching != nil
}

// reclaimSpace frees records and slots whose grace is over.
func (t *Tables) reclaimSpace(now time.Time) (freed int) {
	return t.freeSpace(func(since time.Time) bool { return now.Sub(since) >= grace })
}

// makeRoom frees replaced records and slots before their grace is over. It waits until no program uses them, which takes some
// milliseconds. It returns false if there is nothing to free, or if that cannot be waited for.
func (t *Tables) makeRoom() bool {
	if t.reclaimSpace(t.now()) > 0 {
		return true
	}
	if t.store.wait == nil || len(t.records)+len(t.runs) == 0 || t.store.wait() != nil {
		return false
	}
	return t.freeSpace(func(time.Time) bool { return true }) > 0
}

// freeSpace frees records and slots that were replaced long enough ago.
func (t *Tables) freeSpace(over func(since time.Time) bool) (freed int) {
	records := t.records[:0]
	for _, r := range t.records {
		if !over(r.at) {
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
		case !over(r.since):
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
	t.settle() // or another tier's slots would be filled with this one's
	t.slots.give(r.span)
	if r.port != nil {
		r.port.runs = without(r.port.runs, r)
		t.lookAt(r.port)
	}
}

func (t *Tables) reclaimRanges(now time.Time) (freed int) {
	for p := range t.leaving {
		left := 0
		for key, since := range p.ranges {
			switch {
			case since.IsZero():
			case now.Sub(since) >= grace && t.dropRange(p, key) == nil:
				freed++
			default:
				left++
			}
		}
		if left == 0 {
			delete(t.leaving, p)
			t.lookAt(p)
		}
	}
	return freed
}

// reclaimNames gives back the ids of service ports that have had nothing for a grace, and of nodes and zones without backends. A node that
// connections may have come from has been searched for before.
func (t *Tables) reclaimNames(now time.Time) (freed int) {
	for p, since := range t.idle {
		switch {
		case !p.empty() || t.asksFor(p):
			delete(t.idle, p)
		case now.Sub(since) >= grace && t.store.names.remove(p.nameKey()) == nil:
			t.portEnds(p)
			t.names.give(servicePortName, p.id)
			delete(t.idle, p)
			p.service.ports = without(p.service.ports, p)
			t.forgetEmpty(p.service)
			freed++
		}
	}
	for n := range t.names.unused {
		if n.refs == 0 && !n.carried && t.store.names.remove(n.key()) == nil {
			t.names.forget(n)
			freed++
		}
	}
	return freed
}

// asksFor says whether the port's Service claims a frontend for it, though nothing of it is in the tables.
func (t *Tables) asksFor(p *port) bool {
	return slices.ContainsFunc(p.service.keys, func(key frontendKey) bool {
		own, found := t.claims.of(key, p.service)
		return found && own.port == p.key
	})
}

// forgetEmpty drops a Service that has nothing and asks for nothing.
func (t *Tables) forgetEmpty(s *service) {
	if !s.applied && len(s.ports) == 0 && len(s.keys) == 0 {
		delete(t.services, s.name)
		t.caughtUp(s)
	}
}

// verifiedSlots is how many slots of restored runs one Reclaim compares at least: a millisecond or two.
const verifiedSlots = 1 << 17

// verifySome compares some restored runs with what they should be. A run that differs is left to the next Audit, which reports and
// repairs it: until then its slots name backends of its port, though perhaps not evenly.
func (t *Tables) verifySome() {
	for left := verifiedSlots; left > 0 && len(t.unverified) > 0; {
		last := len(t.unverified) - 1
		r := t.unverified[last]
		t.unverified = t.unverified[:last]
		if r.refs == 0 || r.verified {
			continue
		}
		if members := r.members(); members != nil {
			r.verified, r.sum = true, checksum(t.table(r, members))
		}
		left -= int(r.count)
	}
	if len(t.unverified) == 0 {
		t.unverified = nil
	}
}

// compareLater puts a restored run of unequal shares among those that verifySome compares, when a decision asks for them.
func (t *Tables) compareLater(r *run) {
	if r.unasked {
		r.unasked = false
		t.unverified = append(t.unverified, r)
	}
}

// members are the backends of a run; nil where the port lacks one of them.
func (r *run) members() []member {
	members := make([]member, 0, len(r.ids))
	for i := range r.port.backends { // both in order
		if b := &r.port.backends[i]; len(members) < len(r.ids) && b.id == r.ids[len(members)] {
			members = append(members, member{where: *wire(&b.row), id: b.id})
		}
	}
	if len(members) < len(r.ids) {
		return nil
	}
	return members
}
