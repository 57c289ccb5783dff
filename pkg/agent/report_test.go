// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reported is a reporter at work in a bubble of fake time, and what it is told.
type reported struct {
	*testing.T
	mu     sync.Mutex // of what the reporter asks for and counts
	path   string
	now    Status
	stage  stage
	news   chan struct{}
	turned chan struct{}
	writes int  // statuses that differed from the one before
	asked  int  // times that the reporter woke up and asked for the stage
	failed int  // attempts
	full   bool // attempts may fail
	stop   func()
}

func inReport(t *testing.T, test func(r *reported)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &reported{T: t, path: filepath.Join(t.TempDir(), "status"), news: make(chan struct{}, 1), turned: make(chan struct{}, 1), stage: stage{state: Starting}}
		reporter := reporter{path: r.path, news: r.news, turned: r.turned,
			stage: func() stage { r.mu.Lock(); defer r.mu.Unlock(); r.asked++; return r.stage }, status: func() Status { r.mu.Lock(); defer r.mu.Unlock(); return r.now },
			changed: func(Status) { r.mu.Lock(); defer r.mu.Unlock(); r.writes++ },
			failed: func(err error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				if err == nil {
					return
				}
				if r.failed++; !r.full {
					t.Error(err)
				}
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- reporter.run(ctx) }()
		r.stop = func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		test(r)
		r.stop()
	})
}

// tell changes the status.
func (r *reported) tell(dirty int) {
	r.mu.Lock()
	r.now.Dirty = dirty
	r.mu.Unlock()
	nudge(r.news)
	synctest.Wait()
}

// turn brings the agent to another stage.
func (r *reported) turn(to stage, dirty int) {
	r.mu.Lock()
	r.stage = to
	r.mu.Unlock()
	nudge(r.turned)
	r.tell(dirty)
}

func (r *reported) wrote(when string, want int) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes != want {
		r.Errorf("%s: written %d times, want %d", when, r.writes, want)
	}
	r.writes = 0
}

func TestTheStatusIsWrittenAtMostOnceASecondAndOnlyWhenItChanged(t *testing.T) {
	inReport(t, func(r *reported) {
		r.wrote("at first", 1)
		for i := range 1000 { // ten seconds of changes
			r.tell(i + 1)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		r.mu.Lock()
		if r.writes < 9 || r.writes > 11 {
			t.Errorf("written %d times in ten seconds, want one a second", r.writes)
		}
		if r.asked > 50 {
			t.Errorf("1000 news woke the reporter %d times, want a few for each write", r.asked)
		}
		r.mu.Unlock()
		time.Sleep(2 * statusPause)
		synctest.Wait()
		r.mu.Lock()
		r.writes = 0
		r.mu.Unlock()
		r.tell(7)
		r.wrote("a change after a pause is written at once", 1)
		for range 100 {
			r.tell(7)
			time.Sleep(time.Second)
		}
		r.wrote("news that change nothing", 0)
	})
}

// To make a status costs as much as there are problems, whether or not there is room for it on the disk.
func TestAStatusThatCannotBeWrittenIsTriedAtMostOnceASecond(t *testing.T) {
	inReport(t, func(r *reported) {
		r.mu.Lock()
		r.full = true
		r.mu.Unlock()
		dir := filepath.Dir(r.path)
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * statusPause)
		r.turn(stage{state: Serving}, 1)
		for i := range 1000 { // ten seconds of changes
			r.tell(i + 2)
			time.Sleep(10 * time.Millisecond)
		}
		r.mu.Lock()
		if r.failed < 9 || r.failed > 14 {
			t.Errorf("tried %d times in ten seconds, want once a second", r.failed)
		}
		r.mu.Unlock()
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(statusEvery)
		synctest.Wait()
		r.mu.Lock()
		failed := r.failed
		r.mu.Unlock()
		r.tell(7)
		time.Sleep(statusPause)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		text, err := os.ReadFile(r.path)
		if last, _ := (Status{Dirty: 7}).text(); err != nil || string(text) != string(last) || r.failed != failed {
			t.Errorf("with room again the file has %s, %v", text, err)
		}
	})
}

func TestAnotherStageIsWrittenAtOnce(t *testing.T) {
	inReport(t, func(r *reported) {
		r.wrote("at first", 1)
		r.tell(1)
		r.wrote("a change too soon", 0)
		r.turn(stage{state: Serving}, 2)
		r.wrote("serving", 1)
		r.turn(stage{state: Serving, audited: true}, 3)
		r.wrote("audited", 1)
		r.tell(4)
		r.stop()
		r.wrote("stopped", 2) // what was waiting, and the end
		r.stop = func() {}
		text, err := os.ReadFile(r.path)
		if last, _ := (Status{State: Stopped, Dirty: 4}).text(); err != nil || string(text) != string(last) {
			t.Errorf("the file has %s, %v", text, err)
		}
	})
}

func TestAStatusThatStaysTheSameIsRenewedAndComesBackIfRemoved(t *testing.T) {
	inReport(t, func(r *reported) {
		before, err := os.Stat(r.path)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(statusEvery)
		synctest.Wait()
		after, err := os.Stat(r.path)
		if err != nil || !os.SameFile(before, after) || time.Until(after.ModTime()).Abs() > time.Second {
			t.Errorf("%v after %v: %v, %v; want the same file, renewed", after.ModTime(), statusEvery, time.Now(), err)
		}
		if err := os.Remove(r.path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(statusEvery)
		synctest.Wait()
		if _, err := os.Stat(r.path); err != nil {
			t.Error(err)
		}
	})
}
