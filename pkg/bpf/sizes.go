// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Sizes are the capacities of the tables, in entries. A zero field means the default of bpf/lib/maps.h. Tables that are
// pinned already keep the size they have, unless Options.Exchange is set.
type Sizes struct {
	Frontends    uint32 // addresses with port and protocol, and one more for each service address
	Records      uint32 // frontends, and those replaced in the last seconds
	Slots        uint32 // Maglev slots of all tiers, and of those replaced in the last seconds; rounded up to whole SlotsPerLine
	Backends     uint32 // endpoints of service ports, and removed ones that connections still name
	FlowSets     uint32 // sets of 8 connections; a power of two
	Affinity     uint32 // clients remembered by session affinity
	Fragments    uint32 // fragmented packets in flight
	SourceRanges uint32 // loadBalancerSourceRanges of all service ports
	Services     uint32 // service ports
	Names        uint32 // names of service ports, nodes and zones
	Answers      uint32 // labels of names that the programs answer
}

// SlotsPerLine is SLOTS_PER_LINE of bpf/lib/types.h: how many slots one element of the table slots has.
const SlotsPerLine = uint32(len(NearlbSlotLine{}.Ids))

// hashOverhead is about what the kernel's hash keeps beside each key and value: links, the hash, a bucket. In bytes.
const hashOverhead = 64

// memoryFor is about what tables of these sizes take on a node of so many processors, in bytes, less those that take memory for what is
// in them alone.
func memoryFor(sizes Sizes, processors int) (sum uint64) {
	spec, err := parsedTables()
	if err != nil {
		return 0
	}
	for name, field := range sizes.sized() {
		m := spec.Maps[name]
		if m == nil || m.Flags&unix.BPF_F_NO_PREALLOC != 0 {
			continue
		}
		each := uint64(m.ValueSize)
		switch m.Type {
		case ebpf.PerCPUArray:
			each *= uint64(processors)
		case ebpf.Hash:
			each += uint64(m.KeySize) + hashOverhead
		}
		sum += uint64(elements(name, *field)) * each
	}
	return sum
}

// perElement is how many of what Sizes counts are in one element of a table.
func perElement(table string) uint32 {
	if table == NearlbMapSlots {
		return SlotsPerLine
	}
	return 1
}

// sized joins each field of Sizes to the tables that have it.
func (s *Sizes) sized() map[string]*uint32 {
	return map[string]*uint32{
		NearlbMapFrontends:       &s.Frontends,
		NearlbMapRecords:         &s.Records,
		NearlbMapSlots:           &s.Slots,
		NearlbMapBackends:        &s.Backends,
		NearlbMapBackendCounters: &s.Backends,
		NearlbMapBackendHealth:   &s.Backends,
		NearlbMapSynTimes:        &s.Backends,
		NearlbMapFlows:           &s.FlowSets,
		NearlbMapAffinity:        &s.Affinity,
		NearlbMapFragments:       &s.Fragments,
		NearlbMapSourceRanges:    &s.SourceRanges,
		NearlbMapServiceCounters: &s.Services,
		NearlbMapNames:           &s.Names,
		NearlbMapAnswers:         &s.Answers,
	}
}

// Of is the size of one table; nil for a table whose size is none of these.
func (s *Sizes) Of(table string) *uint32 { return s.sized()[table] }

// Max is the larger of the two for each table.
func (s Sizes) Max(other Sizes) Sizes {
	from := other.sized()
	for name, field := range s.sized() {
		*field = max(*field, *from[name])
	}
	return s
}

// DefaultSizes are those of bpf/lib/maps.h, read from the embedded object.
func DefaultSizes() Sizes {
	spec, err := parsedTables()
	if err != nil {
		return Sizes{}
	}
	var s Sizes
	for name, field := range s.sized() {
		if m := spec.Maps[name]; m != nil {
			*field = m.MaxEntries * perElement(name)
		}
	}
	return s
}

// WithDefaults fills zero fields from DefaultSizes, and rounds up what is counted in whole elements.
func (s Sizes) WithDefaults() Sizes {
	defaults := DefaultSizes()
	from := defaults.sized()
	for name, field := range s.sized() {
		if *field == 0 {
			*field = *from[name]
		}
		per := perElement(name)
		*field = elements(name, min(*field, math.MaxUint32-per+1)) * per
	}
	return s
}

// elements is how many elements a table of this size has.
func elements(table string, size uint32) uint32 {
	per := perElement(table)
	return size/per + min(size%per, 1)
}

// Check refuses what the programs cannot work with.
func (s Sizes) Check() error {
	if bits.OnesCount32(s.FlowSets) != 1 {
		return fmt.Errorf("size table flows: %d sets is not a power of two", s.FlowSets)
	}
	if s.Records < 2 || s.Backends < 2 || s.Services < 2 {
		return fmt.Errorf("size tables: records, backends and services need two entries or more, as the first is never used")
	}
	return nil
}

// apply writes the sizes into the object before it is loaded.
func (s Sizes) apply(spec *ebpf.CollectionSpec) error {
	for name, field := range s.sized() {
		m := spec.Maps[name]
		if m == nil {
			return fmt.Errorf("size table %s: the object has no such table", name)
		}
		m.MaxEntries = elements(name, *field)
	}
	sizeTags(spec)
	return nil
}

// BlocksPerOverflow is how many blocks of flows an element of flow_overflows has a bit for.
const BlocksPerOverflow = 64 * uint32(len(NearlbFlowOverflow{}.Blocks))

// sizeTags gives flow_tags an element for each block of sets, flow_overflows a bit for each, and flow_begun an element for each set.
func sizeTags(spec *ebpf.CollectionSpec) {
	sets := spec.Maps[NearlbMapFlows].MaxEntries
	spec.Maps[NearlbMapFlowBegun].MaxEntries = sets
	spec.Maps[NearlbMapFlowTags].MaxEntries, spec.Maps[NearlbMapFlowOverflows].MaxEntries = FlowBlocks(sets)
}

// FlowBlocks are how many blocks so many sets of flows make, and how many elements of flow_overflows have bits for these.
func FlowBlocks(sets uint32) (blocks, overflows uint32) {
	const perBlock = uint32(len(NearlbFlowBlock{}.Sets))
	blocks = (sets + perBlock - 1) / perBlock
	return blocks, (blocks + BlocksPerOverflow - 1) / BlocksPerOverflow
}

// Sizes reads the capacities that these tables have in the kernel.
func (m *NearlbMaps) Sizes() Sizes {
	var s Sizes
	tables := m.ByName()
	for name, field := range s.sized() {
		if t := tables[name]; t != nil {
			*field = t.MaxEntries() * perElement(name)
		}
	}
	return s
}
