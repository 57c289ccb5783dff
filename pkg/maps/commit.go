// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// commit writes the change, make before break: whatever a record will name exists before the one update that puts the
// record in force, and what only the old records named goes after it. After each write the mirror says what the tables hold,
// so that a failure between two of them leaves something that the next change mends.
func (c *change) commit() error {
	t := c.t
	t.services[c.decision.Service] = c.service
	steps := []func() error{c.writeNames, c.writeBackends, c.addRanges, c.writeRuns, c.putFrontends, c.dropFrontends,
		c.settleBackends, c.removeRanges}
	if len(t.frontends)+len(c.frontends) > int(t.store.sizes.Frontends) {
		steps[4], steps[5] = steps[5], steps[4] // no room for both: those that go anyway go first
	}
	var failed error
	for _, step := range steps {
		if failed = step(); failed != nil {
			break
		}
	}
	c.leaveUnused()
	if failed == nil {
		c.service.decision = c.decision
	}
	return failed
}

// put explains why an entry could not be put: the table may have no room though we counted some, as others wrote to it.
func put(what string, err error, table string, limit uint32) error {
	if errors.Is(err, errFull) {
		return errFullTable{table, limit}
	}
	return fmt.Errorf("put %s: %w", what, err)
}

func (c *change) writeNames() error {
	for _, p := range c.ports {
		c.service.ports[p.name] = p
	}
	for i, n := range c.names {
		if err := c.t.store.names.put(n.key(), n.text); err != nil {
			c.unname(c.names[i:])
			return put("name "+n.text, err, bpf.NearlbMapNames, c.t.store.sizes.Names)
		}
		c.stats.Names++
		if n.kind != servicePortName {
			continue
		}
		if err := c.zero(c.t.store.serviceCounters.zero, n.id); err != nil {
			c.unname(c.names[i+1:])
			return err
		}
	}
	return nil
}

// unname forgets names that did not get into the table.
func (c *change) unname(unwritten []*named) {
	for _, n := range unwritten {
		c.t.names.forget(n)
		for _, p := range c.ports {
			if p.named == n {
				delete(c.service.ports, p.name)
			}
		}
	}
}

func (c *change) zero(counter func(uint32) error, id uint32) error {
	if err := counter(id); err != nil {
		return fmt.Errorf("set counters %d to zero: %w", id, err)
	}
	c.stats.Counters++
	return nil
}

func (c *change) writeBackends() error {
	for _, w := range c.backends {
		if w.fresh {
			if err := c.introduce(w); err != nil {
				return err
			}
		}
		row, order := w.before()
		w.wrote = write(c.t.store.backends, w.b.id, row, order...)
		c.t.register(w, row)
	}
	return nil
}

// introduce readies what belongs to a fresh backend id: its address's bit and, when another had the id, its counters.
func (c *change) introduce(w *backendChange) error {
	if w.to.Generation > 1 {
		if err := c.zero(c.t.store.backendCounters.zero, w.b.id); err != nil {
			return err
		}
	}
	c.needBit(backendBit(AddrPortOf(w.to)))
	return nil
}

func (c *change) needBit(b filterBit) {
	if c.t.need(b) {
		c.stats.AddressFilter++
	}
}

func (c *change) writeRuns() error {
	for _, r := range c.runs {
		c.t.store.slots.fill(r.first, c.slots[r])
		c.stats.Slots += int(r.count)
		c.stats.SlotRuns++
		r.port.runs[r.key] = r
	}
	for _, f := range c.frontends {
		write(c.t.store.records, f.record, f.value)
		c.stats.Records++
	}
	return nil
}

