// SPDX-License-Identifier: Apache-2.0

package attach

import "time"

// What somebody else takes away again and again is put back at once a few times, and then ever more rarely: two who fight over a hook cost a node
// less than they would, and a log can be read.
const (
	fightAtOnce = 5 // times
	fightOver   = time.Minute
)

// fight is what somebody takes away.
type fight struct {
	times int // that it was put back, without a minute of peace between two of them
	last  time.Time
}

// wait is how much longer than at first it takes until it is put back once more.
func (f *fight) wait(first time.Duration) time.Duration {
	return min(first<<min(max(0, f.times-fightAtOnce), 16), retryLongest)
}

// again notes that it is put back.
func (f *fight) again(now time.Time) {
	if now.Sub(f.last) > f.wait(glanceEvery)+fightOver {
		f.times = 0
	}
	f.times++
	f.last = now
}

// rests tells whether it is left as it is for now.
func (f *fight) rests(now time.Time) bool {
	return f.times > fightAtOnce && now.Sub(f.last) < f.wait(glanceEvery)
}

// fights are those over devices, by ifindex.
type fights map[int]*fight

// of is that over a device, known from now on; those that are over are forgotten.
func (all fights) of(ifindex int, now time.Time) *fight {
	if f := all[ifindex]; f != nil {
		return f
	}
	for at, f := range all {
		if now.Sub(f.last) > fightOver+retryLongest {
			delete(all, at)
		}
	}
	f := &fight{}
	all[ifindex] = f
	return f
}
