// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Limits are upper bounds of tables: what the flags of the agent say. A zero field is the default one.
type Limits struct{ Sizes }

// These are as in bpf/lib/maps.h: each command has them in its flags, and would read the whole object for two numbers.
const (
	defaultAffinity  = 1 << 17
	defaultFragments = 1 << 14
)

// DefaultLimits have room for 50,000 Services with several ports and five endpoints each, several times over: they keep what
// is listed from taking a node's memory, and nothing else. Flows have no bound here: see Room.
func DefaultLimits() Limits {
	return Limits{Sizes{
		Frontends: 1 << 20, Records: 1<<20 + 1<<17, Slots: 1 << 27, Backends: 1 << 20, Affinity: defaultAffinity, Fragments: defaultFragments,
		SourceRanges: 1 << 20, Services: 1 << 18, Names: 1 << 20, Answers: 1 << 17,
	}}
}

// smallest are the sizes that tables begin with where less is listed: a cluster of a few hundred Services lives with them, and with
// four times as much a cluster of a few thousand. source_ranges takes memory for what is in it alone, so that nothing is gained by
// a smaller one.
func smallest(times uint32) Sizes {
	return Sizes{Frontends: times << 13, Records: times << 13, Slots: times << 20, Backends: times << 13, SourceRanges: 1 << 20, Services: times << 11, Names: times << 13}
}

// Room plans the sizes of tables: from what is needed, the bounds, and the node's memory.
type Room struct {
	Limits     Limits
	Memory     uint64 // of the node, in bytes
	Processors int    // that the node may have: each has counters of its own
	Spare      uint64 // bytes that tables may take though less is needed so far
}

// NewRoom fills the limits with the defaults.
func NewRoom(limits Limits, memory uint64) Room {
	defaults := DefaultLimits()
	from := defaults.sized()
	for name, field := range limits.sized() {
		if *field == 0 {
			*field = *from[name]
		}
		*field = elements(name, min(*field, math.MaxUint32-perElement(name)+1)) * perElement(name)
	}
	return Room{limits, memory, ebpf.MustPossibleCPU(), memory / spareShare}
}

// NodeMemory is how many bytes of memory this machine has.
func NodeMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// Tables that need not grow soon spare a growth, which takes as long as a start: where the node's memory allows it, the smallest ones
// are larger, and those that grow again get more than what is listed needs.
const (
	moreRoom   = 4
	spareShare = 128 // of the node's memory
)

// For are the sizes of tables for this much, with room to grow. Flows, affinity and fragments are nothing that is listed.
func (r Room) For(need Sizes) Sizes {
	least := smallest(1)
	if more := smallest(moreRoom); r.cheap(more) {
		least = more
	}
	return r.forAtLeast(least, need)
}

// cheap tells whether tables of these sizes, by what is listed, are little to the node.
func (r Room) cheap(sizes Sizes) bool {
	sizes.FlowSets, sizes.Affinity, sizes.Fragments = 0, 0, 0
	return memoryFor(sizes, r.Processors) <= r.Spare
}

func (r Room) forAtLeast(sizes, need Sizes) Sizes {
	limits, needs := r.Limits.sized(), need.sized()
	for name, field := range sizes.sized() {
		if *field == 0 {
			*field = *limits[name] // a size, and no bound
			continue
		}
		*field = min(max(*field, withRoom(*needs[name])), *limits[name])
	}
	sizes.Records = min(max(sizes.Records, sizes.Frontends), r.Limits.Records)
	if sizes.FlowSets == 0 {
		sizes.FlowSets = r.flowSets(flowShareFirst)
	}
	return sizes.WithDefaults()
}

// followed are the tables that grow with what is listed.
var followed = []string{NearlbMapFrontends, NearlbMapRecords, NearlbMapSlots, NearlbMapBackends, NearlbMapSourceRanges, NearlbMapServiceCounters, NearlbMapNames}

// Grow are the sizes that take the place of these where the need has come near one of them; the same where nothing is to grow. Each
// growth loads the programs anew, so that all tables get their room at once, and more where they grew or were made a short while ago:
// what is listed is likely to go on growing, to several times of what is used now. Flows are full where flowFill, the share of their
// places that is taken, says so.
func (r Room) Grow(have, need, used Sizes, flowFill float64, again bool) Sizes {
	next := have
	if flowFill*fullOf >= fullAt {
		next.FlowSets = max(have.FlowSets, min(2*have.FlowSets, r.mostFlowSets()))
	}
	if next == have && !r.due(have, need) {
		return next
	}
	grown := r.enlarge(next, need, withRoom)
	if !again {
		return grown
	}
	if more := r.enlarge(grown, used, func(used uint32) uint32 { return withRoom(multiple(used, moreRoom)) }); r.cheap(more) {
		return more
	}
	return r.enlarge(grown, need, func(need uint32) uint32 { return withRoom(withRoom(need)) })
}

