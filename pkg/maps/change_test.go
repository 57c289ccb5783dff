// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A change may name slots that wait for their grace and make room for others in the same breath.
func TestRoomIsNotMadeOfSlotsThatTheChangeItselfNames(t *testing.T) {
	sizes := tinySizes()
	sizes.Slots = 16 // runs of 1 and 5, and 10 free ones behind
	b := newTables(t, sizes)
	b.apply(t, made(1, active(9)...))
	b.apply(t, made(1, active(1, 2)...))
	b.apply(t, made(1, active(9)...))
	b.time = b.time.Add(2 * grace)
	mixed := made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}, ep{host: 2, state: lb.Active, near: lb.TierNode}, ep{host: 3, state: lb.Active, near: lb.TierZone}, ep{host: 4, state: lb.Active, near: lb.TierZone},
		ep{host: 5, state: lb.Active, near: lb.TierZone}, ep{host: 6, state: lb.Active, near: lb.TierZone})
	_, err := b.Apply(mixed) // the run of 5 is wanted again, one of 11 does not fit beside it
	if full, ok := asFull(err); !ok || full.Table != bpf.NearlbMapSlots {
		key := keyOf(mixed.Frontends[0].Key)
		t.Errorf("error %v, answers %q, want full slots", err, look(b.store, key))
	}
}

// A table of slots is computed and filled once there is room for it: a decision that does not fit costs none of that, each time it is tried.
func TestSlotsAreFilledAfterTheirSpaceWasTaken(t *testing.T) {
	sizes := tinySizes()
	sizes.Slots = 16
	b := newTables(t, sizes)
	b.apply(t, made(1, active(9)...))
	filled := 0
	b.store.slots.wrote = func() { filled++ }
	for range 3 {
		_, err := b.Apply(made(1, active(1, 2, 3, 4, 5, 6, 7)...))
		if full, ok := asFull(err); !ok || full.Table != bpf.NearlbMapSlots || filled > 0 {
			t.Errorf("error %v, and %d writes of slots; want full slots and none", err, filled)
		}
	}
	b.apply(t, made(1, active(1, 2)...))
	if filled == 0 {
		t.Error("what fits is not filled")
	}
}

// One change after the other of a port whose slots fill half of the table: what the last one replaced is used again as soon as no
// program holds it, without a clock that goes on.
func TestARollingUpdateNeedsTwiceItsSlots(t *testing.T) {
	sizes := tinySizes()
	sizes.Slots = 48 // runs of 19 slots: two, and ten slots
	s := memoryStore(sizes)
	waits := 0
	s.wait = func() error { waits++; return nil }
	b := newBench(t, s)
	decision := func(n int) lb.Decision { return made(1, active(n, n+1, n+2, n+3, n+4, n+5, n+6)...) }
	for n := range 20 {
		b.apply(t, decision(n))
	}
	if waits == 0 || waits > 19 {
		t.Errorf("waited %d times for 20 changes", waits)
	}
	s.wait = func() error { return errors.New("no such call") }
	var failed error
	for n := 20; n < 23 && failed == nil; n++ {
		_, failed = b.Apply(decision(n))
	}
	if full, ok := asFull(failed); !ok || full.Table != bpf.NearlbMapSlots {
		t.Errorf("error %v where programs cannot be waited for, want full slots", failed)
	}
	b.later()
	b.apply(t, decision(30))
}

// A decision that does not fit leaves the answers as they were, but new connections leave those backends that do not serve.
func TestBackendsOfAnAnswerThatCannotBeReplacedGoQuiet(t *testing.T) {
	sizes := tinySizes()
	sizes.Backends = 5
	b := newTables(t, sizes)
	b.apply(t, made(1, active(1, 2, 3)...))
	state := func(host int) string {
		where := endpointOf(hostAddress(host))
		for _, w := range b.services[serviceNumber(1)].ports {
			return bpf.StateName(read[backendRow](b.store.backends, w.backend(&where).id).State)
		}
		return ""
	}
	tooMany := append(active(1, 4, 5, 6), ep{host: 2, state: lb.Quiet, near: lb.TierCluster})
	if _, err := b.Apply(made(1, tooMany...)); err == nil {
		t.Fatal("fits")
	}
	if state(1) != "active" || state(2) != "quiet" || state(3) != "quiet" {
		t.Errorf("states %s, %s, %s, want active, quiet, quiet", state(1), state(2), state(3))
	}
	if _, err := b.Apply(made(1, active(1, 2, 4, 5, 6)...)); err == nil {
		t.Fatal("fits")
	}
	if state(2) != "active" {
		t.Errorf("a backend that is ready again is %s", state(2))
	}
	if _, err := b.Apply(made(1, active(4, 5, 6, 7)...)); err == nil {
		t.Fatal("fits")
	}
	if state(1) != "active" {
		t.Error("the last backend was taken away, with nothing in its place")
	}
	if drift, err := b.Audit(false); err != nil || len(drift) > 0 {
		t.Errorf("drift %v (%v)", drift, err)
	}
}

// The entry of an address alone rejects every port that has none of its own: it comes last and goes first, so that no client of
// a Service that comes or goes is told that the port is unknown.
func TestAnAddressEntryComesAfterItsPortsAndGoesBeforeThem(t *testing.T) {
	for range 20 { // the order of entries is drawn anew each time
		b := newTables(t, tinySizes())
		d := made(1, active(1)...)
		address := d.Frontends[0].Key.Address.Addr()
		for port := range uint16(5) {
			addFrontend(&d, d.Frontends[0].Internal, lb.KindClusterIP, netip.AddrPortFrom(address, 8000+port))
		}
		b.store.watch(func() {
			if _, found, _ := b.store.frontends.get(addressKey(address)); found && count(b.store.frontends) < 7 {
				t.Fatalf("the address is there with %d entries of 7", count(b.store.frontends))
			}
		})
		b.apply(t, d)
		if _, err := b.Remove(d.Service); err != nil {
			t.Fatal(err)
		}
	}
}

// A Service may ask that connections to its endpoints which are gone are left alone: the programs go by the state.
func TestEndpointsThatGoAreKeptWhereTheServiceAsksForIt(t *testing.T) {
	for _, keep := range []bool{false, true} {
		for name, leave := range map[string]func(*bench) error{
			"an endpoint goes": func(b *bench) error {
				d := made(1, weighted(1, 1)[1:]...)
				d.KeepLost = keep
				_, err := b.Apply(d)
				return err
			},
			"the Service goes": func(b *bench) error { _, err := b.Remove(serviceNumber(1)); return err },
		} {
			b := newBench(t, memoryStore(tinySizes()))
			d := made(1, weighted(1, 1)...)
			d.KeepLost = keep
			if _, err := b.Apply(d); err != nil {
				t.Fatal(err)
			}
			id := b.suspectOf(t, 0).ID
			if err := leave(b); err != nil {
				t.Fatal(err)
			}
			want := map[bool]uint8{false: stateGone, true: stateGoneKept}[keep]
			if got := read[backendRow](b.store.backends, id).State; got != want {
				t.Errorf("%s, keep %v: state %d, want %d", name, keep, got, want)
			}
		}
	}
}
