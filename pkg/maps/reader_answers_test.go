// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"math"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// rowOf is the row of a backend id.
func rowOf(t *testing.T, b *bench, id uint32) BackendRow {
	t.Helper()
	for _, row := range collect(t, b.Reader().Backends()) {
		if row.ID == id {
			return row
		}
	}
	t.Fatalf("no row of backend %d", id)
	return BackendRow{}
}

// ticking is a clock of programs that says another time each time somebody sets it.
type ticking struct {
	standing
	now uint32
}

func (c *ticking) jiffies() uint32 { return c.now }

func TestABackendTellsItsLastAnswerAndItsTimesUntilAnotherEndpointHasItsPlace(t *testing.T) {
	store := memoryStore(tinySizes())
	b := newBench(t, store)
	clock := &ticking{now: 5000}
	store.clock = clock
	b.apply(t, made(1, weighted(1, 1)...))
	if row := rowOf(t, b, 1); row.LastReplySeconds != nil || row.SYN99 != nil {
		t.Errorf("it never answered: %+v", row)
	}
	b.store.health.store(1, wordAnswered, 5000)
	*b.store.syn.word(1, 9) += 10
	clock.now += 30 * clock.perSecond()
	row := rowOf(t, b, 1)
	if row.LastReplySeconds == nil || *row.LastReplySeconds != 30 || row.SYN50 == nil || row.SYN99 == nil || *row.SYN99 < *row.SYN50 {
		t.Errorf("%+v", row)
	}
	clock.now = 4999 // another processor's clock was ahead
	if row := rowOf(t, b, 1); row.LastReplySeconds == nil || *row.LastReplySeconds != 0 {
		t.Errorf("an answer of the next moment: %+v", row)
	}
	b.store.forgetAnswers(1)
	if row := rowOf(t, b, 1); row.LastReplySeconds != nil || row.SYN50 != nil {
		t.Errorf("of another endpoint: %+v", row)
	}
}

// Endpoints of less weight, as those that start slowly, have a smaller share of their tier; one that no list has, has none.
func TestBackendsTellTheirShareOfTheirTier(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	b.apply(t, made(1, weighted(9, 1, 9)...))
	rows, sum := collect(t, b.Reader().Backends()), 0.0
	for _, row := range rows {
		if row.Share == nil {
			t.Fatalf("%+v has no share", row)
		}
		sum += *row.Share
	}
	if math.Abs(sum-1) > 1e-9 || *rows[1].Share*3 > *rows[0].Share || *rows[1].Share == 0 {
		t.Errorf("shares %v, %v, %v", *rows[0].Share, *rows[1].Share, *rows[2].Share)
	}
}

// A Service's node ports may have other tiers than its cluster IP, which is whose share is told: no backend has more than all.
func TestAShareIsOfTheClusterIPsTier(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	d := made(1, weighted(1, 1)...)
	one := d.Frontends[0].Internal
	one.Tiers = []lb.Tier{{Name: lb.TierNode, Backends: one.Tiers[0].Backends[:1]}}
	addFrontend(&d, one, lb.KindNodePort, netip.MustParseAddrPort("192.0.2.1:30080"))
	b.apply(t, d)
	rows := collect(t, b.Reader().Backends())
	if sum := *rows[0].Share + *rows[1].Share; math.Abs(sum-1) > 1e-9 {
		t.Errorf("shares %v and %v", *rows[0].Share, *rows[1].Share)
	}
}
