// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
)

const gib = 1 << 30

// fiftyThousand are Services of two ports with five endpoints, of one family.
func fiftyThousand() bpf.Sizes {
	return bpf.Sizes{Frontends: 150_000, Records: 168_750, Slots: 100_000 * 509, Backends: 500_000, Services: 100_000, Names: 105_003}
}

// E8: 50,000 Services of two ports with five endpoints fit without a flag (make scale publishes them).
func TestTablesHaveRoomForTwiceWhatIsListedWithinTheirBounds(t *testing.T) {
	room := bpf.NewRoom(bpf.Limits{}, 16*gib)
	room.Processors = 128
	few, many := room.For(bpf.Sizes{}), room.For(fiftyThousand())
	if few.Services != 2048 || few.Backends != 8192 || few.Frontends != 8192 || few.Records < few.Frontends || few.Slots != 1<<20 {
		t.Errorf("a small cluster has %+v", few)
	}
	need := fiftyThousand()
	if many.Services != 163840 || many.Backends != 786432 || many.Frontends != 229376 || many.Slots < 3*need.Slots/2 || many.Slots > 1<<27 {
		t.Errorf("50,000 Services have %+v", many)
	}
	if few.FlowSets != many.FlowSets || few.FlowSets*512 != 16<<20 {
		t.Errorf("%d and %d sets of flows, want 16 MiB on a node of 16 GiB whatever is listed", few.FlowSets, many.FlowSets)
	}
	bounded := bpf.NewRoom(bpf.Limits{Sizes: bpf.Sizes{Services: 100, Slots: 100, FlowSets: 64, Affinity: 7}}, 16*gib)
	if got := bounded.For(fiftyThousand()); got.Services != 100 || got.Slots != 112 || got.FlowSets != 64 || got.Affinity != 7 || got.Backends != many.Backends {
		t.Errorf("flags for 100 services, 100 slots and 64 sets give %+v", got)
	}
	for memory, sets := range map[uint64]uint32{0: 1 << 12, 512 << 20: 1 << 12, 4 * gib: 1 << 13, 64 * gib: 1 << 17, 6000 * gib: 1 << 20} {
		if got := bpf.NewRoom(bpf.Limits{}, memory).For(bpf.Sizes{}).FlowSets; got != sets {
			t.Errorf("%d bytes of memory give %d sets of flows, want %d", memory, got, sets)
		}
	}
}

// Whatever is needed: tables never shrink, never pass their bounds, have room left below these, and are not to grow again at once.
func TestTablesThatGrewAreNotNearlyFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(most uint32, what string) uint32 { return rapid.Uint32Range(0, most).Draw(t, what) }
		needs := func(what string) bpf.Sizes {
			return bpf.Sizes{Frontends: draw(1<<21, what+" frontends"), Records: draw(1<<21, what+" records"), Slots: draw(1<<28, what+" slots"),
				Backends: draw(1<<21, what+" backends"), SourceRanges: draw(1<<21, what+" ranges"), Services: draw(1<<19, what+" services"), Names: draw(1<<21, what+" names")}
		}
		room := bpf.NewRoom(bpf.Limits{Sizes: bpf.Sizes{FlowSets: draw(1, "flows bounded") << 12}}, rapid.Uint64Range(0, 1<<42).Draw(t, "memory"))
		have, need, used, fill := room.For(needs("listed")), needs("now"), needs("used"), rapid.Float64Range(0, 1).Draw(t, "flows")
		again := rapid.Bool().Draw(t, "again")
		next := room.Grow(have, need, used, fill, again)
		limits := bpf.DefaultLimits()
		for _, name := range []string{"frontends", "records", "slots", "backends", "source_ranges", "service_counters", "names"} {
			had, has, wants, most := *have.Of(name), *next.Of(name), *need.Of(name), *limits.Of(name)
			if has < had || has > most || has < most && uint64(wants)*5 >= uint64(has)*4 {
				t.Fatalf("table %s of %d with a need of %d grows to %d (at most %d)", name, had, wants, has, most)
			}
		}
		full := 0.0
		if next.FlowSets == room.Most("flows") {
			full = 1 // they cannot grow, and make nothing else grow
		}
		if room.Grow(next, need, used, full, again) != next {
			t.Fatalf("%+v would grow again to %+v", next, room.Grow(next, need, used, full, again))
		}
		if next.FlowSets != have.FlowSets && (fill < 0.8 || next.FlowSets != 2*have.FlowSets || next.FlowSets > room.Most("flows")) {
			t.Fatalf("%d sets of flows became %d, filled by %f", have.FlowSets, next.FlowSets, fill)
		}
		if err := next.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// Each growth loads the programs anew. A cluster that is filled one Service after the other has few: one, where the node's memory allows
