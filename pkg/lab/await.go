// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"
)

// The pauses between two looks at a condition: a twentieth of the time so far, within these bounds. So nobody waits much longer than
// the condition does, and what takes a minute is looked at some hundred times: clients that ask as often as they can use up
// the ports of their address, each of which is kept for a minute (TIME_WAIT).
const (
	shortestPause = 5 * time.Millisecond
	longestPause  = 250 * time.Millisecond
)

// Await polls until the condition holds or the time is over.
func Await(limit time.Duration, condition func() bool) error {
	for began := time.Now(); !condition(); {
		waited := time.Since(began)
		if waited > limit {
			return fmt.Errorf("await a condition: it does not hold after %s", limit)
		}
		time.Sleep(min(max(waited/20, shortestPause), longestPause))
	}
	return nil
}

// soon is Await for what the kernel does by itself at once, unless it is busy with something else.
func soon(condition func() bool) error {
	for began := time.Now(); time.Since(began) < 5*time.Millisecond; time.Sleep(100 * time.Microsecond) {
		if condition() {
			return nil
		}
	}
	return Await(Patience, condition)
}
