// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// Promise 2: between any two writes every frontend gives its old answer or its new one.
func TestNoReaderSeesATornView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			old := answers(decisions)
			step := drawStep(t, decisions)
			watchAnswers(t, s, old, answers(decisions), never)
			if err := step(b); err != nil {
				t.Fatal(err)
			}
			s.watch(func() {})
			if got, want := allAnswers(s, old), answers(decisions); !maps.Equal(present(got), want) {
				t.Fatalf("answers\n%v\nwant\n%v", got, want)
			}
			consistent(t, b.Tables)
		}
	})
}

// drawStep changes the decisions and gives what publishes that.
func drawStep(t *rapid.T, decisions map[lb.ServiceName]lb.Decision) func(*bench) error {
	n := rapid.IntRange(1, 3).Draw(t, "service")
	switch rapid.SampledFrom([]string{"apply", "apply", "apply", "remove", "reclaim", "a minute"}).Draw(t, "step") {
	case "remove":
		delete(decisions, serviceNumber(n))
		return func(b *bench) error { _, err := b.Remove(serviceNumber(n)); return err }
	case "a minute":
		return func(b *bench) error { b.aMinute(); return nil }
	case "reclaim":
		return func(b *bench) error { b.later(); return nil }
	}
	d := drawDecision(t, n)
	decisions[d.Service] = d
	return func(b *bench) error { _, err := b.Apply(d); return err }
}

// watchAnswers looks at every frontend after each write. A frontend that may be without an answer meanwhile is named by gap.
func watchAnswers(t *rapid.T, s *store, old, next map[frontendKey]string, gap func(frontendKey) bool) {
	s.watch(func() {
		for key, got := range allAnswers(s, old, next) {
			if got == "" && gap(key) {
				continue
			}
			if got != old[key] && got != next[key] {
				t.Fatalf("%s answers %q between two writes, neither %q nor %q", keyText(key), got, old[key], next[key])
			}
		}
	})
}

func never(frontendKey) bool { return false }

// shared frontends are asked for by several services: after a restart they come one by one, and who has such a frontend may
// give it up before the publisher hears of the next.
func shared(key frontendKey) bool {
	a := addrOf(key.Address).String()
	return a == "192.0.2.1" || a == "203.0.113.5"
}

func present(all map[frontendKey]string) map[frontendKey]string {
	maps.DeleteFunc(all, func(_ frontendKey, a string) bool { return a == "" })
	return all
}

// consistent checks what the publisher believes against itself: no slot twice, none lost, no record twice.
func consistent(t *rapid.T, tables *Tables) {
	free := newSpans(tables.store.sizes.Slots)
	used := map[*run]bool{}
	for _, r := range tables.runs {
		used[r] = true
	}
	records := map[uint32]bool{}
	for key, f := range tables.frontends {
		if records[f.record] || !slices.Contains(f.port.frontends, f) {
			t.Fatalf("frontend %s shares its record or has no owner", keyText(key))
		}
		records[f.record] = true
		for _, r := range f.runs {
			used[r] = true
		}
	}
	for r := range used {
		if !free.reserve(r.span) {
			t.Fatalf("slots %d+%d are used twice", r.first, r.count)
		}
	}
	if free.left != tables.slots.left || len(free.free) != len(tables.slots.free) {
		t.Fatalf("%d slots are free in %d runs, believed %d in %d", free.left, len(free.free), tables.slots.left, len(tables.slots.free))
	}
	if used := len(records) + len(tables.records); used != tables.recordIDs.used {
		t.Fatalf("%d records are used, believed %d", used, tables.recordIDs.used)
	}
}

type crash struct{}

