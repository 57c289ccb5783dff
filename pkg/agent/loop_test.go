// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

func TestNothingIsWrittenBeforeEverythingWasListed(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 3)
		b.ServiceChanged(name)
		b.NodeChanged()
		b.after(time.Hour)
		b.want()
		if s := b.status(); s.State != Starting || b.stale(time.Now()) {
			t.Errorf("state %s, stale %v; want an agent that starts and is healthy", s.State, b.stale(time.Now()))
		}
		b.Synced()
		b.settle()
		b.want("apply s1", "apply s1", "configure", "audit") // as changed, and as one of all
		if s := b.status(); s.State != Serving || s.Services != 1 || s.Dirty != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// What an earlier agent published is looked at because it is listed, and because the tables have it: once.
func TestAfterARestartEachServiceIsPublishedOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		for number := range 3 {
			b.source.set(number, 1)
			if _, err := b.tables.Tables.Apply(decide.Serve(input(number, 1), b.source.Node())); err != nil {
				t.Fatal(err)
			}
		}
		b.source.remove(serviceName(2))
		b.Synced()
		b.settle()
		b.want("apply s0", "apply s1", "remove s2", "configure", "audit")
	})
}

func TestProgramsAreToldOfServiceRangesOnlyWhenAllServicesAreThere(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.source.cidrs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
		b.source.set(1, 1)
		b.source.set(2, 1)
		b.Synced()
		b.settle()
		b.want("apply s1", "apply s2", "configure", "audit")
		if diff := cmp.Diff(b.source.cidrs[0], b.tables.config[0].ServiceCIDRs[0], cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
	})
}

// C19
func TestChangesGoOutAtOnceUntilTheyAreOftenAndThenABurstInOne(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.after(time.Minute)
		b.tables.taken()
		for i := range burst {
			b.source.set(1, 2+i%7)
			b.ServiceChanged(name)
			b.settle() // no time passes
			b.want("apply s1")
		}
		for i := range 1000 {
			b.source.set(1, i%7)
			b.ServiceChanged(name)
			b.settle()
		}
		b.want()
		b.after(testDebounce)
		b.want("apply s1")
		if n := strings.Count(dump(t, b.tables), "10.128.1."); n == 0 {
			t.Error("the last change is not in the tables")
		}
	})
}

func TestASecondChangeALittleLaterIsPublishedAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.after(time.Second)
		b.tables.taken()
		for range 100 { // of a Service that rolls: two changes, twice in a second
			b.ServiceChanged(name)
			b.settle()
			b.want("apply s1")
			b.after(20 * time.Millisecond)
			b.ServiceChanged(name)
			b.settle()
			b.want("apply s1")
			b.after(480 * time.Millisecond)
		}
	})
}

func TestAServiceThatChangesAllTheTimeIsPublishedOnceInTheDebounceTime(t *testing.T) {
	inBubble(t, func(b *bench) {
		name, other := b.source.set(1, 1), b.source.set(2, 1)
		b.Synced()
		b.settle()
		b.tables.taken()
		published := func(within time.Duration) (n int) {
			for range within / (10 * time.Millisecond) {
				b.ServiceChanged(name)
				b.after(10 * time.Millisecond)
			}
			for _, call := range b.tables.taken() {
				if call == "apply s1" {
					n++
				}
			}
			return n
		}
		if n := published(10 * time.Second); n < 100 || n > 100+burst {
			t.Errorf("%d publications in ten seconds, want one in %v and %d more", n, testDebounce, burst)
		}
		b.ServiceChanged(other)
		b.settle()
		b.want("apply s2")
		b.after(burst * testDebounce) // what it had is saved up again
		b.tables.taken()
		if n := published(burst * 10 * time.Millisecond); n != burst {
			t.Errorf("%d publications of %d changes after a pause", n, burst)
		}
	})
}

// One Service that changes waits for a few others, however many are to be looked at.
func TestAServiceThatChangesGoesBeforeThousandsThatAreLookedAt(t *testing.T) {
	const many = 300
	inBubble(t, func(b *bench) {
		for number := range many {
			b.source.set(number, 1)
		}
		step := make(chan struct{})
		b.tables.block = step
		b.Synced()
		b.settle() // the first one is being published
		last := b.source.set(many-1, 2)
		b.ServiceChanged(last)
		for range share + 1 {
			step <- struct{}{}
			b.settle()
		}
		if calls := b.tables.taken(); !slices.Contains(calls, "apply "+last.Name) {
			t.Errorf("after %d publications the Service that changed is not among them: %v", share+1, calls)
		}
		close(step)
		b.settle()
		if s := b.status(); s.Services != many || s.Dirty != 0 {
			t.Errorf("%d Services published, %d wait", s.Services, s.Dirty)
		}
	})
}

