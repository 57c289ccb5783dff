// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"maps"
	"slices"
)

// frontends compares every entry and its record, and takes out what no service port owns.
func (a *audit) frontends() error {
	t := a.t
	live := maps.Collect(t.store.frontends.all())
	if err := t.store.frontends.err(); err != nil {
		return err
	}
	for _, f := range slices.Collect(maps.Values(t.frontends)) {
		number, found := live[f.key]
		delete(live, f.key)
		if err := a.frontend(f, number, found); err != nil {
			return err
		}
	}
	for key := range live {
		if err := a.note("frontends", keyText(key), "belongs to nothing", func() error { return t.store.frontends.remove(key) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) frontend(f *frontend, number uint32, found bool) error {
	t := a.t
	if f.port == nil {
		return a.note("frontends", keyText(f.key), "belongs to nothing", func() error { return t.drop(f) })
	}
	if read[recordValue](t.store.records, f.record) != f.value {
		mend := func() error { write(t.store.records, f.record, f.value); return nil }
		if err := a.note("records", keyText(f.key), "is not as it was published", mend); err != nil {
			return err
		}
	}
	put := func() error { return t.store.frontends.put(f.key, f.record) }
	switch {
	case !found:
		return a.note("frontends", keyText(f.key), "is missing", put)
	case number != f.record:
		return a.note("frontends", keyText(f.key), "names another record", put)
	}
	return nil
}

func (a *audit) ranges() error {
	t := a.t
	live := map[rangeKey]bool{}
	for key := range t.store.ranges.all() {
		live[key] = true
	}
	if err := t.store.ranges.err(); err != nil {
		return err
	}
	for _, s := range t.services {
		for _, p := range s.ports {
			for key := range p.ranges {
				if live[key] {
					delete(live, key)
					continue
				}
				entry := p.name().String() + " " + prefixOf(key).String()
				if err := a.note("source_ranges", entry, "is missing", func() error { return t.store.ranges.put(key, 1) }); err != nil {
					return err
				}
			}
		}
	}
	for key := range live {
		if err := a.note("source_ranges", prefixOf(key).String(), "belongs to nothing", func() error { return a.dropStrayRange(key) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) dropStrayRange(key rangeKey) error {
	if a.t.strays.ranges[key] {
		delete(a.t.strays.ranges, key)
		a.t.rangeCount--
	}
	return a.t.store.ranges.remove(key)
}

// filter sets bits that are missing. Those that nothing needs are no drift: connections may (Reclaim).
func (a *audit) filter() error {
	var missing []filterBit
	for b := range a.t.bits.all() {
		if !b.isSet(a.t.store.filter) {
			missing = append(missing, b)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return a.note("known_addresses", fmt.Sprintf("%d bits", len(missing)), "are missing", func() error {
		for _, b := range missing {
			b.put(a.t.store.filter, true)
		}
		return nil
	})
}
