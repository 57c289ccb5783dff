// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"testing"
	"time"
)

// Who fights over a device waits longer each time, up to half a minute; after a minute of peace all is as at first.
func TestWhoFightsOverAHookWaits(t *testing.T) {
	all, now := fights{}, time.Unix(1000, 0)
	var waited time.Duration
	for n := range 20 {
		f := all.of(7, now)
		if rests := f.rests(now); rests != (n > fightAtOnce) {
			t.Errorf("time %d: rests %t", n+1, rests)
		}
		waited = f.wait(glanceEvery)
		now = now.Add(waited)
		if f.rests(now) {
			t.Errorf("time %d: rests after %s", n+1, waited)
		}
		f.again(now)
	}
	if waited != retryLongest {
		t.Errorf("the longest is %s", waited)
	}
	now = now.Add(retryLongest + fightOver + time.Second)
	all.of(8, now)
	if len(all) != 1 {
		t.Errorf("what is over is known yet: %d", len(all))
	}
	if f := all.of(7, now); f.rests(now) || f.wait(putBack) != putBack {
		t.Error("after a minute of peace it is as it was")
	}
}
