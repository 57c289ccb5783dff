// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// diary is what the agent notes for people as long as it runs, whatever tables it works with: what it could not do, when it last had
// published everything, and what its audits found. The daemon owns it; everybody may write to it and ask.
type diary struct {
	news   chan struct{} // gets something when the status may be another one
	turned chan struct{} // gets something when the agent may have come to another stage

	mu       sync.Mutex
	troubles map[string]string // of the agent itself, by what it was doing
	lastSync time.Time         // when everything that had changed was last published; zero: never
	audits   audits
}

// audits are those that are over.
type audits struct {
	last  time.Time // zero: none yet
	drift int       // differences that they found
}

func newDiary() *diary {
	return &diary{news: make(chan struct{}, 1), turned: make(chan struct{}, 1), troubles: map[string]string{}}
}

// tell wakes whoever shows the status to people, once it is due.
func (j *diary) tell() { nudge(j.news) }

// turn wakes whoever shows the status to people at once, if the stage is another one.
func (j *diary) turn() {
	nudge(j.turned)
	nudge(j.news)
}

// nudge puts something into a channel that has room for one, unless something is there.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// trouble notes what the agent itself could not do, or with nil that it could, and tells whether that is news.
func (j *diary) trouble(what string, err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := ""
	if err != nil {
		text = what + ": " + err.Error()
	}
	if j.troubles[what] == text {
		return false
	}
	j.troubles[what] = text
	if err == nil {
		delete(j.troubles, what)
	}
	j.tell()
	return err != nil
}

// audited notes an audit and how many differences it found.
func (j *diary) audited(drift int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.audits.last = time.Now()
	j.audits.drift += drift
	j.turn()
}

// wasAudited tells whether some audit is over.
func (j *diary) wasAudited() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.audits.last.IsZero()
}

// synced notes that everything that had changed is published.
func (j *diary) synced(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastSync = now
}

// lastSynced is when everything that had changed was last published; zero: never.
func (j *diary) lastSynced() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lastSync
}

// fill fills in its part of the status.
func (j *diary) fill(s *Status) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s.LastSync, s.LastAudit, s.Drift = j.lastSync, j.audits.last, j.audits.drift
	s.Trouble = append(s.Trouble, slices.SortedFunc(maps.Values(j.troubles), strings.Compare)...)
}