// A source that tells of thousands one by one holds up nobody either: a change of the node's zone concerns all at once.
func TestAServiceThatChangesGoesBeforeThousandsThatChangedTogether(t *testing.T) {
	const many = 300
	inBubble(t, func(b *bench) {
		for number := range many {
			b.source.set(number, 1)
		}
		b.Synced()
		b.settle()
		step := make(chan struct{})
		b.tables.block = step
		for number := range many {
			b.ServiceChanged(serviceName(number))
		}
		for range 2 * firstRoom { // some time later
			step <- struct{}{}
			b.settle()
		}
		b.tables.taken()
		last := b.source.set(many-1, 2)
		b.ServiceChanged(last)
		for range share + 1 {
			step <- struct{}{}
			b.settle()
		}
		if calls := b.tables.taken(); !slices.Contains(calls, "apply "+last.Name) {
			t.Errorf("the Service that changed is not among %v", calls)
		}
		close(step)
		b.settle()
	})
}

// However much changes, what is looked at gets its turn.
func TestWhatIsLookedAtDoesNotStarve(t *testing.T) {
	inBubble(t, func(b *bench) {
		const many = 20
		for number := range many {
			b.source.set(number, 1)
		}
		step := make(chan struct{})
		b.tables.block = step
		b.Synced()
		b.settle()
		for range many * share * 2 {
			for number := range 3 { // three new ones for each one published
				b.source.set(1000+number, 1)
				b.ServiceChanged(serviceName(1000 + number))
			}
			step <- struct{}{}
			b.settle()
		}
		if !b.done() {
			t.Error("the first publication does not end")
		}
		close(step)
		b.settle()
	})
}

// Who loses a frontend to another Service, or gets one back, is decided again: the tables keep no decision of who had all its
// frontends.
func TestAServiceWhoseFrontendChangedHandsIsDecidedAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		second := input(2, 1)
		second.Service.ClusterIPs = input(1, 1).Service.ClusterIPs
		b.source.put(second)
		b.Synced()
		b.settle()
		b.want("apply s2", "configure", "audit")
		first := b.source.set(1, 1)
		b.ServiceChanged(first)
		b.settle()
		b.want("apply s1", "apply s2")
		if p := b.tables.Problems(); len(p) != 1 || p[0].Object != second.Service.Name.Object() {
			t.Errorf("problems %v, want the second Service's", p)
		}
		first2 := input(1, 1)
		first2.Held = true // the API server lost it
		b.source.put(first2)
		b.ServiceChanged(first)
		b.after(testDebounce)
		b.want("apply s1")
		if p := b.tables.Problems(); len(p) != 1 || p[0].Object != first2.Service.Name.Object() {
			t.Errorf("problems %v, want the held Service's", p)
		}
	})
}

// What is held by its name alone gives its frontends to a Service that exists; one that is listed, and held as its endpoints are not,
// exists.
func TestAServiceHeldByNameGivesItsAddressAway(t *testing.T) {
	for listed, loser := range map[bool]lb.ServiceName{false: serviceName(1), true: serviceName(2)} {
		inBubble(t, func(b *bench) {
			old := decide.Decide(input(1, 1), lb.Node{})
			if _, err := b.tables.Tables.Apply(old); err != nil {
				t.Fatal(err)
			}
			b.source.held = map[lb.ServiceName]bool{old.Service: true}
			if listed {
				b.source.put(input(1, 0))
			}
			living := input(2, 1)
			living.Service.ClusterIPs = input(1, 1).Service.ClusterIPs
			b.source.put(living)
			b.Synced()
			b.settle()
			if p := b.tables.Problems(); len(p) != 1 || p[0].Object != loser.Object() {
				t.Errorf("listed %v: problems %v, want those of %v", listed, p, loser)
			}
		})
	}
}

func TestAFailingServiceIsTriedAgainAndTheOthersGoOn(t *testing.T) {
	inBubble(t, func(b *bench) {
		one, two := b.source.set(1, 1), b.source.set(2, 1)
		b.tables.setFailure(one, &maps.FullError{Table: "slots", Limit: 1, Service: one})
		b.Synced()
		b.settle()
		b.want("apply s1", "apply s2", "configure", "audit")
		s := b.status()
		if s.State != Serving || len(s.Failing) != 1 || s.Failing[0].Service != one || s.Failing[0].Attempts != 1 {
			t.Errorf("got %+v, want an agent that serves and one failing service", s)
		}
		b.after(10 * time.Second)
		tries := len(b.tables.taken())
		if tries < 4 || tries > 12 {
			t.Errorf("%d tries in 10 seconds, want a back-off", tries)
		}
		b.source.set(2, 2)
		b.ServiceChanged(two)
		b.settle()
		b.want("apply s2")
		b.after(10 * time.Minute)
		if b.stale(time.Now()) {
			t.Error("a failing service makes the node ill")
		}
		b.tables.setFailure(one, nil)
		b.after(retryLongest)
		if s := b.status(); len(s.Failing) != 0 || s.Dirty != 0 {
			t.Errorf("got %+v, want nothing failing", s)
		}
		b.tables.taken()
		b.after(10 * time.Minute)
		b.want()
	})
}

