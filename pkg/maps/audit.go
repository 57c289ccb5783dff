// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Audit compares the live tables with what was published, and with repair makes them so again (requirement C19): entries that
// somebody changed or deleted, and entries that nobody owns. Run it once every Service that exists has been applied, as
// until then a restart's entries have no owner yet. An error means that a table could not be read or written.
func (t *Tables) Audit(repair bool) ([]Drift, error) {
	all := []Drift{}
	for found, err := range t.AuditSteps(repair) {
		all = append(all, found...)
		if err != nil {
			return all, err
		}
	}
	slices.SortFunc(all, func(x, y Drift) int {
		return cmp.Or(cmp.Compare(x.Table, y.Table), cmp.Compare(x.Entry, y.Entry), cmp.Compare(x.Problem, y.Problem))
	})
	return all, nil
}

// AuditSteps is Audit for those who have other things to do meanwhile: it gives what it found one table after the other, in no
// order, and the tables may be published to between two of them. An error is the end.
func (t *Tables) AuditSteps(repair bool) iter.Seq2[[]Drift, error] {
	return func(yield func([]Drift, error) bool) {
		a := &audit{t: t, repair: repair}
		for _, step := range []func() error{a.names, a.backends, a.slots, a.frontends, a.ranges, a.filter, a.settings, a.devices, a.tunnel, a.strayServices} {
			a.found = nil
			if err := a.locked(step); err != nil {
				yield(a.found, fmt.Errorf("audit tables: %w", err))
				return
			}
			if !yield(a.found, nil) {
				return
			}
		}
	}
}

func (a *audit) locked(step func() error) error {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.t.settle()
	return step()
}

type audit struct {
	t      *Tables
	repair bool
	found  []Drift
}

// note lists a difference and mends it when asked to.
func (a *audit) note(table, entry, problem string, mend func() error) error {
	a.found = append(a.found, Drift{Table: table, Entry: entry, Problem: problem, Repaired: a.repair})
	if !a.repair {
		return nil
	}
	if err := mend(); err != nil {
		return fmt.Errorf("repair %s %s: %w", table, entry, err)
	}
	return nil
}

func (a *audit) names() error {
	t := a.t
	live := map[nameKey]string{}
	for key, text := range t.store.names.all() {
		live[key] = text
	}
	if err := t.store.names.err(); err != nil {
		return err
	}
	check := func(key nameKey, want string) error {
		text, found := live[key]
		delete(live, key)
		if found && text == want {
			return nil
		}
		return a.note("names", want, "is missing or has another id", func() error { return t.store.names.put(key, want) })
	}
	for _, places := range t.names.places {
		for text, n := range places.byText {
			if err := check(n.key(), text); err != nil {
				return err
			}
		}
	}
	for _, s := range t.services {
		for _, p := range s.ports {
			if err := check(p.nameKey(), p.name().String()); err != nil {
				return err
			}
		}
	}
	for key, text := range live {
		if err := a.note("names", text, "belongs to nothing", func() error { return a.dropName(key) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) dropName(key nameKey) error {
	if err := a.t.store.names.remove(key); err != nil {
		return err
	}
	if _, stray := a.t.strays.names[key]; stray {
		delete(a.t.strays.names, key)
		a.t.names.count--
		if numbers := a.t.names.ids[key.Kind]; numbers != nil && key.Id > 0 && key.Id < numbers.limit {
			a.renumber(key.Kind)
		}
	}
	return nil
}

// renumber gives the ids of one kind back that only strays had.
func (a *audit) renumber(kind uint32) {
	taken := &idSet{}
	add := func(id uint32) {
		if id > 0 && id < a.t.names.limits[kind] {
			taken.add(id)
		}
	}
	if kind == servicePortName {
		for _, s := range a.t.services {
			for _, p := range s.ports {
				add(p.id)
			}
		}
		for id := range a.t.strays.services {
			add(id)
		}
	} else {
		for id := range a.t.names.places[kind].byID {
			add(uint32(id))
		}
	}
	for key := range a.t.strays.names {
		if key.Kind == kind {
			add(key.Id)
		}
	}
	a.t.names.number(kind, taken)
}

func (a *audit) backends() error {
	t := a.t
	owned := &idSet{}
	for _, s := range t.services {
		for _, p := range s.ports {
			for i := range p.backends {
				b := p.backends[i]
				owned.add(b.id)
				if read[backendRow](t.store.backends, b.id) == b.row {
					continue
				}
				entry := p.name().String() + " " + AddrPortOf(b.row).String()
				mend := func() error { write(t.store.backends, b.id, b.row); return nil }
				if err := a.note("backends", entry, "is not as it was published", mend); err != nil {
					return err
				}
			}
		}
	}
	for id := uint32(1); id < t.store.backends.size; id++ {
		if owned.has(id) || uint8(t.store.backends.load(id, wordState)>>16) == stateFree || t.gone[id] != nil {
			continue
		}
		if err := a.note("backends", fmt.Sprint(id), "belongs to nothing", func() error { return a.disownBackend(id) }); err != nil {
			return err
		}
	}
	return nil
}

// disownBackend makes a stray a removed endpoint: connections may name it still.
func (a *audit) disownBackend(id uint32) error {
	t := a.t
	row, found := t.strays.backends[id]
	if !found { // somebody wrote to an entry that was free
		write(t.store.backends, id, backendRow{Generation: read[backendRow](t.store.backends, id).Generation})
		return nil
	}
	delete(t.strays.backends, id)
	row.State, row.Member = stateGone, 0
	write(t.store.backends, id, row)
	t.gone[id] = &goneBackend{row: row, since: t.now()}
	return nil
}

// slots compares by checksum. Damaged slots are written again in place: there is nothing in them to be torn.
func (a *audit) slots() error {
	t := a.t
	for _, s := range t.services {
		for _, p := range s.ports {
			for _, r := range p.runs {
				if !r.verified || t.liveSum(r) == r.sum {
					continue
				}
				mend := func() error { return a.refill(r) }
				if err := a.note("slots", fmt.Sprintf("%s [%d+%d]", p.name(), r.first, r.count), "are not as they were published", mend); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (t *Tables) liveSum(r *run) uint64 {
	sum := newChecksum()
	for i := range r.count {
		sum.add(t.store.slots.load(r.first+i, 0))
	}
	return uint64(sum)
}

func (a *audit) refill(r *run) error {
	members := r.members()
	if members == nil {
		return nil // replaced already; nobody reads it
	}
	for i, id := range a.t.table(r, members) {
		a.t.store.slots.store(r.first+uint32(i), 0, id)
	}
	return nil
}

// strayServices gives back the ids that only strays mentioned, once those are gone.
func (a *audit) strayServices() error {
	t := a.t
	if !a.repair || len(t.strays.services) == 0 || len(t.strays.backends)+len(t.strays.ranges) > 0 {
		return nil
	}
	for _, b := range t.gone {
		if b.port == nil {
			return nil
		}
	}
	clear(t.strays.services)
	a.renumber(servicePortName)
	return nil
}
