// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/demo"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/privileged"
)

func demoOptions(out *notes) demo.Options {
	return demo.Options{
		Out:      out,
		Dwell:    300 * time.Millisecond,
		Patience: patience,
		Agent:    lab.AgentOptions{Command: []string{"/proc/self/exe", "agent"}, Env: []string{runAsCLI + "=1"}},
	}
}

func TestEveryStepOfTheDemoComesOutAsItShould(t *testing.T) {
	privileged.Require(t)
	check := func(t *testing.T, ctx context.Context, out *notes, options demo.Options) {
		t.Helper()
		if err := demo.Run(ctx, options); err != nil {
			t.Errorf("%v\n%s", err, out.text())
		}
		if !strings.Contains(out.text(), "all 7 steps came out as they should") {
			t.Errorf("no summary:\n%s", out.text())
		}
	}
	t.Run("live", func(t *testing.T) {
		var out notes
		options := demoOptions(&out)
		options.Interactive = true
		check(t, t.Context(), &out, options)
	})
	t.Run("line by line, held until its context ends", func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		var out notes
		out.await("nsenter", stop)
		options := demoOptions(&out)
		options.Hold = true
		check(t, ctx, &out, options)
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("the demo ended by itself\n%s", out.text())
		}
	})
}

func TestAnInterruptedDemoSaysSo(t *testing.T) {
	privileged.Require(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out notes
	out.await("all the time", stop) // before its first step: nobody has to answer
	options := demoOptions(&out)
	options.Agent.Command = []string{"sh", "-c", "exec sleep 3600"}
	if err := demo.Run(ctx, options); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("the demo ended with %v\n%s", err, out.text())
	}
}

// notes is a writer that may be read while it is written.
type notes struct {
	mu    sync.Mutex
	what  bytes.Buffer
	words string // that are waited for
	then  func() // is called when they are there; may be nil
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() {
		if n.then != nil && strings.Contains(n.what.String(), n.words) {
			n.then()
		}
	}()
	return n.what.Write(p)
}

// await has something called as soon as these words are written.
func (n *notes) await(words string, then func()) { n.words, n.then = words, then }

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.what.String()
}
