// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/nearlb/nearlb/pkg/lb"
)

func TestTheRuntimesMemoryIsWhatTablesLeaveOfTheCgroups(t *testing.T) {
	const mega = 1 << 20
	for _, c := range []struct {
		all, tables uint64
		want        int64
	}{
		{1000 * mega, 0, 900 * mega},
		{1000 * mega, 300 * mega, 630 * mega},
		{1000 * mega, 900 * mega, 225 * mega},  // made by another container
		{1000 * mega, 5000 * mega, 225 * mega}, // likewise
		{math.MaxUint64, 0, 1 << 62 / 10 * 9},
	} {
		if got := memoryLimit(c.all, c.tables); got < c.want-mega || got > c.want+mega {
			t.Errorf("of %d and tables of %d: %d, want %d", c.all, c.tables, got, c.want)
		}
	}
}

func TestMemoryIsHandedBackAfterTheStartAndAfterThousandsOfChanges(t *testing.T) {
	inBubble(t, func(b *bench) {
		handed := func() bool {
			select {
			case <-b.memoryDue:
				return true
			default:
				return false
			}
		}
		for number := range 10 {
			b.source.set(number, 1)
		}
		b.worked = muchWork // as where many Services are published at first
		early := false
		audited := func() { early = early || len(b.memoryDue) > 0 }
		b.tables.between.Store(&audited)
		b.Synced()
		b.settle()
		if early || !handed() {
			t.Errorf("after the start: before the audit's end %v, or not at all", early)
		}
		for range muchWork - 1 {
			b.ServiceChanged(serviceName(1))
			b.after(time.Second)
		}
		if handed() {
			t.Error("after a few changes")
		}
		b.ServiceChanged(serviceName(1))
		b.after(time.Second)
		if !handed() {
			t.Errorf("not after %d changes", muchWork)
		}
	})
}

// With debug logs decisions are kept, and nothing else of a publication.
func TestADecisionThatIsKeptKeepsNoEndpoints(t *testing.T) {
	p := newProgress(newDiary(), allowance{}, true)
	in := input(1, 100)
	endpoints := weak.Make(&in.Endpoints[0])
	p.finish(in.Service.Name, 0, outcome{service: in.Service.Name, exists: true, input: in}, nil)
	in = lb.Input{}
	runtime.GC()
	if endpoints.Value() != nil {
		t.Error("the endpoints of a published Service are kept")
	}
	if p.services[serviceName(1)].whole == nil {
		t.Error("the decision is not")
	}
}

// Everything that is listed at first is put into the queue in pieces: when one of them is done, nothing waits, and much is left to do.
func TestAStartIsNotOverWhileSomethingListedAtFirstIsNotPublished(t *testing.T) {
	p := newProgress(newDiary(), allowance{}, false)
	one, other := input(1, 1), input(2, 1)
	p.begin([]lb.ServiceName{one.Service.Name, other.Service.Name})
	publish := func(in lb.Input) result {
		p.mark(in.Service.Name, true)
		version, _ := p.start(in.Service.Name)
		return p.finish(in.Service.Name, version, outcome{service: in.Service.Name, exists: true, input: in}, nil)
	}
	if r := publish(one); r.caughtUp || r.first || !p.diary.lastSynced().IsZero() {
		t.Errorf("after one of two: caught up %v, first publication complete %v, last in sync at %v", r.caughtUp, r.first, p.diary.lastSynced())
	}
	if r := publish(other); !r.caughtUp || !r.first || p.diary.lastSynced().IsZero() {
		t.Errorf("after both: caught up %v, first publication complete %v, last in sync at %v", r.caughtUp, r.first, p.diary.lastSynced())
	}
}
