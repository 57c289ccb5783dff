// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// change is one Service's way from what is published to a new decision: first all of it is prepared without a write, then
// all of it is written (commit). What does not fit is known before anything is written.
type change struct {
	t        *Tables
	decision *lb.Decision
	service  *service
	stats    Stats
	undo     []func() // gives back what was reserved

	names     []*named // fresh
	ports     []*port  // fresh
	backends  []*backendChange
	planned   map[*port]map[endpoint]*backend // fresh backends, before they are registered
	tiers     map[*port][]plannedTier
	runs      []*run // fresh
	held      []*run // published before; kept from Reclaim until the change is over
	slots     map[*run][]uint32
	frontends []*frontend // with a new record
	drops     []*frontend
	ranges    map[*port]map[rangeKey]bool // wanted
	displaced []lb.ServiceName            // others that lost an entry to this one
	lostFlag  bool                        // some record does not ask for source ranges any more
}

// prepare works out the whole change. On an error nothing is reserved and nothing was written.
func (t *Tables) prepare(d *lb.Decision) (*change, error) {
	c := &change{t: t, decision: d, planned: map[*port]map[endpoint]*backend{}, tiers: map[*port][]plannedTier{},
		slots: map[*run][]uint32{}, ranges: map[*port]map[rangeKey]bool{}}
	c.service = t.services[d.Service]
	if c.service == nil {
		c.service = &service{name: d.Service, ports: map[lb.PortName]*port{}}
	}
	for _, step := range []func() error{c.prepareBackends, c.prepareFrontends, c.prepareRanges, c.checkSpace} {
		if err := step(); err != nil {
			c.abandon()
			return nil, c.named(err)
		}
	}
	return c, nil
}

// abandon gives back what was reserved.
func (c *change) abandon() {
	for i := len(c.undo) - 1; i >= 0; i-- {
		c.undo[i]()
	}
	c.letGo()
}

// hold keeps a run that this change will name: it may be waiting for its grace, and room may be made for another tier.
func (c *change) hold(r *run) {
	r.refs++
	c.held = append(c.held, r)
}

// letGo ends all holds.
func (c *change) letGo() {
	for _, r := range c.held {
		c.t.unref(r)
	}
	c.held = nil
}

// named puts the Service's name to an error.
func (c *change) named(err error) error {
	var full errFullTable
	if errors.As(err, &full) {
		return c.full(full.table, full.limit)
	}
	return fmt.Errorf("publish service %s: %w", c.decision.Service, err)
}

func (c *change) full(table string, limit uint32) error {
	return &FullError{Table: table, Limit: limit, Service: c.decision.Service}
}

// name finds or reserves a name's id.
func (c *change) name(kind uint32, text string) (*named, error) {
	n, fresh, err := c.t.names.find(kind, text)
	if fresh {
		c.names = append(c.names, n)
		c.undo = append(c.undo, func() { c.t.names.forget(n) })
	}
	return n, err
}

// port finds or reserves a service port.
func (c *change) port(name lb.PortName) (*port, error) {
	if p := c.service.ports[name]; p != nil {
		return p, nil
	}
	for _, p := range c.ports {
		if p.name == name {
			return p, nil
		}
	}
	n, err := c.name(servicePortName, name.String())
	if err != nil {
		return nil, err
	}
	p := newPort(name, c.service, n)
	c.ports = append(c.ports, p)
	return p, nil
}

// prepareFrontends works out the record of every frontend that the Service has, and which entries go.
func (c *change) prepareFrontends() error {
	wanted := c.t.claims.byService[c.decision.Service]
	for key, wish := range wanted {
		if owner, _ := c.t.claims.owner(key); owner.service != c.decision.Service {
			continue
		}
		if err := c.prepareFrontend(key, wish); err != nil {
			return err
		}
	}
	for _, p := range c.service.ports {
		for key, f := range p.frontends {
			if c.goes(key) {
				c.drops = append(c.drops, f)
				c.lostFlag = c.lostFlag || asksRanges(&f.value)
			}
		}
	}
	inOrder := func(a, b *frontend) int { return cmp.Compare(addressLast(a), addressLast(b)) }
	slices.SortFunc(c.frontends, inOrder)
	slices.SortFunc(c.drops, func(a, b *frontend) int { return inOrder(b, a) })
	return nil
}

// addressLast orders entries that come: that of an address alone rejects unknown ports, so it follows the known ones. They go
// in the reverse order.
func addressLast(f *frontend) int {
	if isAddressKey(f.key) {
		return 1
	}
	return 0
}

// goes says whether an entry of this Service is to be deleted: nobody asks for it, or its new owner did not fit. One whose new
// owner is being published is left to that: it goes over in one update.
func (c *change) goes(key frontendKey) bool {
	owner, found := c.t.claims.owner(key)
	return !found || owner.service != c.decision.Service && owner.service != c.t.applying
}

func asksRanges(r *recordValue) bool {
	return r.Flags&uint8(bpf.NearlbRecordFlagsRECORD_SOURCE_RANGES) != 0
}

func (c *change) prepareFrontend(key frontendKey, wish claim) error {
	p, err := c.port(wish.port)
	if err != nil {
		return err
	}
	f := &frontend{key: key, port: p, value: addressRecord(key, wish.kind, p.named.id)}
	if wish.frontend != nil {
		f.value = frontendRecord(wish.frontend, p.named.id)
		for i, side := range []lb.Side{wish.frontend.Internal, wish.frontend.External} {
			if err := c.prepareSide(f, i, side); err != nil {
				return err
			}
		}
		c.wantRanges(p, wish.frontend)
	}
	old := c.t.frontends[key]
	if old != nil && old.port == p && old.value == f.value {
		return nil
	}
	if f.record, err = c.takeRecord(); err != nil {
		return err
	}
	c.lostFlag = c.lostFlag || old != nil && asksRanges(&old.value) && !asksRanges(&f.value)
	c.frontends = append(c.frontends, f)
	return nil
}

func (c *change) takeRecord() (uint32, error) {
	id, ok := c.t.recordIDs.take()
	if !ok && c.t.reclaimSpace(c.t.now()) > 0 {
		id, ok = c.t.recordIDs.take()
	}
	if !ok {
		return 0, errFullTable{bpf.NearlbMapRecords, c.t.recordIDs.limit}
	}
	c.undo = append(c.undo, func() { c.t.recordIDs.give(id) })
	return id, nil
}

// spareRecords is the part of the records that is kept for replacing others: a Service that adds frontends may not take it, as
// no Service could be changed any more.
const spareRecords = 16

// checkSpace refuses what would overfill a hash table.
func (c *change) checkSpace() error {
	added := 0
	for _, f := range c.frontends {
		if c.t.frontends[f.key] == nil {
			added++
		}
	}
	sizes, entries := c.t.store.sizes, len(c.t.frontends)-len(c.drops)+added
	if entries > int(sizes.Frontends) {
		return errFullTable{bpf.NearlbMapFrontends, sizes.Frontends}
	}
	if added > len(c.drops) && entries > int(sizes.Records-sizes.Records/spareRecords-1) {
		return errFullTable{bpf.NearlbMapRecords, sizes.Records}
	}
	fresh := 0
	for p, wanted := range c.ranges {
		for key := range wanted {
			if _, have := p.ranges[key]; !have {
				fresh++
			}
		}
	}
	if c.t.rangeCount+fresh > int(c.t.store.sizes.SourceRanges) {
		return errFullTable{bpf.NearlbMapSourceRanges, c.t.store.sizes.SourceRanges}
	}
	return nil
}
