// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// result is what became of a suite.
type result struct {
	suite
	err       error
	output    []byte
	processor time.Duration // user and system, of all its processes that were waited for
	clock     time.Duration
}

// each is how often a run says where it is while nothing ends.
const each = time.Minute

// run starts the suites in their order, as many at once as there are lanes, each when those that it comes after have ended well,
// and prints what each printed when it has ended.
func run(ctx context.Context, to io.Writer, chosen []suite, lanes lanes) []*result {
	waiting := slices.Clone(chosen)
	began := map[string]time.Time{} // those that run
	ended := map[string]*result{}
	done := make(chan *result)
	var results []*result
	end := func(r *result) {
		delete(began, r.name)
		ended[r.name] = r
		results = append(results, r)
		tell(to, r, len(results), len(chosen))
	}
	still := time.NewTicker(each)
	defer still.Stop()
	spare := false
	for len(results) < len(chosen) {
		for i := 0; i < len(waiting); {
			s := waiting[i]
			ready, failed := prerequisites(s, chosen, ended)
			switch {
			case failed != "" || ctx.Err() != nil:
				waiting = slices.Delete(waiting, i, i+1)
				end(&result{suite: s, err: notRun(ctx, failed)})
			case ready && (len(began) < lanes.sure || spare && len(began) < lanes.most):
				spare = spare && len(began) < lanes.sure
				waiting = slices.Delete(waiting, i, i+1)
				began[s.name] = time.Now()
				go func() { done <- execute(ctx, s) }()
			default:
				i++
			}
		}
		if len(began) == 0 {
			continue // something ended without running, so others can be told of
		}
		select {
		case r := <-done:
			end(r)
		case spare = <-lanes.spare:
		case <-still.C:
			fmt.Fprintf(to, "… %s (%d of %d ended)\n", running(began), len(results), len(chosen))
		}
	}
	return results
}

// prerequisites says whether all that a suite comes after have ended well, and names one that did not. What was not chosen is
// not waited for.
func prerequisites(s suite, chosen []suite, ended map[string]*result) (ready bool, failed string) {
	ready = true
	for _, name := range s.after {
		switch r := ended[name]; {
		case r != nil && r.err != nil:
			return false, name
		case r == nil && slices.ContainsFunc(chosen, func(c suite) bool { return c.name == name }):
			ready = false
		}
	}
	return ready, ""
}

func notRun(ctx context.Context, failed string) error {
	if failed != "" {
		return fmt.Errorf("not run: %s failed", failed)
	}
	return fmt.Errorf("not run: %w", context.Cause(ctx))
}

// execute runs a suite's command without standard input. When the context ends, its processes are told to end, and get half a
// minute to tidy up.
func execute(ctx context.Context, s suite) *result {
	started := time.Now()
	command := s.command
	if s.ahead {
		command = append([]string{"nice", "-n", "-5"}, command...) // who may not ask for that runs as all do
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("ended: %w", context.Cause(ctx))
	}
	r := &result{suite: s, err: err, output: output, clock: time.Since(started)}
	if cmd.ProcessState != nil {
		r.processor = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return r
}

// tell prints a result, and what the suite printed but for what it says of packages that it downloads or that have no tests.
func tell(to io.Writer, r *result, number, of int) {
	word := "ok"
	if r.err != nil {
		word = "FAILED: " + r.err.Error()
	}
	fmt.Fprintf(to, "== %d of %d: %s: %s, %.0f s of processor time in %.0f s\n", number, of, r.name, word, r.processor.Seconds(), r.clock.Seconds())
	for line := range bytes.Lines(r.output) {
		if r.err == nil && (bytes.HasPrefix(line, []byte("go: downloading ")) || bytes.Contains(line, []byte("[no test files]"))) {
			continue
		}
		fmt.Fprintf(to, "%s\n", bytes.TrimRight(line, "\n"))
	}
}

// running names what runs, and since when.
func running(began map[string]time.Time) string {
	var all []string
	for name, since := range began {
		all = append(all, fmt.Sprintf("%s for %s", name, time.Since(since).Round(time.Second)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