// tables for several times what is there.
func TestTablesThatGoOnGrowingGrowSeldom(t *testing.T) {
	for memory, most := range map[uint64]struct{ growths, backends, slots uint32 }{gib: {5, 300_000, 32 << 20}, 24 * gib: {1, 200_000, 24 << 20}} {
		room := bpf.NewRoom(bpf.Limits{}, memory)
		room.Processors = 2
		sizes, growths := room.For(bpf.Sizes{}), uint32(0)
		for backends := uint32(0); backends <= 100_000; backends += 100 {
			need := bpf.Sizes{Backends: backends, Services: backends / 10, Frontends: backends / 5, Names: backends / 10, Slots: backends / 10 * 1021}
			if next := room.Grow(sizes, need, need, 0, true); next != sizes {
				sizes, growths = next, growths+1
			}
		}
		if growths > most.growths || sizes.Backends > most.backends || sizes.Slots > most.slots {
			t.Errorf("%d GiB of memory: from nothing to 100,000 backends there were %d growths, to %+v", memory/gib, growths, sizes)
		}
	}
}

// Where all that is sized by what is listed is little to the node, a cluster of a few thousand Services never has its tables grow.
func TestSmallTablesAreLargerWhereTheNodesMemoryAllowsIt(t *testing.T) {
	for _, c := range []struct {
		memory     uint64
		processors int
		want       uint32
	}{{4 * gib, 2, 8192}, {16 * gib, 2, 32768}, {8 * gib, 64, 8192}, {64 * gib, 64, 32768}, {0, 2, 8192}} {
		room := bpf.NewRoom(bpf.Limits{}, c.memory)
		room.Processors = c.processors
		if got := room.For(bpf.Sizes{}); got.Backends != c.want || got.Frontends != c.want || got.Records < got.Frontends || got.Services != c.want/4 {
			t.Errorf("%d GiB, %d processors: %+v, want %d backends", c.memory/gib, c.processors, got, c.want)
		}
	}
	bounded := bpf.NewRoom(bpf.Limits{}, 64*gib)
	bounded.Processors, bounded.Spare = 2, 16<<20 // as a memory limit of the agent's says
	if got := bounded.For(bpf.Sizes{}); got.Backends != 8192 {
		t.Errorf("with little to spare: %+v", got)
	}
}

// Tables of connections go by the node's memory: how large they are says nothing of what the others may have.
func TestLargeTablesOfFlowsLeaveTheOthersTheirRoom(t *testing.T) {
	room := bpf.NewRoom(bpf.Limits{}, 24*gib)
	room.Processors = 2
	few := room.For(bpf.Sizes{})
	many := few
	few.FlowSets, many.FlowSets = 1<<10, 1<<22
	need := bpf.Sizes{Backends: few.Backends, Services: few.Services, Frontends: few.Frontends, Names: few.Names}
	want, got := room.Grow(few, need, need, 0, true), room.Grow(many, need, need, 0, true)
	if got.FlowSets = want.FlowSets; got != want || want.Backends <= few.Backends {
		t.Errorf("beside many flows tables grow to %+v, beside few to %+v", got, want)
	}
}

func TestTablesThatAreLargerThanTheirFlagsAreTold(t *testing.T) {
	room := bpf.NewRoom(bpf.Limits{Sizes: bpf.Sizes{Backends: 64, FlowSets: 32}}, gib)
	have := bpf.NewRoom(bpf.Limits{}, gib).For(bpf.Sizes{})
	have.FlowSets, have.Fragments = 64, 5
	told := strings.Join(room.Over(have), "\n")
	if !strings.Contains(told, "table backends keeps its 8192 entries, its flag says 64 (--size-backends)") || !strings.Contains(told, "table flows keeps its 64 ") || strings.Contains(told, "fragments") {
		t.Errorf("told:\n%s", told)
	}
	if followed := room.Follow(have); followed.FlowSets != 64 || followed.Fragments != bpf.DefaultSizes().Fragments || followed.Backends != 8192 {
		t.Errorf("the flags are followed as far as %+v", followed)
	}
}