func TestAChangeDoesNotWaitForTheBackOffOfAnEarlierFailure(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.tables.setFailure(name, errors.New("no"))
		b.Synced()
		b.after(5 * time.Minute)
		b.tables.setFailure(name, nil)
		b.tables.taken()
		b.ServiceChanged(name)
		b.settle()
		b.want("apply s1")
	})
}

func TestServicesThatAreGoneAreRemoved(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.after(time.Second)
		b.tables.taken()
		b.source.remove(name)
		b.ServiceChanged(name)
		b.settle()
		b.want("remove s1")
		if s := b.status(); s.Services != 0 || len(b.tables.Published()) != 0 {
			t.Errorf("got %+v, published %v", s, b.tables.Published())
		}
	})
}

func TestServicesOfAnEarlierAgentThatAreGoneAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := newWitnessed()
		first := newBench(t, newScripted(), tables)
		first.source.set(1, 1)
		first.source.set(2, 1)
		first.Synced()
		first.settle()
		first.stop()
		second := newBench(t, newScripted(), tables)
		second.source.set(2, 1)
		tables.taken()
		second.after(time.Hour)
		second.want() // not yet listed: nothing is taken away
		second.Synced()
		second.settle()
		second.want("apply s2", "remove s1", "configure", "audit")
		second.stop()
	})
}

// The source tells of the Services that are concerned, one by one.
func TestANodeThatChangesIsToldToTheProgramsAndToNoServiceThatItDoesNotConcern(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.source.set(1, 2)
		b.source.set(2, 2)
		told := 0
		b.nodeChanged = func() { told++ }
		b.Synced()
		b.after(time.Minute)
		b.tables.taken()
		before := dump(t, b.tables)
		b.source.mu.Lock()
		b.source.node.Name = "n2" // another endpoint is the near one now
		b.source.node.Addresses = addresses("192.0.2.2")
		b.source.mu.Unlock()
		b.NodeChanged()
		b.ServiceChanged(serviceName(2))
		b.settle()
		b.want("configure", "apply s2")
		if c, err := b.tables.Config(); err != nil || c.Node4 != netip.MustParseAddr("192.0.2.2") {
			t.Errorf("the programs know the node as %v, %v", c.Node4, err)
		}
		if dump(t, b.tables) == before {
			t.Error("the tables are as before")
		}
		if told != 2 {
			t.Errorf("the devices' owner was told %d times, want 2", told)
		}
	})
}

func TestTablesAreAuditedAfterStartAndNowAndThen(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.tables.drift = []maps.Drift{{Table: "frontends", Entry: "x", Problem: "missing"}}
		b.Synced()
		b.settle()
		b.want("configure", "audit")
		b.after(testAudit - time.Second)
		b.want()
		b.after(time.Second)
		b.want("audit")
		if s := b.status(); s.Drift != 2 || s.LastAudit.IsZero() {
			t.Errorf("drift %d, last audit %v", s.Drift, s.LastAudit)
		}
	})
}

func TestAServiceThatChangesIsPublishedInTheMiddleOfAnAudit(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.settle()
		b.tables.taken()
		var tables atomic.Int32
		between := func() {
			switch tables.Add(1) {
			case 1:
				b.source.set(1, 2)
				b.ServiceChanged(name)
			case 3:
				b.want("audit", "apply s1")
			}
		}
		b.tables.between.Store(&between)
		b.after(testAudit)
		if tables.Load() < 3 {
			t.Errorf("an audit has %d steps", tables.Load())
		}
	})
}

// Work follows changes: an agent without any touches nothing.
func TestWhatNobodyUsesIsReclaimedAfterAChangeAndThenNothingIsDone(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.after(time.Minute)
		b.tables.taken()
		b.after(testAudit / 2)
		if calls := b.tables.taken(); len(calls) != 0 {
			t.Errorf("an idle agent did %q", calls)
		}
		b.source.remove(name)
		b.ServiceChanged(name)
		b.after(2 * time.Minute)
		if calls := b.tables.taken(); len(calls) < 3 || len(calls) > 40 || b.tables.Waiting() {
			t.Errorf("after a Service went: %q, something waits: %v", calls, b.tables.Waiting())
		}
		b.after(testAudit / 4)
		if calls := b.tables.taken(); len(calls) != 0 {
			t.Errorf("an idle agent did %q", calls)
		}
	})
}

