// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// plannedTier remembers a tier of this change, as sides and frontends mostly share theirs.
type plannedTier struct {
	port *port
	keys []lb.BackendKey
	run  *run
}

// freshRun is a run that nothing names yet, and what is to be in it.
type freshRun struct {
	*run
	members []member
}

func (c *change) prepareSide(f *frontend, index int, s *lb.Side) error {
	setSide(&f.value, index, s)
	if s.Action != lb.Balance {
		return nil
	}
	side := &f.value.Sides[index]
	if len(s.Tiers) > len(side.Tiers) {
		return fmt.Errorf("frontend %s has %d tiers, at most %d are possible", keyText(f.key), len(s.Tiers), len(side.Tiers))
	}
	distinct := map[uint32]bool{}
	for i, tier := range s.Tiers {
		r, err := c.tier(f.port, tier.Backends)
		if err != nil {
			return err
		}
		f.runs = append(f.runs, r)
		side.Tiers[i].First, side.Tiers[i].Count = r.first, r.count
		side.TierNames[i] = tierOf(tier.Name)
		if len(s.Tiers) == 1 {
			side.Backends = uint32(len(r.ids))
			break
		}
		for _, id := range r.ids {
			distinct[id] = true
		}
		side.Backends = uint32(len(distinct))
	}
	return nil
}

// tier finds the run of slots for a list of backends, or reserves one.
func (c *change) tier(p *port, keys []lb.BackendKey) (*run, error) {
	for _, known := range c.tiers {
		if known.port == p && len(known.keys) == len(keys) && (&known.keys[0] == &keys[0] || slices.Equal(known.keys, keys)) {
			return known.run, nil
		}
	}
	members, err := c.tierMembers(p, keys)
	if err != nil {
		return nil, err
	}
	r, err := c.run(p, members)
	if err == nil {
		c.tiers = append(c.tiers, plannedTier{p, keys, r})
	}
	return r, err
}

// tierMembers are the backends of a tier, by address and each once.
func (c *change) tierMembers(p *port, keys []lb.BackendKey) ([]member, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("service port %s has a tier without backends", p.name())
	}
	var known []member
	for i := range c.members {
		if c.members[i].port == p {
			known = c.members[i].all
		}
	}
	members := make([]member, 0, len(keys))
	next := 0 // both lists are in order: mostly it is the next one
	for i := range keys {
		where := endpointOf(keys[i].Address)
		if next >= len(known) || known[next].where != where {
			found := false
			if next, found = slices.BinarySearchFunc(known, &where, func(m member, e *endpoint) int { return m.compare(e) }); !found {
				return nil, fmt.Errorf("service port %s has %s in a tier, which is not among its backends", p.name(), keys[i].Address)
			}
		}
		members = append(members, known[next])
		next++
	}
	return inOrder(members), nil
}

// inOrder sorts backends by address, so that a set has one order.
func inOrder(members []member) []member {
	compare := func(a, b member) int { return a.compare(&b.where) }
	if !slices.IsSortedFunc(members, compare) {
		slices.SortFunc(members, compare)
	}
	return slices.Compact(members)
}

func idsOf(members []member) []uint32 {
	all := make([]uint32, len(members))
	for i := range members {
		all[i] = members[i].id
	}
	return all
}

// run finds a run with these backends, or reserves one: equal tiers of a service port share theirs.
func (c *change) run(p *port, members []member) (*run, error) {
	all, shares := idsOf(members), c.t.sharesOf(weightsOf(members))
	count := uint32(c.t.tableSize(len(members)))
	inTurn := c.decision.Balancing == lb.BalanceRoundRobin
	switch {
	case shares != nil:
		count = sum(shares)
	case inTurn:
		count = uint32(len(members))
	}
	if old := p.run(all, shares, count, inTurn); old != nil {
		c.t.compareLater(old)
		c.use(old)
		return old, nil
	}
	first, ok := c.t.slots.take(count)
	for !ok && c.t.makeRoom() {
		first, ok = c.t.slots.take(count)
	}
	if !ok {
		return nil, errFullTable{bpf.NearlbMapSlots, c.t.store.sizes.Slots}
	}
	r := &run{span: span{first, count}, port: p, ids: all, shares: shares, inTurn: inTurn}
	c.undo = append(c.undo, func() { c.t.slots.give(r.span) })
	c.runs = append(c.runs, freshRun{r, members})
	return r, nil
}

func weightsOf(members []member) (weights, due []uint32) {
	weights, due = make([]uint32, len(members)), make([]uint32, len(members))
	for i := range members {
		weights[i], due[i] = members[i].weight, members[i].due
	}
	return weights, due
}

func sum(shares []uint32) (total uint32) {
	for _, share := range shares {
		total += share
	}
	return total
}

// table has the backend ids of a run's slots. members are its backends.
func (t *Tables) table(r *run, members []member) []uint32 {
	var slots []uint32
	if r.inTurn {
		slots = decide.InTurn(len(members), r.shares)
	} else {
		slots = t.maglev(members, r.shares)
	}
	for i, member := range slots {
		slots[i] = members[member].id
	}
	return slots
}

func (t *Tables) maglev(members []member, shares []uint32) []uint32 {
	seeds := make([]uint64, len(members))
	for i := range members {
		seeds[i] = decide.BackendSeed(lb.BackendKey{Address: members[i].where.addrPort()})
	}
	if shares == nil {
		return decide.Maglev(seeds, t.tableSize(len(members)))
	}
	return decide.WeightedMaglev(seeds, shares)
}

// runningSum is FNV-1a over whole words.
type runningSum uint64

func newChecksum() runningSum { return 14695981039346656037 }

func (s *runningSum) add(word uint32) { *s = (*s ^ runningSum(word)) * 1099511628211 }

func checksum(slots []uint32) uint64 {
	sum := newChecksum()
	for _, id := range slots {
		sum.add(id)
	}
	return uint64(sum)
}

// wantRanges adds a frontend's source ranges to its service port's.
func (c *change) wantRanges(p *port, f *lb.Frontend) {
	if len(f.SourceRanges) == 0 {
		return
	}
	if c.ranges == nil {
		c.ranges = map[*port]map[rangeKey]bool{}
	}
	if c.ranges[p] == nil {
		c.ranges[p] = map[rangeKey]bool{}
	}
	for _, r := range f.SourceRanges {
		c.ranges[p][rangeOf(p.id, r)] = true
	}
}

// prepareRanges has nothing to reserve: ports whose last range goes want none.
func (c *change) prepareRanges() error {
	for _, p := range c.service.ports {
		if len(p.ranges) > 0 && c.ranges[p] == nil {
			if c.ranges == nil {
				c.ranges = map[*port]map[rangeKey]bool{}
			}
			c.ranges[p] = map[rangeKey]bool{}
		}
	}
	return nil
}
