// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Who asks has bytes counted for a minute more; since when is the same as long as somebody asks. A minute after the last question it ends,
// and the next one begins anew.
func TestBytesAreCountedForAMinuteAfterEachQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := maps.NewFake(bpf.Sizes{Frontends: 64, Records: 64, Slots: 1024, Backends: 64, FlowSets: 8, Affinity: 8, Fragments: 8, SourceRanges: 8, Services: 8, Names: 64})
		var count flowCount
		ask := func() FlowCount {
			t.Helper()
			c, err := count.ask(func() *maps.Tables { return made })
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := ask()
		if !first.Since.Equal(time.Now()) || first.Until.Sub(first.Since) != countFor {
			t.Errorf("asked at %s: %+v", time.Now(), first)
		}
		for range 3 {
			time.Sleep(countFor * 3 / 4)
			if c := ask(); !c.Since.Equal(first.Since) {
				t.Errorf("somebody asks all the time, and it begins anew at %s", c.Since)
			}
		}
		time.Sleep(countFor + 5*time.Second)
		synctest.Wait()
		if ended, err := made.EndFlowCount(false); !ended || err != nil || count.end != nil {
			t.Errorf("nobody asked for a minute: ended %v, %v", ended, err)
		}
		if c := ask(); !c.Since.Equal(time.Now()) {
			t.Errorf("asked again at %s: since %s", time.Now(), c.Since)
		}
		time.Sleep(2 * countFor)
	})
}
