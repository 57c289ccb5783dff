// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

func TestAConditionIsSeenSoonAndOneThatTakesLongSeldomLookedAt(t *testing.T) {
	for _, takes := range []time.Duration{0, 20 * time.Millisecond, time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			began, looks := time.Now(), 0
			err := lab.Await(2*time.Minute, func() bool {
				looks++
				return time.Since(began) >= takes
			})
			late := time.Since(began) - takes
			if err != nil || late > max(takes/20, 5*time.Millisecond) || looks > 400 {
				t.Errorf("a condition that takes %s was seen %s later, at the %d. look: %v", takes, late, looks, err)
			}
		})
	}
}

func TestAConditionThatNeverHoldsIsAnErrorInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := lab.Await(time.Second, func() bool { return false }); err == nil || time.Since(began) > 1100*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
