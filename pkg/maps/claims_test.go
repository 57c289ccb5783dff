// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/precedence"
)

// at is a Service whose ClusterIP is another's.
func at(n int, address string) lb.Decision {
	d := made(n, active(n)...)
	d.Frontends[0].Key.Address = netip.MustParseAddrPort(address)
	return d
}

// After a restore from elsewhere a ClusterIP may belong to another Service: the one that is held gives it up at once, whatever
// their names, whether it was applied or is only known from the tables, and takes it back when it exists again.
func TestAHeldServiceGivesItsAddressToALivingOne(t *testing.T) {
	const address = "10.96.0.77:80"
	key := keyOf(lb.FrontendKey{Address: netip.MustParseAddrPort(address), Protocol: lb.TCP})
	for _, known := range []string{"applied", "restored"} {
		for _, first := range []string{"held", "living"} {
			t.Run(known+", "+first+" first", func(t *testing.T) {
				s := memoryStore(tinySizes())
				b := newBench(t, s)
				old, living := at(1, address), at(2, address)
				b.apply(t, old)
				hold := func() {
					held := old
					held.Held = true
					b.apply(t, held)
				}
				if known == "restored" {
					b = newBench(t, s)
					hold = func() { b.applyAgain(b.Hold(lb.Decision{Service: old.Service})) }
				}
				if first == "held" {
					hold()
					b.apply(t, living)
				} else {
					b.apply(t, living)
					hold()
				}
				want := answers(map[lb.ServiceName]lb.Decision{living.Service: living})[key]
				if got := look(s, key); got != want {
					t.Errorf("%s answers %q, want the living Service's %q", address, got, want)
				}
				b.apply(t, old)
				if got, want := look(s, key), answers(map[lb.ServiceName]lb.Decision{old.Service: old})[key]; got != want {
					t.Errorf("of two that exist %s answers %q, want %q", address, got, want)
				}
			})
		}
	}
}

// A Service that is listed and held for lack of endpoints exists: it has what it asks for before one that comes second, whoever is
// first. Of what it had and asks for no more another may have need.
func TestAServiceHeldWithoutEndpointsKeepsItsAddress(t *testing.T) {
	const address, other = "10.96.0.77:80", "10.96.0.78:80"
	key := keyOf(lb.FrontendKey{Address: netip.MustParseAddrPort(address), Protocol: lb.TCP})
	for listed, keeps := range map[string]bool{address: true, other: false} {
		for _, first := range []string{"held", "living"} {
			t.Run(listed+", "+first+" first", func(t *testing.T) {
				s := memoryStore(tinySizes())
				b := newBench(t, s)
				old, living := at(1, address), at(2, address)
				b.apply(t, old)
				b = newBench(t, s)
				hold := func() {
					now := made(1)
					now.Frontends[0].Key.Address = netip.MustParseAddrPort(listed)
					b.applyAgain(b.Hold(now))
				}
				if first == "held" {
					hold()
				}
				b.apply(t, living)
				if first == "living" {
					hold()
				}
				has := living
				if keeps {
					has = old
				}
				if got, want := look(s, key), answers(map[lb.ServiceName]lb.Decision{has.Service: has})[key]; got != want {
					t.Errorf("%s answers %q, want %q", address, got, want)
				}
			})
		}
	}
}

// A held Service alone keeps what it has.
func TestAHeldServiceKeepsWhatNobodyElseAsksFor(t *testing.T) {
	b := newTables(t, tinySizes())
	d := made(1, active(1)...)
	b.apply(t, d)
	before := text(t, b.Tables)
	d.Held = true
	if stats := b.apply(t, d); stats.Total() > 0 {
		t.Errorf("wrote %+v", stats)
	}
	if stats := b.Hold(d); stats.Total() > 0 || text(t, b.Tables) != before {
		t.Errorf("wrote %+v", stats)
	}
}

// Only Services that wait for a frontend have their decisions kept; the others are named to be decided again when something of
// theirs changed hands.
func TestOnlyWhoWaitsForAFrontendHasItsDecisionKept(t *testing.T) {
	b := newTables(t, tinySizes())
	const address = "10.96.0.77:80"
	first, second := at(1, address), at(2, address)
	if stats, err := b.Tables.Apply(second); err != nil || len(stats.Again) > 0 {
		t.Fatal(stats, err)
	}
	stats, err := b.Tables.Apply(first)
	if err != nil || len(stats.Again) != 1 || stats.Again[0] != second.Service {
		t.Fatalf("got %+v (%v), want the one that lost its frontend again", stats, err)
	}
	if _, err := b.Tables.Apply(second); err != nil {
		t.Fatal(err)
	}
	if b.services[first.Service].decision != nil || b.services[second.Service].decision == nil {
		t.Error("the decision of the one that waits is kept, and that alone")
	}
	if stats, err = b.Tables.Remove(first.Service); err != nil || len(stats.Again) > 0 || stats.Frontends == 0 {
		t.Errorf("got %+v (%v), want the heir in place at once", stats, err)
	}
	if b.services[second.Service].decision != nil {
		t.Error("who waits for nothing any more has its decision kept")
	}
}

// Problems are at any time those that pkg/precedence, and with it nearlb plan, finds for the same decisions, and are not worked out again
// while nothing changes.
func TestProblemsComeAndGoWithWhatTheyAreAbout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(t, memoryStore(tinySizes()))
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			if err := drawStep(t, decisions)(b); err != nil {
				t.Fatal(err)
			}
			got := b.Problems()
			if again := b.Problems(); len(got) > 0 && &got[0] != &again[0] {
				t.Fatal("worked out again though nothing changed")
			}
			if diff := cmp.Diff(precedence.Problems(slices.Collect(maps.Values(decisions))), got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("problems, from nearlb plan's to the tables':\n%s", diff)
			}
		}
	})
}
