// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// moved is a clock of programs that tests move.
type moved struct {
	standing
	at *uint32
}

func (m moved) jiffies() uint32 { return *m.at }

// What other nodes have is written to backends that they told of, and to no other endpoint; it is forgotten in time, and with the endpoint.
func TestWhatOtherNodesHaveIsKnownForAWhile(t *testing.T) {
	at := uint32(0)
	s := memoryStore(tinySizes())
	s.clock = moved{at: &at}
	b := newBench(t, s)
	d := made(1, active(1, 2)...)
	d.Balancing = lb.BalanceLeastConnections
	b.apply(t, d)
	one, two := b.suspectOf(t, 1), b.suspectOf(t, 2)
	b.TellOthers([]Others{{one.ID, one.Generation, 40, 5}, {two.ID, two.Generation + 1, 50, 0}, {1 << 20, 1, 1, 0}})
	if open, known := s.others(one.ID); !known || open != 40 {
		t.Errorf("others have %d, %v, want 40", open, known)
	}
	if above := s.health.load(one.ID, wordOthers) >> othersShift; 1<<above>>1 != 8 {
		t.Errorf("5 that may have changed are told as %d", 1<<above>>1)
	}
	if open, known := s.others(two.ID); known {
		t.Errorf("others have %d, as was told of another endpoint", open)
	}
	at = 1 + othersSeconds*100
	if _, known := s.others(one.ID); !known {
		t.Error("what was told is forgotten too early")
	}
	at++
	if open, known := s.others(one.ID); known {
		t.Errorf("others have %d, as was told long ago", open)
	}
	b.TellOthers([]Others{{one.ID, one.Generation, 1 << 31, 1 << 31}})
	if open, known := s.others(one.ID); !known || open != othersCount || s.health.load(one.ID, wordOthers)>>othersShift != uint32(othersUnsure) {
		t.Errorf("very many are told as %#x, %v", s.health.load(one.ID, wordOthers), known)
	}
	s.forgetAnswers(one.ID)
	if _, known := s.others(one.ID); known {
		t.Error("another endpoint begins with what others had to the one before")
	}
}

// Backends of Services that balance by connections are listed, with what this node has of each; what came through the tunnel apart.
func TestLoadsAreThoseOfServicesThatBalanceByConnections(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	b.apply(t, made(1, active(1)...))
	all, state := b.Loads(0)
	if all != nil || state == 0 {
		t.Errorf("loads %+v of a Service that does not ask for it, %d", all, state)
	}
	b.apply(t, made(1, active(1, 2)...))
	if _, now := b.Loads(state); now != state {
		t.Error("they are listed again for a Service that does not ask for it")
	}
	d := made(2, append(active(2), ep{host: 3, state: lb.Active, near: lb.TierNode}, ep{host: 4, state: lb.Quiet, near: lb.TierCluster})...)
	d.Balancing = lb.BalanceLeastConnections
	b.apply(t, d)
	all, state = b.Loads(state)
	if len(all) != 2 || all[0].Local || !all[1].Local || all[0].Node != "n2" || all[1].Address != hostAddress(3) || all[1].Protocol != lb.TCP {
		t.Fatalf("loads %+v", all)
	}
	if again, now := b.Loads(state); again != nil || now != state {
		t.Error("they are listed again though nothing changed")
	}
	near := all[1].ID
	for place := range uint32(3) {
		b.openFlow(place, near, 0)
	}
	f := copyFlow(s.flows, 2)
	f.Flags |= flowCarried
	putFlow(s, 2, f)
	b.recount()
	s.addOpen(all[0].ID, -2)
	count := func() {
		b.CountOpen([]*Load{&all[0], &all[1]})
		if err := b.CountOpened([]*Load{&all[0], &all[1]}); err != nil {
			t.Error(err)
		}
	}
	if count(); all[0].Open != 0 || all[1].Open != 3 || all[1].Carried != 1 {
		t.Errorf("loads %+v", all)
	}
	all[1].Generation++
	s.addOpen(near, 1)
	if count(); all[1].Open != 3 {
		t.Errorf("loads of an id that is another endpoint's %+v", all)
	}
	d.Balancing = ""
	b.apply(t, d)
	if all, now := b.Loads(state); all != nil || now == state {
		t.Errorf("loads %+v of a Service that asks for it no more, %d", all, now)
	}
}

func TestAPowerOfTwoIsNotBelowWhatItStandsFor(t *testing.T) {
	for _, n := range []uint32{1, 2, 3, 4, 5, 63, 64, 65, 1 << 29, 1<<30 - 1} {
		if got := uint32(1) << powerAbove(n) >> 1; got < n || got >= 2*n {
			t.Errorf("%d for %d", got, n)
		}
	}
	if powerAbove(0) != 0 || powerAbove(1<<31) != othersUnsure {
		t.Errorf("%d for 0, %d for very many", powerAbove(0), powerAbove(1<<31))
	}
}
