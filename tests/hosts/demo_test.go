// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"context"
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
		Out:   out,
		Dwell: 300 * time.Millisecond,
		Agent: lab.AgentOptions{Command: []string{"/proc/self/exe", "agent"}, Env: []string{runAsCLI + "=1"}},
	}
}

func TestEveryStepOfTheDemoComesOutAsItShould(t *testing.T) {
	privileged.Require(t)
	for name, interactive := range map[string]bool{"line by line": false, "live": true} {
		t.Run(name, func(t *testing.T) {
			var out notes
			options := demoOptions(&out)
			options.Interactive = interactive
			if err := demo.Run(t.Context(), options); err != nil {
				t.Errorf("%v\n%s", err, out.text())
			}
			if !strings.Contains(out.text(), "all 7 steps came out as they should") {
				t.Errorf("no summary:\n%s", out.text())
			}
		})
	}
}

func TestAHeldDemoEndsWithItsContext(t *testing.T) {
	privileged.Require(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out notes
	options := demoOptions(&out)
	options.Hold = true
	ended := make(chan error, 1)
	go func() { ended <- demo.Run(ctx, options) }()
	if err := lab.Await(2*time.Minute, func() bool { return strings.Contains(out.text(), "nsenter") }); err != nil {
		t.Errorf("%v\n%s", err, out.text())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnInterruptedDemoSaysSo(t *testing.T) {
	privileged.Require(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out notes
	ended := make(chan error, 1)
	go func() { ended <- demo.Run(ctx, demoOptions(&out)) }()
	if err := lab.Await(time.Minute, func() bool { return strings.Contains(out.text(), "step 1") }); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("the demo ended with %v", err)
	}
}

// notes is a writer that may be read while it is written.
type notes struct {
	mu   sync.Mutex
	what bytes.Buffer
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.what.Write(p)
}

func (n *notes) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.what.String()
}