// putFrontends puts the new records in force, one update each.
func (c *change) putFrontends() error {
	for len(c.frontends) > 0 {
		f := c.frontends[0]
		old := c.t.frontends[f.key]
		c.needBit(f.bit())
		if err := c.t.store.frontends.put(f.key, f.record); err != nil {
			c.t.release(f.bit())
			return put("frontend "+keyText(f.key), err, bpf.NearlbMapFrontends, c.t.store.sizes.Frontends)
		}
		c.stats.Frontends++
		c.frontends = c.frontends[1:]
		for _, r := range f.runs {
			r.refs++
		}
		if old != nil {
			c.displace(old)
		}
		c.t.frontends[f.key], f.port.frontends[f.key] = f, f
	}
	return nil
}

// displace retires the entry that a new one replaced. Another Service that lost it has to tidy up.
func (c *change) displace(old *frontend) {
	if old.port != nil && old.port.service != c.service {
		c.displaced = append(c.displaced, old.port.service.name)
	}
	c.t.disown(old)
	c.t.release(old.bit())
	c.t.retire(old)
}

// disown takes an entry from its service port.
func (t *Tables) disown(f *frontend) {
	if f.port != nil {
		delete(f.port.frontends, f.key)
	}
}

func (c *change) dropFrontends() error {
	for _, f := range c.drops {
		if err := c.t.drop(f); err != nil {
			return err
		}
		c.stats.Frontends++
	}
	return nil
}

// drop takes an entry out of the frontends table.
func (t *Tables) drop(f *frontend) error {
	if err := t.store.frontends.remove(f.key); err != nil {
		return fmt.Errorf("delete frontend %s: %w", keyText(f.key), err)
	}
	t.disown(f)
	delete(t.frontends, f.key)
	t.release(f.bit())
	t.retire(f)
	return nil
}

func (c *change) settleBackends() error {
	for _, w := range c.backends {
		if !w.fresh {
			w.wrote = w.after(c.t.store.backends) || w.wrote
			c.t.register(w, w.to)
		}
		if w.wrote {
			c.stats.Backends++
		}
	}
	return nil
}

func (c *change) addRanges() error {
	for p, wanted := range c.ranges {
		for key := range wanted {
			if _, have := p.ranges[key]; !have {
				if err := c.t.store.ranges.put(key, 1); err != nil {
					return put("source range "+prefixOf(key).String(), err, bpf.NearlbMapSourceRanges, c.t.store.sizes.SourceRanges)
				}
				c.stats.SourceRanges++
				c.t.rangeCount++
			}
			p.ranges[key] = time.Time{}
		}
	}
	return nil
}

// removeRanges takes sources back at once where the frontends go on asking. Where one does not ask any more, a program may
// still hold its old record and would drop everything: those ranges go after their grace.
func (c *change) removeRanges() error {
	for p, wanted := range c.ranges {
		for key, since := range p.ranges {
			switch {
			case wanted[key]:
			case c.lostFlag:
				if since.IsZero() {
					p.ranges[key] = c.t.now()
				}
			default:
				if err := c.t.dropRange(p, key); err != nil {
					return err
				}
				c.stats.SourceRanges++
			}
		}
	}
	return nil
}

func (t *Tables) dropRange(p *port, key rangeKey) error {
	if err := t.store.ranges.remove(key); err != nil {
		return fmt.Errorf("delete source range %s: %w", prefixOf(key), err)
	}
	delete(p.ranges, key)
	t.rangeCount--
	return nil
}

// leaveUnused gives up what a failed commit wrote and no frontend names.
func (c *change) leaveUnused() {
	now := c.t.now()
	for _, w := range c.backends {
		if w.fresh && w.b.port.backends[w.b.endpoint()] != w.b {
			c.t.backendIDs.give(w.b.id)
		}
	}
	for _, f := range c.frontends {
		c.t.records = append(c.t.records, retiredRecord{f.record, now})
	}
	for _, r := range c.runs {
		switch {
		case r.port.runs[r.key] != r: // not written
			c.t.slots.give(r.span)
		case r.refs == 0:
			c.t.retireRun(r)
		}
	}
	c.letGo()
}