// due tells whether a table that may grow is as good as full with this.
func (r Room) due(have, need Sizes) bool {
	limits, needs, sizes := r.Limits.sized(), need.sized(), have.sized()
	return slices.ContainsFunc(followed, func(name string) bool {
		return *sizes[name] < *limits[name] && uint64(*needs[name])*fullOf >= uint64(*sizes[name])*fullAt
	})
}

// enlarge gives each table that grows with what is listed the room that this wants, within its bound. None becomes smaller.
func (r Room) enlarge(sizes, need Sizes, room func(uint32) uint32) Sizes {
	limits, needs := r.Limits.sized(), need.sized()
	next := sizes.sized()
	for _, name := range followed {
		*next[name] = max(*next[name], min(room(*needs[name]), *limits[name]))
	}
	sizes.Records = max(sizes.Records, min(sizes.Frontends, r.Limits.Records))
	return sizes
}

func multiple(n, times uint32) uint32 { return uint32(min(uint64(n)*uint64(times), math.MaxUint32/2)) }

// A table is as good as full at four fifths.
const (
	fullAt = 4
	fullOf = 5
)

// withRoom is twice the need, and above 32,768 half as much again, rounded up so that few sizes exist.
func withRoom(need uint32) uint32 {
	wanted := 2 * uint64(need)
	if need > 1<<15 {
		wanted = uint64(need) + uint64(need)/2
	}
	if wanted < 16 {
		return 16
	}
	step := uint64(1) << (bits.Len64(wanted-1) - 3) // an eighth of the power of two above
	return uint32(min((wanted+step-1)/step*step, math.MaxUint32/2))
}

// Shares of the node's memory that flows have at first, and may have; connection tracking may take about a fiftieth. The
// fewest are 32768 flows.
const (
	flowShareFirst = 1024
	flowShareMost  = 256
	fewestFlowSets = 1 << 12
	mostFlowSets   = 1 << 20
	flowSetBytes   = 512
)

func (r Room) flowSets(share uint64) uint32 {
	sets := r.Memory / share / flowSetBytes
	if sets <= fewestFlowSets {
		return fewestFlowSets
	}
	return uint32(min(uint64(1)<<(bits.Len64(sets)-1), mostFlowSets))
}

func (r Room) mostFlowSets() uint32 {
	if r.Limits.FlowSets != 0 {
		return r.Limits.FlowSets
	}
	return r.flowSets(flowShareMost)
}

// Most is the size that a table may have at the most.
func (r Room) Most(table string) uint32 {
	if table == NearlbMapFlows {
		return r.mostFlowSets()
	}
	if field := r.Limits.sized()[table]; field != nil {
		return *field
	}
	return 0
}

// SizeFlag is the flag of the agent that bounds a table.
func SizeFlag(table string) string {
	switch table {
	case NearlbMapFlows:
		table = "flow_sets"
	case NearlbMapBackendCounters, NearlbMapBackendHealth, NearlbMapSynTimes:
		table = NearlbMapBackends
	case NearlbMapServiceCounters:
		table = "services"
	}
	return "--size-" + strings.ReplaceAll(table, "_", "-")
}

// Follow are the sizes that pinned tables should have by the flags that are sizes, and no bounds; never less than they have.
func (r Room) Follow(have Sizes) Sizes {
	limits := r.Limits.Sizes
	have.FlowSets = max(have.FlowSets, limits.FlowSets)
	have.Affinity = max(have.Affinity, limits.Affinity)
	have.Fragments = max(have.Fragments, limits.Fragments)
	have.Answers = max(have.Answers, limits.Answers)
	return have
}

// Over says which tables are larger than they should be, each as a sentence: tables do not shrink.
func (r Room) Over(have Sizes) []string {
	var all []string
	limits := r.Limits.sized()
	for name, field := range have.sized() {
		if most := *limits[name]; most != 0 && *field > most && name != NearlbMapAnswers { // it is small where nothing is to be answered
			all = append(all, fmt.Sprintf("table %s keeps its %d entries, its flag says %d (%s): `nearlb cleanup` makes room for a smaller one", name, *field, most, SizeFlag(name)))
		}
	}
	slices.Sort(all)
	return all
}
