// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"math"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// What the kernel refuses half-way is told, leaves no torn view, and is made good by the next try.
func TestARefusedWriteIsMadeGoodByTheNextTry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		refused := errors.New("out of memory")
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			step := drawStep(t, decisions)
			s.refuseAfter(rapid.IntRange(0, 20).Draw(t, "writes"), refused)
			err := step(b)
			s.refuseAfter(math.MaxInt, nil)
			if err != nil && !errors.Is(err, refused) {
				t.Fatal(err)
			}
			for key, got := range allAnswers(s) {
				if !shared(key) && got != answers(decisions)[key] && err == nil {
					t.Fatalf("%s answers %q", keyText(key), got)
				}
			}
			if err != nil {
				reapply(t, b, decisions)
			}
		}
		b.later()
		reapply(t, b, decisions)
		b.later()
		cold := newBench(t, memoryStore(tinySizes()))
		reapply(t, cold, decisions)
		if got, want := text(t, b.Tables), text(t, cold.Tables); got != want {
			t.Fatalf("after refusals:\n%s\ncold start:\n%s", got, want)
		}
		consistent(t, b.Tables)
		if drift, err := b.Audit(false); err != nil || len(drift) > 0 {
			t.Fatalf("drift %v (%v)", drift, err)
		}
	})
}

// An endpoint that came back stays when the commit that brought it back is refused half-way: the records that name it by then
// are in force, also when nobody tries again within the grace.
func TestAnEndpointThatComesBackInARefusedChangeStays(t *testing.T) {
	b := newTables(t, tinySizes())
	b.apply(t, made(1, active(1, 2)...))
	b.apply(t, made(1, active(2)...))
	back := made(1, active(1, 2)...)
	addFrontend(&back, back.Frontends[0].Internal, lb.KindExternalIP, netip.MustParseAddrPort("192.0.2.1:80"))
	refused := errors.New("out of memory")
	b.store.refuseAfter(2, refused) // both frontends are put, the external address is not
	if _, err := b.Apply(back); !errors.Is(err, refused) {
		t.Fatalf("error %v, want %v", err, refused)
	}
	b.store.refuseAfter(math.MaxInt, nil)
	if drift, err := b.Audit(false); err != nil || len(drift) > 0 {
		t.Errorf("drift %v (%v): the mirror is not what was written", drift, err)
	}
	b.later()
	key := keyOf(back.Frontends[0].Key)
	if got, want := look(b.store, key), answers(map[lb.ServiceName]lb.Decision{back.Service: back})[key]; got != want {
		t.Errorf("%s answers %q, want %q", keyText(key), got, want)
	}
}

// A Service that lost a frontend to one whose change is then refused gets it back, whether that one comes again or goes.
func TestAFrontendGoesBackWhenItsNewOwnersChangeIsRefused(t *testing.T) {
	contested := func(n int) lb.Decision {
		d := made(n, active(n)...)
		addFrontend(&d, d.Frontends[0].Internal, lb.KindExternalIP, netip.MustParseAddrPort("192.0.2.1:80"))
		return d
	}
	b := newTables(t, tinySizes())
	second := contested(2)
	b.apply(t, second)
	key := keyOf(second.Frontends[1].Key)
	want := answers(map[lb.ServiceName]lb.Decision{second.Service: second})[key]
	refused := errors.New("out of memory")
	b.store.refuseAfter(5, refused) // three names and both frontends are put, the addresses are not
	if _, err := b.Apply(contested(1)); !errors.Is(err, refused) {
		t.Fatalf("error %v, want %v", err, refused)
	}
	if got := look(b.store, key); got == want {
		t.Fatalf("%s answers %q: the change was refused too early to show anything", keyText(key), got)
	}
	b.store.refuseAfter(math.MaxInt, nil)
	b.later()
	if got := look(b.store, key); got != want {
		t.Errorf("%s answers %q, want %q", keyText(key), got, want)
	}
	if _, err := b.Remove(serviceNumber(1)); err != nil {
		t.Fatal(err)
	}
	if got := look(b.store, key); got != want {
		t.Errorf("after the other one's removal %s answers %q, want %q", keyText(key), got, want)
	}
}

// The id of an endpoint is not given back while a record in force names it: here that of a frontend which waited for a new
// owner that was refused, after a change of its own had been.
func TestAnEndpointThatARecordInForceNamesKeepsItsID(t *testing.T) {
	decision := func(n, host int, external ...string) lb.Decision {
		d := made(n, active(host)...)
		for _, where := range external {
			addFrontend(&d, d.Frontends[0].Internal, lb.KindExternalIP, netip.MustParseAddrPort(where))
		}
		return d
	}
	b := newTables(t, tinySizes())
	refuse := func(writes int, d lb.Decision) {
		t.Helper()
		refused := errors.New("out of memory")
		b.store.refuseAfter(writes, refused)
		if _, err := b.Apply(d); !errors.Is(err, refused) {
			t.Fatalf("error %v, want %v", err, refused)
		}
		b.store.refuseAfter(math.MaxInt, nil)
	}
	b.apply(t, decision(1, 1, "192.0.2.2:80"))
	b.apply(t, decision(2, 2, "192.0.2.1:80", "192.0.2.2:80"))
	refuse(4, decision(2, 3, "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80")) // a name and three frontends are written
	refuse(4, decision(1, 4, "192.0.2.1:80"))                                 // the heir has tidied up; nothing of this one is written
	id := b.ids(t)["10.244.0.3:8080 gone"]
	number, _, _ := b.store.frontends.get(keyOf(lb.FrontendKey{Address: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: lb.TCP}))
	first := read[recordValue](b.store.records, number).Sides[0].Tiers[0].First
	if id == 0 || b.store.slots.load(first, 0) != id {
		t.Fatalf("slot %d names %d, not the removed endpoint %d: the changes were refused elsewhere", first, b.store.slots.load(first, 0), id)
	}
	b.later()
	if got := b.ids(t)["10.244.0.3:8080 gone"]; got != id {
		t.Errorf("id %d was given back though a record in force names it", id)
	}
	b.apply(t, decision(2, 2, "192.0.2.1:80"))
	b.later()
	if len(b.gone) > 0 {
		t.Errorf("%d removed endpoints are left", len(b.gone))
	}
}
