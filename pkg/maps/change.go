// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unique"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// change is one Service's way from what is published to a new decision: first all of it is prepared without a write, then
// all of it is written (commit). What does not fit is known before anything is written.
type change struct {
	t        *Tables
	decision *lb.Decision
	wanted   []wish // of the decision
	service  *service
	stats    Stats
	undo     []func() // gives back what was reserved

	names     []*named // fresh
	ports     []*port  // fresh
	backends  []backendChange
	decided   []decidedState // of backends of UDP
	members   []portMembers  // of the ports that the decision has backends of
	tiers     []plannedTier
	runs      []freshRun
	weighed   []*run      // whose shares were told (noteWeights)
	inUse     []*run      // published before; kept from Reclaim until the change is over
	frontends []*frontend // with a new record
	drops     []*frontend
	ranges    map[*port]map[rangeKey]bool // wanted, of ports that have or get any
	displaced []*service                  // others that lost an entry to this one
	lostFlag  bool                        // some record does not ask for source ranges any more
}

// prepare works out the whole change. On an error nothing is reserved and nothing was written.
func (t *Tables) prepare(s *service, d *lb.Decision, wanted []wish) (*change, error) {
	c := &change{t: t, decision: d, service: s, wanted: wanted}
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
	for _, w := range slices.Backward(c.backends) {
		if w.fresh {
			c.t.backendIDs.give(w.id)
		}
	}
	for _, undo := range slices.Backward(c.undo) {
		undo()
	}
	c.letGo()
}

// use keeps a run that this change will name: it may be waiting for its grace, and room may be made for another tier.
func (c *change) use(r *run) {
	r.refs++
	c.inUse = append(c.inUse, r)
}

// letGo ends all uses.
func (c *change) letGo() {
	for _, r := range c.inUse {
		c.t.unref(r)
	}
	c.inUse = nil
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
	full := &FullError{Table: table, Limit: limit, Service: c.decision.Service}
	switch table {
	case bpf.NearlbMapBackends:
		full.Wants = len(c.decision.Backends)
	case bpf.NearlbMapFrontends, bpf.NearlbMapRecords:
		full.Wants = len(c.decision.Frontends)
	}
	return full
}

// place finds or reserves the id of a node or a zone; 0 for the empty name.
func (c *change) place(kind uint32, text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	n, fresh, err := c.t.names.find(kind, text)
	if fresh {
		c.names = append(c.names, n)
		c.undo = append(c.undo, func() { c.t.names.forget(n) })
	}
	return n.number(), err
}

// port finds or reserves a service port.
func (c *change) port(key lb.PortKey) (*port, error) {
	if p := c.service.port(key); p != nil {
		return p, nil
	}
	for _, p := range c.ports {
		if p.key.Value() == key {
			return p, nil
		}
	}
	p := &port{service: c.service, key: unique.Make(key)}
	id, err := c.t.names.take(servicePortName, p.name().String())
	if err != nil {
		return nil, err
	}
	p.id = id
	c.undo = append(c.undo, func() { c.t.names.give(servicePortName, id) })
	c.ports = append(c.ports, p)
	return p, nil
}

// prepareFrontends works out the record of every frontend that the Service has, and which entries go.
func (c *change) prepareFrontends() error {
	for i := range c.wanted {
		if c.t.claims.owner(c.wanted[i].key) != c.service {
			continue
		}
		if err := c.prepareFrontend(&c.wanted[i]); err != nil {
			return err
		}
	}
	for _, p := range c.service.ports {
		for _, f := range p.frontends {
			if c.goes(f.key) {
				c.drops = append(c.drops, f)
				c.lostFlag = c.lostFlag || asksRanges(&f.value)
			}
		}
	}
	inOrder := func(a, b *frontend) int { return cmp.Compare(addressLast(a), addressLast(b)) }
	slices.SortStableFunc(c.frontends, inOrder)
	slices.SortStableFunc(c.drops, func(a, b *frontend) int { return inOrder(b, a) })
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
	owner := c.t.claims.owner(key)
	return owner == nil || owner != c.service && owner != c.t.applying
}

func asksRanges(r *recordValue) bool {
	return r.Flags&uint8(bpf.NearlbRecordFlagsRECORD_SOURCE_RANGES) != 0
}

// wayFlags are those of a record.
func wayFlags(way lb.OffNode) (flags uint8) {
	if way.Tunneled() {
		flags |= uint8(bpf.NearlbRecordFlagsRECORD_CARRY)
	}
	if way == lb.OffNodeDSR {
		flags |= uint8(bpf.NearlbRecordFlagsRECORD_DSR)
	}
	return flags
}

// serviceFlags are what a Service asks for, of each of its records.
func serviceFlags(d *lb.Decision) (flags uint8) {
	if d.RetryRefused {
		flags |= uint8(bpf.NearlbRecordFlagsRECORD_RETRY_REFUSED)
	}
	if d.KeepLost {
		flags |= uint8(bpf.NearlbRecordFlagsRECORD_KEEP_LOST)
	}
	return flags
}

// balanceOf is a record's, of how a Service balances.
var balanceOf = map[lb.Balancing]uint8{
	lb.BalanceRoundRobin:       uint8(bpf.NearlbBalanceBALANCE_ROUND_ROBIN),
	lb.BalanceLeastConnections: uint8(bpf.NearlbBalanceBALANCE_LEAST_CONNECTIONS),
}

func (c *change) prepareFrontend(w *wish) error {
	p, err := c.port(w.port)
	if err != nil {
		return err
	}
	f := &frontend{key: w.key, port: p}
	if w.frontend == nil {
		f.value = addressRecord(w.key, w.kind, p.id)
	} else {
		f.value = frontendRecord(w.frontend, p.id)
		f.value.Flags |= wayFlags(c.decision.OffNode) | serviceFlags(c.decision)
		f.value.Balance = balanceOf[c.decision.Balancing]
		if w.frontend.Key.Protocol == lb.UDP {
			f.value.UdpRetry = c.decision.UDPRetry
		}
		for i, side := range []*lb.Side{&w.frontend.Internal, &w.frontend.External} {
			if err := c.prepareSide(f, i, side); err != nil {
				return err
			}
		}
		c.wantRanges(p, w.frontend)
	}
	old := c.t.frontends[w.key]
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
	if !ok && c.t.makeRoom() {
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
