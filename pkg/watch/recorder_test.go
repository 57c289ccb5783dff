// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// recorder takes the events and the log of a source, and wakes who waits for something to come of them.
type recorder struct {
	mu       sync.Mutex
	services map[lb.ServiceName]int
	nodes    int
	syncs    int
	lines    []string
	wake     chan struct{}
}

func newRecorder() *recorder {
	return &recorder{services: map[lb.ServiceName]int{}, wake: make(chan struct{}, 1)}
}

func (r *recorder) record(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *recorder) ServiceChanged(name lb.ServiceName) { r.record(func() { r.services[name]++ }) }
func (r *recorder) NodeChanged()                       { r.record(func() { r.nodes++ }) }
func (r *recorder) Synced()                            { r.record(func() { r.syncs++ }) }

func (r *recorder) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler               { return r }
func (r *recorder) WithGroup(string) slog.Handler                    { return r }

func (r *recorder) Handle(_ context.Context, record slog.Record) error {
	line := record.Message
	record.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	r.record(func() { r.lines = append(r.lines, line) })
	return nil
}

// log is what was logged so far.
func (r *recorder) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

// logged counts the lines that contain a text.
func (r *recorder) logged(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range r.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// changed counts what was told of a Service of the namespace default.
func (r *recorder) changed(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.services[lb.ServiceName{Namespace: "default", Name: name}]
}

func (r *recorder) synced() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncs
}

func (r *recorder) nodeChanges() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes
}

// watchdog is how long a test waits: only what never comes takes that long. A token is read again after 50 seconds.
const watchdog = 3 * time.Minute

// until waits for something to come true that an event or the log tells of.
func (r *recorder) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.After(watchdog); !is(); {
		select {
		case <-r.wake:
		case <-late:
			t.Fatalf("%s does not come; log:\n%s", what, r.log())
		}
	}
}

// run runs a source until the test ends.
func (r *recorder) run(t *testing.T, source Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, r) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}
