// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"
)

// Await polls until the condition holds or the time is over.
func Await(limit time.Duration, condition func() bool) error {
	for deadline := time.Now().Add(limit); !condition(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("await a condition: it does not hold after %s", limit)
		}
		time.Sleep(5 * time.Millisecond)
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
