// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"log/slog"
	"strings"
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
		var told error
		ask := func() FlowCount {
			t.Helper()
			c, err := count.ask(func() *maps.Tables { return made }, func(err error) { told = err })
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := ask()
		if told != nil || first.Full != "" {
			t.Errorf("there is room: %v, %q", told, first.Full)
		}
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

func TestFlowsThatHaveNoPlaceInTheTableOfCountsAreTold(t *testing.T) {
	if err := uncounted(maps.FlowCount{Used: 65535, Room: 65536}); err != nil {
		t.Error(err)
	}
	if err := uncounted(maps.FlowCount{Used: 65536, Room: 65536}); err == nil || !strings.Contains(err.Error(), "table flow_bytes is full: bytes of 65536 entries") {
		t.Error(err)
	}
	d := &daemon{log: slog.New(slog.DiscardHandler), diary: newDiary()}
	for _, err := range []error{errors.New("the table is full"), nil} {
		d.tellUncounted(err)
		var s Status
		if d.diary.fill(&s); (len(s.Trouble) == 1) != (err != nil) {
			t.Errorf("%v: the status says %q", err, s.Trouble)
		}
	}
}
