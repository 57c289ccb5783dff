// SPDX-License-Identifier: Apache-2.0

// Package logs has tests that fail print what the processes of their lab logged.
package logs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Logs are the files that the processes of a lab write. What a failing test prints of them goes to standard error, so that its own
// messages come after it, and is short: who reads a long output, or a part of it, finds the messages.
type Logs struct {
	Dir string // of the lab

	mu    sync.Mutex
	shown map[string]int // how much of each was printed, or is what a test printed that began later
}

// most is what is printed of one log, in bytes: less of the control plane's, which say much that concerns no test.
const (
	most        = 4000
	mostControl = 800
)

// everyday is in a line that agents write for each pod.
const everyday = `msg="attached program"`

// ShowIfFailed prints, at the end of a test that failed, what was logged since now.
func (l *Logs) ShowIfFailed(t testing.TB) {
	began := map[string]int{}
	for _, log := range l.files() {
		if info, err := os.Stat(log); err == nil {
			began[log] = int(info.Size())
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			l.show(os.Stderr, t.Name(), began)
		}
	})
}

// Show prints what was logged and not printed before.
func (l *Logs) Show(of string) { l.show(os.Stderr, of, nil) }

// Show prints what the processes of a lab logged for a test.
func Show(t testing.TB, dir string) { (&Logs{Dir: dir}).Show(t.Name()) }

func (l *Logs) files() []string {
	all, _ := filepath.Glob(filepath.Join(l.Dir, "log", "*")) // the pattern is well formed
	return all
}

// show prints the end of what came to each log since it had that length.
func (l *Logs) show(to io.Writer, of string, since map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown == nil {
		l.shown = map[string]int{}
	}
	for _, log := range l.files() {
		text, err := os.ReadFile(log)
		if err != nil {
			continue
		}
		from := min(max(since[log], l.shown[log]), len(text))
		l.shown[log] = len(text)
		if text = tail(filepath.Base(log), text[from:]); len(text) > 0 {
			fmt.Fprintf(to, "--- %s of %s\n%s\n", filepath.Base(log), of, text)
		}
	}
}

// tail is the end of a log in whole lines, without everyday ones.
func tail(name string, text []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		if !bytes.Contains(line, []byte(everyday)) {
			kept = append(kept, line...)
		}
	}
	limit := most
	if strings.HasPrefix(name, "control-") {
		limit = mostControl
	}
	if len(kept) <= limit {
		return kept
	}
	kept = kept[len(kept)-limit:]
	if _, whole, more := bytes.Cut(kept, []byte("\n")); more && len(whole) > 0 {
		return whole
	}
	return kept // the end of one long line
}
