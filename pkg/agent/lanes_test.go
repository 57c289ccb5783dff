// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math/rand/v2"
	"testing"
)

// Whatever is pushed and touched, each task comes out once, and Len says how many are left.
func TestLanesLoseAndRepeatNothing(t *testing.T) {
	draw := rand.New(rand.NewPCG(3, 4))
	bulk, waiting := map[task]bool{}, map[task]bool{}
	l := newLanes(func(t task) bool { return bulk[t] })
	for range 100_000 {
		item := task{publish, serviceName(draw.IntN(60))}
		switch {
		case draw.IntN(2) == 0 && len(waiting) > 0:
			popped := l.Pop()
			if !waiting[popped] {
				t.Fatalf("%v comes out and is not in", popped)
			}
			delete(waiting, popped)
		case waiting[item]:
			bulk[item] = bulk[item] && draw.IntN(2) == 0
			l.Touch(item)
		default:
			bulk[item] = draw.IntN(3) > 0
			waiting[item] = true
			l.Push(item)
		}
		if l.Len() != len(waiting) {
			t.Fatalf("length %d, want %d", l.Len(), len(waiting))
		}
	}
	if places := len(l.first) + len(l.second); places > 1000 {
		t.Errorf("%d places for %d tasks", places, l.Len())
	}
}
