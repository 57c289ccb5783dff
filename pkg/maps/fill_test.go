// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"
	"testing/synctest"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// Whatever happens meanwhile, tables whose slots are filled by another goroutine end as others do.
func TestTablesThatAreFilledBesideEndAsOthersDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := [2]*bench{newBench(t, memoryStore(tinySizes())), newBench(t, memoryStore(tinySizes()))}
		all[1].Defer(rapid.Bool().Draw(t, "unused"))
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			step := drawStep(t, decisions)
			for _, b := range all {
				if err := step(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		all[1].Settle()
		if got, want := text(t, all[1].Tables), text(t, all[0].Tables); got != want {
			t.Fatalf("filled beside:\n%s\nfilled first:\n%s", got, want)
		}
		if drift, err := all[1].Audit(false); err != nil || len(drift) > 0 {
			t.Fatalf("drift %v (%v)", drift, err)
		}
		consistent(t, all[1].Tables)
	})
}

// An agent that was killed meanwhile attached nothing; the next one finds slots that are not what records say.
func TestSlotsThatNobodyFilledAreFilledAfterTheNextStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		b.filler = &filler{runs: make(chan freshRun, 100)} // nobody reads it
		decisions := map[lb.ServiceName]lb.Decision{}
		for n := range 4 {
			d := drawDecision(t, n)
			decisions[d.Service] = d
			if _, err := b.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(0, len(b.filler.runs)).Draw(t, "filled") {
			b.fillSlots(<-b.filler.runs)
		}

		restarted, cold := newBench(t, s), newBench(t, memoryStore(tinySizes()))
		reapply(t, restarted, decisions)
		reapply(t, cold, decisions)
		if got, want := text(t, restarted.Tables), text(t, cold.Tables); got != want {
			t.Fatalf("after a kill:\n%s\ncold start:\n%s", got, want)
		}
		restarted.later()
		if drift, err := restarted.Audit(true); err != nil || len(drift) > 0 {
			t.Fatalf("drift %v (%v)", drift, err)
		}
		consistent(t, restarted.Tables)
	})
}

// held has the goroutine that fills slots wait after its first write, until release.
func held(b *bench) (release func()) {
	gate := make(chan struct{})
	b.store.slots.wrote = func() { <-gate }
	return func() { close(gate); synctest.Wait() }
}

func TestWhatIsPublishedDoesNotWaitForItsSlotsButItsEndDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memoryStore(tinySizes()))
		b.Defer(true)
		release := held(b)
		d := made(1, active(1, 2, 3)...)
		b.apply(t, d)
		if _, found := b.frontends[keyOf(d.Frontends[0].Key)]; !found {
			t.Error("the frontend waits for its slots")
		}
		settled := false
		go func() { b.Settle(); settled = true }()
		if synctest.Wait(); settled {
			t.Error("the end comes before the slots are filled")
		}
		if release(); !settled {
			t.Error("the end does not come")
		}
		if drift, err := b.Audit(false); err != nil || len(drift) > 0 {
			t.Errorf("drift %v (%v)", drift, err)
		}
	})
}

func TestSlotsAreNotGivenAwayBeforeTheyAreFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memoryStore(tinySizes()))
		b.Defer(true)
		release := held(b)
		b.apply(t, made(1, active(1, 2, 3)...))
		b.apply(t, made(1, active(4, 5)...))
		freed := false
		go func() { b.aMinute(); freed = true }()
		if synctest.Wait(); freed {
			t.Error("slots are free that are to be filled")
		}
		release()
		b.apply(t, made(2, active(1, 2, 3)...))
		b.Settle()
		if drift, err := b.Audit(false); err != nil || len(drift) > 0 {
			t.Errorf("drift %v (%v)", drift, err)
		}
	})
}
