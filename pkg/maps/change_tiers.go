// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// plannedTier remembers a tier of this change, as sides and frontends mostly share theirs.
type plannedTier struct {
	keys []lb.BackendKey
	run  *run
}

func (c *change) prepareSide(f *frontend, index int, s lb.Side) error {
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
	for _, known := range c.tiers[p] {
		if len(known.keys) == len(keys) && (&known.keys[0] == &keys[0] || slices.Equal(known.keys, keys)) {
			return known.run, nil
		}
	}
	members, err := c.members(p, keys)
	if err != nil {
		return nil, err
	}
	r, err := c.run(p, members)
	if err == nil {
		c.tiers[p] = append(c.tiers[p], plannedTier{keys, r})
	}
	return r, err
}

// members are the backends of a tier, by address and each once.
func (c *change) members(p *port, keys []lb.BackendKey) ([]*backend, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("service port %s has a tier without backends", p.name)
	}
	members := make([]*backend, 0, len(keys))
	for _, key := range keys {
		where := endpointOf(key.Address)
		b := p.backends[where]
		if b == nil {
			b = c.planned[p][where]
		}
		if b == nil {
			return nil, fmt.Errorf("service port %s has %s in a tier, which is not among its backends", p.name, key.Address)
		}
		members = append(members, b)
	}
	return inOrder(members), nil
}

// inOrder sorts backends by address, so that a set has one order.
func inOrder(members []*backend) []*backend {
	compare := func(a, b *backend) int {
		return bytes.Compare(wire(a), wire(b))
	}
	if !slices.IsSortedFunc(members, compare) {
		slices.SortFunc(members, compare)
	}
	return slices.Compact(members)
}

// wire is the address and port of a backend as they stand in the table: network byte order.
func wire(b *backend) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&b.value.Address)), len(endpoint{}))
}

func idsOf(members []*backend) []uint32 {
	all := make([]uint32, len(members))
	for i, b := range members {
		all[i] = b.id
	}
	return all
}

// runKey names the set of backends of a run.
func runKey(all []uint32) string {
	return string(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(all))), 4*len(all)))
}

// run finds a run with these backends, or reserves one: equal tiers of a service port share theirs.
func (c *change) run(p *port, members []*backend) (*run, error) {
	all := idsOf(members)
	key := runKey(all)
	old := p.runs[key]
	if old != nil {
		c.hold(old)
	}
	if old != nil && old.verified {
		return old, nil
	}
	slots := c.t.maglev(members)
	if old != nil && c.t.verify(old, slots) {
		return old, nil
	}
	first, ok := c.t.slots.take(uint32(len(slots)))
	if !ok && c.t.reclaimSpace(c.t.now()) > 0 {
		first, ok = c.t.slots.take(uint32(len(slots)))
	}
	if !ok {
		return nil, errFullTable{bpf.NearlbMapSlots, c.t.store.sizes.Slots}
	}
	r := &run{span: span{first, uint32(len(slots))}, port: p, key: key, ids: all, verified: true, sum: checksum(slots)}
	c.undo = append(c.undo, func() { c.t.slots.give(r.span) })
	c.runs, c.slots[r] = append(c.runs, r), slots
	return r, nil
}

// maglev is the table of backend ids for a tier.
func (t *Tables) maglev(members []*backend) []uint32 {
	seeds := make([]uint64, len(members))
	for i, b := range members {
		seeds[i] = decide.BackendSeed(lb.BackendKey{Address: AddrPortOf(b.value)})
	}
	slots := decide.Maglev(seeds, t.tableSize(len(members)))
	for i, member := range slots {
		slots[i] = members[member].id
	}
	return slots
}

// verify compares a restored run with what it should hold.
func (t *Tables) verify(r *run, slots []uint32) bool {
	if r.count != uint32(len(slots)) {
		return false
	}
	for i, id := range slots {
		if t.store.slots.load(r.first+uint32(i), 0) != id {
			return false
		}
	}
	r.verified, r.sum = true, checksum(slots)
	return true
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
	if c.ranges[p] == nil {
		c.ranges[p] = map[rangeKey]bool{}
	}
	for _, r := range f.SourceRanges {
		c.ranges[p][rangeOf(p.named.id, r)] = true
	}
}

// prepareRanges has nothing to reserve: ports whose last frontend goes want no ranges.
func (c *change) prepareRanges() error {
	for _, p := range c.service.ports {
		if c.ranges[p] == nil {
			c.ranges[p] = map[rangeKey]bool{}
		}
	}
	return nil
}
