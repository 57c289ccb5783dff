// SPDX-License-Identifier: Apache-2.0

package agent

// lanes is the loop's queue: two lanes of tasks. The first is for Services that changed by themselves. The second is for what comes
// in large numbers (all Services, after a change of the node or a list) and for tasks that look at everything; it gets every
// share-th turn while the first lane has something.
//
// A task belongs to the first lane if nobody marked it for later and fewer than firstRoom are there: one Service that changes
// while thousands do waits for no more than those.
type lanes struct {
	later func(task) bool // tasks that are of the second lane, however few there are

	first, second []task
	lane          map[task]int // that a waiting task is in: 1, 2
	turns         int          // of the first lane in a row
}

const (
	firstRoom = 16
	share     = 8
)

func newLanes(later func(task) bool) *lanes { return &lanes{later: later, lane: map[task]int{}} }

// Len is workqueue.Queue's.
func (l *lanes) Len() int { return len(l.lane) }

// Push is workqueue.Queue's.
func (l *lanes) Push(t task) {
	if !l.later(t) && len(l.first) < firstRoom {
		l.first = append(l.first, t)
		l.lane[t] = 1
		return
	}
	l.second = append(l.second, t)
	l.lane[t] = 2
}

// Touch is workqueue.Queue's: a task that waits in the second lane comes to the first if it belongs there now. Its old place stays
// behind and is passed over.
func (l *lanes) Touch(t task) {
	if l.lane[t] == 2 && !l.later(t) && len(l.first) < firstRoom {
		l.first = append(l.first, t)
		l.lane[t] = 1
	}
}

// Pop is workqueue.Queue's.
func (l *lanes) Pop() task {
	for {
		t, lane := l.next()
		if l.lane[t] == lane {
			delete(l.lane, t)
			return t
		}
	}
}

// next takes a place out of one of the lanes; one of them has some.
func (l *lanes) next() (task, int) {
	if len(l.first) > 0 && (l.turns < share-1 || len(l.second) == 0) {
		l.turns++
		t := l.first[0]
		l.first = rest(l.first)
		return t, 1
	}
	l.turns = 0
	t := l.second[0]
	l.second = rest(l.second)
	return t, 2
}

// rest is a lane without its first place, and without its memory once it is empty.
func rest(lane []task) []task {
	if len(lane) == 1 {
		return nil
	}
	lane[0] = task{}
	return lane[1:]
}