// The pieces of a walk follow each other, and the next walk comes after half a minute.
func TestTheFlowTableIsSweptAgainAndAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.source.set(1, 1)
		b.Synced()
		b.after(3*sweepEvery + time.Second)
		if pieces := b.tables.swept.Load(); pieces != 9 {
			t.Errorf("%d pieces of three walks were swept, want 9", pieces)
		}
	})
}

// C12
func TestProgrammingLatencyIsMeasuredFromTheOldestChange(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.after(time.Minute)
		change := func(at time.Time) {
			in := input(1, 2)
			in.Triggered = at
			b.source.put(in)
			b.ServiceChanged(name)
			b.after(time.Second)
		}
		count := func() int { return histogramCount(t, b) }
		change(time.Time{})                    // unknown
		change(b.started.Add(-time.Hour))      // before the start
		change(time.Now().Add(24 * time.Hour)) // a clock ahead of ours
		if n := count(); n != 0 {
			t.Errorf("%d measured, want none", n)
		}
		b.tables.setFailure(name, errors.New("no"))
		change(time.Now())
		b.tables.setFailure(name, nil)
		b.after(retryLongest)
		if n := count(); n != 1 {
			t.Errorf("%d measured, want one, of the change that failed at first", n)
		}
	})
}

func histogramCount(t *testing.T, b *bench) int {
	t.Helper()
	return int(sample(t, b.metrics, "nearlb_network_programming_duration_seconds_count"))
}

// A17, A18: whatever happened before, the tables hold what the objects say.
func TestAnyOrderOfEventsEndsInTheSameTables(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		final := map[int]int{}
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, newScripted(), newWitnessed())
			defer b.stop()
			for range 200 {
				number := 1 + random.IntN(6)
				switch random.IntN(8) {
				case 0:
					b.source.remove(serviceName(number))
					delete(final, number)
				case 1:
					b.tables.setFailure(serviceName(number), errors.New("no"))
				case 2:
					b.tables.setFailure(serviceName(number), nil)
				case 3:
					b.Synced()
				case 4:
					b.after(time.Duration(random.IntN(300)) * time.Millisecond)
				default:
					final[number] = random.IntN(9)
					b.source.set(number, final[number])
				}
				b.ServiceChanged(serviceName(number))
			}
			for number := range 7 {
				b.tables.setFailure(serviceName(number), nil)
			}
			b.Synced()
			b.after(2 * retryLongest)
			fresh := newBench(t, newScripted(), newWitnessed())
			defer fresh.stop()
			for number, endpoints := range final {
				fresh.source.set(number, endpoints)
			}
			fresh.Synced()
			fresh.settle()
			if diff := cmp.Diff(dump(t, fresh.tables), dump(t, b.tables)); diff != "" {
				t.Errorf("seed %d: other tables than of a fresh start (-fresh +got):\n%s", seed, diff)
			}
			if s := b.status(); s.Dirty != 0 || len(s.Failing) != 0 || s.Services != len(final) {
				t.Errorf("seed %d: %+v", seed, s)
			}
		})
	}
}

func TestProblemsOfObjectsAreShown(t *testing.T) {
	inBubble(t, func(b *bench) {
		in := input(1, 1)
		in.Problems = []lb.Problem{{Object: "Service default/s1", Field: "f", Message: "m"}}
		b.source.put(in)
		b.Synced()
		b.settle()
		if s := b.status(); len(s.Problems) != 1 || s.Problems[0] != in.Problems[0] {
			t.Errorf("got %+v", s.Problems)
		}
	})
}

func TestServicesThatAReclaimFindsAreDecidedAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		b.Synced()
		b.settle()
		b.want("apply s1", "configure", "audit")
		b.tables.mu.Lock()
		b.tables.again = []lb.ServiceName{name}
		b.tables.mu.Unlock()
		b.reclaimLater()
		b.after(b.reclaimEvery)
		b.settle()
		b.want("apply s1")
	})
}

// Programs are attached once the first publication is complete, and slots are not.
func TestSlotsAreFilledBeforeTheFirstPublicationIsComplete(t *testing.T) {
	for services := range 3 {
		inBubble(t, func(b *bench) {
			for number := range services {
				b.source.set(number, 3)
			}
			b.tables.Defer(true)
			var complete []bool
			b.tables.settling = func() { complete = append(complete, b.done()) }
			b.Synced()
			b.settle()
			if len(complete) != 1 || complete[0] || !b.done() {
				t.Errorf("%d Services: settled %d times, after completion: %v", services, len(complete), complete)
			}
			b.tables.settling = nil
		})
	}
}
