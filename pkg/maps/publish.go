// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"maps"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Apply publishes a decision: what differs from the one published before is written, in an order in which every packet meets
// the old backends of a frontend or the new ones. The decision must not be changed afterwards. A *FullError leaves the
// Service as it was. A frontend that another Service has first (Stats.Problems) is published when that one gives it up. Apply
// the Services of Stats.Again again, with decisions of now.
func (t *Tables) Apply(d lb.Decision) (Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stats, err := t.apply(&d)
	t.settleHealth()
	t.tellAgain(&stats)
	return stats, err
}

// Remove takes a Service out. Its backends stay for the connections that name them. An unknown Service is no error.
func (t *Tables) Remove(name lb.ServiceName) (Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.services[name]
	if s == nil {
		return Stats{}, nil
	}
	stats, err := t.apply(&lb.Decision{Service: name, KeepLost: s.keepLost})
	if err == nil {
		s.applied, s.decision = false, nil
		t.forgetEmpty(s)
	}
	t.settleHealth()
	t.tellAgain(&stats)
	return stats, err
}

// Hold says that a Service is held: it stays as it is until the next Apply. Its frontends that the decision, what it is listed as,
// does not ask for, it loses to Services that do. A Service that is not listed asks for none.
func (t *Tables) Hold(listed lb.Decision) Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all Stats
	if s := t.services[listed.Service]; s != nil {
		has, asked := t.claims.all(s), wishes(&listed)
		for i := range has {
			has[i].held = !among(asked, has[i].key)
		}
		for _, heir := range t.claims.set(s, has) {
			all.add(t.inherit(heir))
		}
	}
	t.settleHealth()
	t.tellAgain(&all)
	return all
}

// Again returns the Services that are to be decided and applied again and that no Stats named: Reclaim may find some.
func (t *Tables) Again() []lb.ServiceName {
	t.mu.Lock()
	defer t.mu.Unlock()
	var stats Stats
	t.tellAgain(&stats)
	return stats.Again
}

// tellAgain hands out the Services that are to be decided again.
func (t *Tables) tellAgain(stats *Stats) {
	if len(t.again) > 0 {
		stats.Again = slices.SortedFunc(maps.Keys(t.again), lb.ServiceName.Compare)
		clear(t.again)
	}
}

func (t *Tables) apply(d *lb.Decision) (Stats, error) {
	s := t.service(d.Service)
	t.loadsChange(s)
	s.ejection, s.keepLost, s.balancing = d.Ejection, d.KeepLost, d.Balancing
	t.applying = s
	defer func() { t.applying = nil }()
	wanted := wishes(d)
	before := slices.DeleteFunc(t.claims.all(s), func(w wish) bool { return !among(wanted, w.key) }) // what one that does not fit goes on having
	var all Stats
	for _, heir := range t.claims.set(s, wanted) {
		all.add(t.inherit(heir))
	}
	stats, err := t.publish(s, d, wanted)
	all.add(stats)
	all.Problems = t.claims.problems(s)
	if err != nil { // what it took over before that goes back
		for i := range before {
			before[i].held = d.Held
		}
		for _, heir := range t.claims.set(s, before) {
			if t.lacks(heir) {
				all.add(t.inherit(heir))
			}
		}
		t.forgetEmpty(s)
	}
	return all, err
}

// service finds or makes what is known of a Service.
func (t *Tables) service(name lb.ServiceName) *service {
	s := t.services[name]
	if s == nil {
		s = &service{name: name}
		t.services[name] = s
	}
	return s
}

// lacks says whether another Service, or none, is served at a frontend that is this one's.
func (t *Tables) lacks(s *service) bool {
	for _, key := range s.keys {
		f := t.frontends[key]
		if t.claims.owner(key) == s && (f == nil || f.port == nil || f.port.service != s) {
			return true
		}
	}
	return false
}

// inherit publishes a Service again that got a frontend or lost one by another Service's change. If it does not fit, the other's
// change has not failed: it is one of Problems, and Reclaim tries it again. The decision of a Service that had all its frontends
// until now is not kept here; the caller has to decide again.
func (t *Tables) inherit(s *service) Stats {
	t.caughtUp(s)
	if s.decision == nil {
		if s.applied {
			t.again[s.name] = true
		}
		return Stats{}
	}
	stats, err := t.publish(s, s.decision, wishes(s.decision))
	if err != nil {
		t.behind[s.name] = err
		t.claims.dirty = true
	}
	return stats
}

// caughtUp forgets that a Service could not take over a frontend.
func (t *Tables) caughtUp(s *service) {
	if _, behind := t.behind[s.name]; behind {
		delete(t.behind, s.name)
		t.claims.dirty = true
	}
}

func (t *Tables) publish(s *service, d *lb.Decision, wanted []wish) (Stats, error) {
	t.loadsChange(s)
	c, err := t.prepare(s, d, wanted)
	if full := (*FullError)(nil); errors.As(err, &full) {
		return Stats{Backends: t.settleStates(s, d)}, err
	}
	if err != nil {
		return Stats{}, err
	}
	if err := c.commit(); err != nil {
		return c.stats, c.named(err)
	}
	t.caughtUp(s)
	s.applied, s.decision = true, nil
	if s.waits > 0 {
		s.decision = d
	}
	slices.SortFunc(c.displaced, func(a, b *service) int { return a.name.Compare(b.name) })
	for _, loser := range slices.Compact(c.displaced) {
		if loser == t.applying {
			continue // its turn comes
		}
		c.stats.add(t.inherit(loser))
	}
	return c.stats, nil
}

// Published lists the Services that have something in the tables or were published without anything, sorted.
func (t *Tables) Published() []lb.ServiceName {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := make([]lb.ServiceName, 0, len(t.services))
	for name, s := range t.services {
		if s.published() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, lb.ServiceName.Compare)
	return names
}

// Serving are the Services of Published, true for those with an active backend.
func (t *Tables) Serving() map[lb.ServiceName]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	serving := make(map[lb.ServiceName]bool, len(t.services))
	for name, s := range t.services {
		if s.published() {
			serving[name] = s.any(func(b *backend) bool { return b.row.State == stateActive })
		}
	}
	return serving
}

// published says whether the Service was published, or has frontends, endpoints or source ranges.
func (s *service) published() bool {
	if s.applied {
		return true
	}
	for _, p := range s.ports {
		if len(p.frontends) > 0 {
			return true
		}
		for _, since := range p.ranges {
			if since.IsZero() {
				return true
			}
		}
	}
	return s.any(func(b *backend) bool { return !gone(b.row.State) })
}

// any says whether the Service has such a backend.
func (s *service) any(is func(*backend) bool) bool {
	for _, p := range s.ports {
		for i := range p.backends {
			if is(&p.backends[i]) {
				return true
			}
		}
	}
	return false
}

func (s *Stats) add(o Stats) {
	s.Frontends += o.Frontends
	s.Records += o.Records
	s.Slots += o.Slots
	s.SlotRuns += o.SlotRuns
	s.Backends += o.Backends
	s.SourceRanges += o.SourceRanges
	s.Names += o.Names
	s.AddressFilter += o.AddressFilter
	s.Counters += o.Counters
	s.Moved = s.Moved || o.Moved
	s.Noted = append(s.Noted, o.Noted...)
}