// Promise 1: a publisher that died between any two writes is followed by one that, given the same objects, ends where a cold
// start ends; frontends go straight from what they did to what they should do.
func TestACrashBetweenAnyTwoWritesIsMendedByTheNextStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(0, 4).Draw(t, "steps") {
			if err := drawStep(t, decisions)(b); err != nil {
				t.Fatal(err)
			}
		}
		crashAfter(b, s, rapid.IntRange(1, 60).Draw(t, "writes"), drawStep(t, decisions))

		restarted := newBench(t, s)
		watchAnswers(t, s, allAnswers(s), answers(decisions), shared)
		reapply(t, restarted, decisions)
		s.watch(func() {})
		cold := newBench(t, memoryStore(tinySizes()))
		reapply(t, cold, decisions)
		if got, want := text(t, restarted.Tables), text(t, cold.Tables); got != want {
			t.Fatalf("after a crash:\n%s\ncold start:\n%s", got, want)
		}
		restarted.later()
		if drift, err := restarted.Audit(true); err != nil || len(drift) > 0 {
			t.Fatalf("drift %v (%v)", drift, err)
		}
		consistent(t, restarted.Tables)
		if got, want := restarted.names.count, cold.names.count; got != want {
			t.Fatalf("%d names are left over, cold start has %d", got, want)
		}
	})
}

// crashAfter runs a step and ends it after that many writes.
func crashAfter(b *bench, s *store, writes int, step func(*bench) error) {
	defer func() {
		s.watch(func() {})
		if r := recover(); r != nil && r != (crash{}) {
			panic(r)
		}
	}()
	s.watch(func() {
		if writes--; writes == 0 {
			panic(crash{})
		}
	})
	_ = step(b)
}

// reapply does what an agent does once its objects are listed.
func reapply(t *rapid.T, b *bench, decisions map[lb.ServiceName]lb.Decision) (writes int) {
	for n := range 4 {
		if d, ok := decisions[serviceNumber(n)]; ok {
			stats, err := b.Apply(d)
			if err != nil {
				t.Fatal(err)
			}
			writes += stats.Total()
		}
	}
	for _, name := range b.Published() {
		if _, ok := decisions[name]; !ok {
			stats, err := b.Remove(name)
			if err != nil {
				t.Fatal(err)
			}
			writes += stats.Total()
		}
	}
	return writes
}

// A restart changes nothing: the same decisions over the same tables cost no write and give the same dump.
func TestARestartWritesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			if err := drawStep(t, decisions)(b); err != nil {
				t.Fatal(err)
			}
		}
		b.later()
		before := text(t, b.Tables)
		restarted := newBench(t, s)
		s.watch(func() { t.Fatal("a restart wrote") })
		if writes := reapply(t, restarted, decisions); writes != 0 {
			t.Fatalf("%d writes counted", writes)
		}
		s.watch(func() {})
		if after := text(t, restarted.Tables); after != before {
			t.Fatalf("dump changed from\n%s\nto\n%s", before, after)
		}
	})
}

// Ids named by connections keep their endpoint, whatever is published meanwhile.
func TestAnIDThatAConnectionNamesIsNotUsedAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := tinySizes()
		sizes.Backends = 24 // ids are scarce
		s := memoryStore(sizes)
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		named := map[uint32]backendRow{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if err := drawStep(t, decisions)(b); err != nil {
				if _, full := asFull(err); !full {
					t.Fatal(err)
				}
			}
			if rapid.Bool().Draw(t, "connect") {
				connect(t, s, named)
			}
			for id, then := range named {
				now := read[backendRow](s.backends, id)
				if now.State == stateFree || now.Generation != then.Generation || now.Address != then.Address {
					t.Fatalf("backend %d was %v, is %v", id, then, now)
				}
			}
		}
	})
}

// connect makes a connection to some usable backend, or drops one.
func connect(t *rapid.T, s *store, named map[uint32]backendRow) {
	id := uint32(rapid.IntRange(1, int(s.sizes.Backends)-1).Draw(t, "id"))
	b := read[backendRow](s.backends, id)
	way := len(named)
	if _, again := named[id]; again || !usable(b.State) || way >= 4*flowWays {
		return
	}
	named[id] = b
	putFlow(s, uint32(way), bpf.NearlbFlow{Word: flowLive, Touched: s.clock.jiffies(), Backend: id, Generation: b.Generation, Protocol: 6,
		Seen: uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED), Service: b.Service})
}

// putFlow writes an entry, and a tag where it has none: of some hash.
func putFlow(s *store, place uint32, f bpf.NearlbFlow) {
	for i, w := range wordsOf(&f) {
		s.flows.words[int(place)*flowWords+i] = w
	}
	if f.Word&flowPhase == 0 {
		s.setTag(place, 0)
	} else if *s.tag(place) == 0 {
		s.setTag(place, 1)
	}
}
