// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/table"
)

// waiting says on a terminal how many nodes have answered, once that takes longer than a person waits without a word.
type waiting struct {
	to    io.Writer // nil: nobody looks
	total int

	mu       sync.Mutex
	answered int
	over     chan struct{}
	ended    sync.WaitGroup
}

// Times until the first word, and between two.
const (
	silent  = 2 * time.Second
	renewed = 500 * time.Millisecond
)

// waitFor begins to wait for that many nodes. A page that is served, and lines that are printed as they come, or followed, show by themselves that something goes on.
func (a *asked) waitFor(total int) *waiting {
	w := &waiting{total: total, over: make(chan struct{})}
	if table.TerminalWidth(a.errs) > 0 && !a.follows() && a.output != "jsonl" && a.command[0] != "ui" {
		w.to = a.errs
	}
	w.begin()
	return w
}

func (w *waiting) begin() {
	if w.to == nil {
		return
	}
	w.ended.Go(func() {
		next := time.NewTimer(silent)
		defer next.Stop()
		for shown := false; ; shown = true {
			select {
			case <-w.over:
				if shown {
					fmt.Fprint(w.to, "\r\x1b[K")
				}
				return
			case <-next.C:
				w.mu.Lock()
				fmt.Fprintf(w.to, "\r\x1b[K%d of %d nodes have answered", w.answered, w.total)
				w.mu.Unlock()
				next.Reset(renewed)
			}
		}
	})
}

// one more node has answered.
func (w *waiting) one() {
	w.mu.Lock()
	w.answered++
	w.mu.Unlock()
}

// end takes the line away.
func (w *waiting) end() {
	close(w.over)
	w.ended.Wait()
}
