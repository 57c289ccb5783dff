// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// commit writes the change, make before break: whatever a record will name exists before the one update that puts the
// record in force, and what only the old records named goes after it. After each write the mirror says what is in the tables,
// so that a failure between two of them leaves something that the next change mends.
func (c *change) commit() error {
	t := c.t
	steps := []func() error{c.writeNames, c.writeBackends, c.writeWeights, c.addRanges, c.writeRuns, c.putFrontends, c.dropFrontends,
		c.settleBackends, c.removeRanges}
	if len(t.frontends)+len(c.frontends) > int(t.store.sizes.Frontends) {
		steps[5], steps[6] = steps[6], steps[5] // no room for both: those that go anyway go first
	}
	var failed error
	for _, step := range steps {
		if failed = step(); failed != nil {
			break
		}
	}
	c.leaveUnused()
	for _, p := range c.service.ports {
		t.lookAt(p)
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
	for i, n := range c.names {
		if err := c.writeName(n.key(), n.text); err != nil {
			c.unname(c.names[i:], c.ports)
			return err
		}
	}
	for i, p := range c.ports {
		if err := c.writeName(p.nameKey(), p.name().String()); err != nil {
			c.unname(nil, c.ports[i:])
			return err
		}
		c.service.ports = append(c.service.ports, p)
		if c.t.unused {
			continue
		}
		if err := c.zero(c.t.store.serviceCounters.zero, p.id); err != nil {
			c.unname(nil, c.ports[i+1:])
			return err
		}
	}
	return nil
}

func (c *change) writeName(key nameKey, text string) error {
	if err := c.t.store.names.put(key, text); err != nil {
		return put("name "+text, err, bpf.NearlbMapNames, c.t.store.sizes.Names)
	}
	c.stats.Names++
	return nil
}

func (p *port) nameKey() nameKey { return nameKey{Kind: servicePortName, Id: p.id} }

// unname forgets names that did not get into the table.
func (c *change) unname(names []*named, ports []*port) {
	for _, n := range names {
		c.t.names.forget(n)
	}
	for _, p := range ports {
		c.t.names.give(servicePortName, p.id)
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
	for _, m := range c.members {
		m.port.grow(len(m.all) - len(m.port.backends))
	}
	for i := range c.backends {
		w := &c.backends[i]
		if w.fresh {
			if err := c.introduce(w); err != nil {
				return err
			}
		} else if w.from.ClusterOnly != w.to.ClusterOnly {
			c.needKnown(c.t.store.exposedKnown(AddrPortOf(w.to)))
		}
		row, order := w.before()
		w.wrote = write(c.t.store.backends, w.id, row, order...)
		c.t.register(w.port, w.id, row)
	}
	return nil
}

// introduce readies what belongs to a fresh backend id: its address's bits and, when another had the id, its counters.
func (c *change) introduce(w *backendChange) error {
	if w.to.Generation > 1 {
		if err := c.zero(c.t.store.backendCounters.zero, w.id); err != nil {
			return err
		}
		c.t.store.forgetAnswers(w.id)
	}
	for _, k := range c.t.store.ofBackend(&w.to) {
		c.needKnown(k)
	}
	return nil
}

func (c *change) needKnown(k known) {
	if c.t.need(k) {
		c.stats.AddressFilter++
	}
}

func (c *change) writeRuns() error {
	for _, r := range c.runs {
		if r.verified = true; c.t.filler != nil {
			c.t.filler.runs <- r
		} else {
			r.sum = c.t.fillSlots(r)
		}
		c.stats.Slots += int(r.count)
		c.stats.SlotRuns++
		r.port.runs = append(r.port.runs, r.run)
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
		moves := c.t.mayBringFlows(old, f)
		c.needKnown(c.t.knownFrontend(f))
		if err := c.t.store.frontends.put(f.key, f.record); err != nil {
			c.t.release(c.t.knownFrontend(f))
			return put("frontend "+keyText(f.key), err, bpf.NearlbMapFrontends, c.t.store.sizes.Frontends)
		}
		c.stats.Frontends++
		c.noteFrontend(old, f)
		c.frontends = c.frontends[1:]
		for _, r := range f.runs {
			r.refs++
		}
		if old != nil {
			c.displace(old)
		}
		c.t.frontends[f.key] = f
		if moves {
			c.t.frontendMoved(f)
			c.stats.Moved = true
		}
		f.port.frontends = append(f.port.frontends, f)
	}
	return nil
}

// displace retires the entry that a new one replaced. Another Service that lost it has to tidy up.
func (c *change) displace(old *frontend) {
	if old.port != nil && old.port.service != c.service {
		c.displaced = append(c.displaced, old.port.service)
	}
	c.t.disown(old)
	c.t.release(c.t.knownFrontend(old))
	c.t.retire(old)
}

// disown takes an entry from its service port.
func (t *Tables) disown(f *frontend) {
	if f.port != nil {
		f.port.frontends = without(f.port.frontends, f)
		t.lookAt(f.port)
	}
}

func (c *change) dropFrontends() error {
	for _, f := range c.drops {
		if err := c.t.drop(f); err != nil {
			return err
		}
		c.stats.Frontends++
		c.noteFrontend(f, nil)
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
	t.release(t.knownFrontend(f))
	t.retire(f)
	return nil
}

func (c *change) settleBackends() error {
	for i := range c.backends {
		w := &c.backends[i]
		if !w.fresh {
			w.wrote = w.after(c.t.store.backends) || w.wrote
			c.t.register(w.port, w.id, w.to)
		}
		if w.wrote {
			c.stats.Backends++
		}
	}
	for _, s := range c.decided {
		c.t.tunnels.note(s.id, s.decided, s.written)
	}
	c.noteBackends()
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
			if p.ranges == nil {
				p.ranges = map[rangeKey]time.Time{}
			}
			p.ranges[key] = time.Time{}
		}
	}
	return nil
}

// removeRanges takes sources back at once where the frontends go on asking. Where one does not ask any more, a program may
// still use its old record and would drop everything: those ranges go after their grace.
func (c *change) removeRanges() error {
	for p, wanted := range c.ranges {
		for key, since := range p.ranges {
			switch {
			case wanted[key]:
			case c.lostFlag:
				if since.IsZero() {
					p.ranges[key] = c.t.now()
					c.t.leaving[p] = true
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
	for i := range c.backends {
		w := &c.backends[i]
		if b := w.port.backend(wire(&w.to)); w.fresh && (b == nil || b.id != w.id) {
			c.t.backendIDs.give(w.id)
		}
	}
	for _, f := range c.frontends {
		c.t.records = append(c.t.records, retiredRecord{f.record, now})
	}
	for _, r := range c.runs {
		switch {
		case !r.verified: // not written
			c.t.slots.give(r.span)
		case r.refs == 0:
			c.t.retireRun(r.run)
		}
	}
	c.letGo()
}
