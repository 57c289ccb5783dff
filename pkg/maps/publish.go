// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Apply publishes a decision: what differs from the one published before is written, in an order in which every packet meets
// the old backends of a frontend or the new ones. The decision must not be changed afterwards. A *FullError leaves the
// Service as it was. A frontend that another Service has first (Stats.Problems) is published when that one gives it up.
func (t *Tables) Apply(d lb.Decision) (Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.apply(&d)
}

// Remove takes a Service out. Its backends stay for the connections that name them. An unknown Service is no error.
func (t *Tables) Remove(name lb.ServiceName) (Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.services[name] == nil && t.claims.byService[name] == nil {
		return Stats{}, nil
	}
	stats, err := t.apply(&lb.Decision{Service: name})
	if s := t.services[name]; s != nil && err == nil {
		s.decision = nil
		t.forgetEmpty(s)
	}
	return stats, err
}

func (t *Tables) apply(d *lb.Decision) (Stats, error) {
	t.applying = d.Service
	defer func() { t.applying = lb.ServiceName{} }()
	before, after := t.claims.byService[d.Service], wishes(d)
	var all Stats
	for _, heir := range t.claims.set(d.Service, after) {
		all.add(t.inherit(heir))
	}
	stats, err := t.publish(d)
	all.add(stats)
	all.Problems = t.claims.problems(d.Service)
	if err != nil { // what it took over before that goes back
		for _, heir := range t.claims.set(d.Service, both(before, after)) {
			if t.lacks(heir) {
				all.add(t.inherit(heir))
			}
		}
	}
	return all, err
}

// lacks says whether another Service, or none, is served at a frontend that is this one's.
func (t *Tables) lacks(name lb.ServiceName) bool {
	for key := range t.claims.byService[name] {
		owner, _ := t.claims.owner(key)
		f := t.frontends[key]
		if owner.service == name && (f == nil || f.port == nil || f.port.service.name != name) {
			return true
		}
	}
	return false
}

// both are the claims of the old decision that the new one has too: what a Service that does not fit goes on having.
func both(before, after map[frontendKey]claim) map[frontendKey]claim {
	kept := map[frontendKey]claim{}
	for key, c := range before {
		if _, found := after[key]; found {
			kept[key] = c
		}
	}
	return kept
}

// inherit publishes a Service again that came into a frontend or lost one. That it does not fit is no failure of the Service
// whose change this comes of: it is one of Problems, and tried again by Reclaim.
func (t *Tables) inherit(name lb.ServiceName) Stats {
	delete(t.behind, name)
	s := t.services[name]
	if s == nil || s.decision == nil {
		return Stats{}
	}
	stats, err := t.publish(s.decision)
	if err != nil {
		t.behind[name] = err
	}
	return stats
}

func (t *Tables) publish(d *lb.Decision) (Stats, error) {
	c, err := t.prepare(d)
	if full := (*FullError)(nil); errors.As(err, &full) {
		return Stats{Backends: t.settleStates(d)}, err
	}
	if err != nil {
		return Stats{}, err
	}
	if err := c.commit(); err != nil {
		return c.stats, c.named(err)
	}
	delete(t.behind, d.Service)
	slices.SortFunc(c.displaced, lb.ServiceName.Compare)
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
	names := []lb.ServiceName{}
	for name, s := range t.services {
		if s.decision != nil || s.live() {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, lb.ServiceName.Compare)
	return names
}

// live says whether the Service has frontends, endpoints or source ranges.
func (s *service) live() bool {
	for _, p := range s.ports {
		if len(p.frontends) > 0 {
			return true
		}
		for _, since := range p.ranges {
			if since.IsZero() {
				return true
			}
		}
		for _, b := range p.backends {
			if b.value.State != stateGone {
				return true
			}
		}
	}
	return false
}

// Problems are the frontends that a Service asks for and another one has, of all Services, and those that it could not take
// over for want of room.
func (t *Tables) Problems() []lb.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := []lb.ServiceName{}
	for name := range t.claims.byService {
		names = append(names, name)
	}
	slices.SortFunc(names, lb.ServiceName.Compare)
	problems := []lb.Problem{}
	for _, name := range names {
		problems = append(problems, t.claims.problems(name)...)
		if err := t.behind[name]; err != nil {
			problems = append(problems, lb.Problem{Object: name.Object(), Message: err.Error()})
		}
	}
	return problems
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
}
