// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// reporter keeps the status file up to date. It writes when the status changed, at most once in statusPause unless the agent came
// to another stage. Without a change it only sets the file's time, every statusEvery.
type reporter struct {
	path    string
	news    <-chan struct{} // gets something when the status may be another one
	turned  <-chan struct{} // gets something when the stage may be another one
	stage   func() stage    // cheap
	status  func() Status   // costs as much as there are problems
	changed func(Status)    // told of each status that differs from the one before
	failed  func(error)     // told of each attempt

	last  []byte // content of the file
	at    time.Time
	shown stage
}

// stage is what people and programs wait for: it is written at once.
type stage struct {
	state   State
	audited bool
}

// statusPause is the least time between two writes of the status at one stage.
const statusPause = time.Second

// run keeps the file up to date until ctx ends, then says that the agent stopped.
func (r *reporter) run(ctx context.Context) error {
	renew := time.NewTicker(statusEvery)
	defer renew.Stop()
	for {
		r.write("")
		select {
		case <-ctx.Done():
			if isExchange(context.Cause(ctx)) {
				return nil // another one goes on
			}
			r.write(Stopped)
			return nil
		case <-renew.C:
		case <-r.news:
			r.gather(ctx)
		}
	}
}

// gather waits until the next write is due, which is news of until then. Thousands of them wake nobody.
func (r *reporter) gather(ctx context.Context) {
	due := time.NewTimer(time.Until(r.at.Add(statusPause)))
	defer due.Stop()
	for r.stage() == r.shown {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			r.forgetNews()
			return
		case <-r.turned:
		}
	}
}

// forgetNews takes what the next write shows anyway.
func (r *reporter) forgetNews() {
	select {
	case <-r.news:
	default:
	}
}

// write writes the status, or only renews the file if it says the same. A state overrides the status's own.
func (r *reporter) write(state State) {
	shown := r.stage() // before the status is made, so that news between the two are not lost
	s := r.status()
	if state != "" {
		s.State = state
	}
	err := r.put(s)
	r.at, r.shown = time.Now(), shown // of an attempt that failed, too: the next one is to come no sooner
	r.failed(err)
}

func (r *reporter) put(s Status) error {
	text, err := s.text()
	if err != nil {
		return fmt.Errorf("make status: %w", err)
	}
	if bytes.Equal(text, r.last) {
		now := time.Now()
		if err = os.Chtimes(r.path, now, now); !errors.Is(err, fs.ErrNotExist) { // somebody removed it
			return err
		}
	}
	r.changed(s)
	if err := replaceFile(r.path, text); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	r.last = text
	return nil
}

// report keeps the status file.
func (r *running) report(ctx context.Context) error {
	reporter := reporter{
		path:    StatusPath(r.daemon.options.LockDir, r.daemon.options.PinPath),
		news:    r.news,
		turned:  r.turned,
		stage:   r.stage,
		status:  r.status,
		changed: func(s Status) { r.daemon.source.Announce(s.troubles()) },
		failed: func(err error) {
			if r.trouble("write status", err) {
				r.daemon.log.Error("write status", "error", err)
			}
		},
	}
	return reporter.run(ctx)
}

// stage is how far the agent is.
func (r *running) stage() stage {
	state := Starting
	if r.done() && r.serving() {
		state = Serving
	}
	return stage{state, r.wasAudited()}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
