// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Answers of all goroutines are counted by their words, and to count one takes no memory.
func TestAnswersAreCountedByTheirWords(t *testing.T) {
	m := New("test")
	n := m.Names(func() NamesState { return NamesState{} })
	const clients, times = 4, 250
	var group errgroup.Group
	for range clients {
		group.Go(func() error {
			for range times {
				n.Answered("A", "NOERROR", "responder", time.Microsecond)
				n.Answered("AAAA", "NXDOMAIN", "responder", time.Microsecond)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	all, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0
	for _, family := range all {
		for _, row := range family.GetMetric() {
			if family.GetName() != questionsName {
				continue
			}
			if counted++; row.GetCounter().GetValue() != clients*times {
				t.Errorf("%v", row)
			}
		}
	}
	if counted != 2 {
		t.Errorf("%d rows, want 2", counted)
	}
	if allocated := testing.AllocsPerRun(100, func() { n.Answered("A", "NOERROR", "responder", time.Microsecond) }); allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}

func BenchmarkAnswered(b *testing.B) {
	n := New("test").Names(func() NamesState { return NamesState{} })
	for b.Loop() {
		n.Answered("A", "NOERROR", "responder", 0)
	}
}
