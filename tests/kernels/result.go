// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// result is what became of one suite on one kernel.
type result struct {
	kernel, pkg             string
	passed, failed, skipped int
	seconds, cpu            float64  // cpu: since the machine was started
	problems                []string // each with what was printed
	reasons                 []string // of skipped tests
}

// outcome is what became of a test.
type outcome struct {
	action string // pass, fail, skip; "": it has not ended
	output strings.Builder
}

// judge reads what a suite printed. ended is nil if it did not come to its end.
func judge(kernel, pkg, output string, ended *job.Ended) (*result, error) {
	r := &result{kernel: kernel, pkg: pkg}
	tests, names, rest, err := read(output)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		test := tests[name]
		switch test.action {
		case "pass":
			r.passed++
		case "skip":
			r.skipped++
			r.reasons = append(r.reasons, name+": "+reason(test.output.String()))
		case "fail":
			r.failed++
			r.problem("FAIL %s\n%s", name, test.output.String())
		default:
			r.failed++
			r.problem("NOT ENDED %s\n%s", name, test.output.String())
		}
	}
	switch {
	case ended == nil:
		r.problem("it did not come to its end\n%s", rest)
	case ended.Status != "" && len(r.problems) == 0:
		r.problem("%s\n%s", ended.Status, rest)
	case len(names) == 0:
		r.problem("no test ran\n%s", rest)
	}
	if ended != nil {
		r.seconds, r.cpu = ended.Seconds, ended.CPU
	}
	return r, nil
}

func (r *result) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// read splits a test program's output by its tests, in the order of their beginnings; rest is that of none.
func read(output string) (tests map[string]*outcome, names []string, rest string, err error) {
	convert := exec.Command("go", "tool", "test2json")
	convert.Stdin = strings.NewReader(output)
	events, err := convert.Output()
	if err != nil {
		return nil, nil, "", fmt.Errorf("read test output: %w", err)
	}
	tests = map[string]*outcome{}
	var outside strings.Builder
	for decoder := json.NewDecoder(bytes.NewReader(events)); ; {
		var e struct{ Action, Test, Output string }
		if err := decoder.Decode(&e); err == io.EOF {
			return tests, names, outside.String(), nil
		} else if err != nil {
			return nil, nil, "", fmt.Errorf("read test output: %w", err)
		}
		if e.Test == "" {
			outside.WriteString(e.Output)
			continue
		}
		test := tests[e.Test]
		if test == nil {
			test = &outcome{}
			tests[e.Test] = test
			names = append(names, e.Test)
		}
		test.output.WriteString(e.Output)
		if slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			test.action = e.Action
		}
	}
}

// reason is the line that a skipped test printed.
func reason(output string) string {
	for _, line := range strings.Split(output, "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			return line
		}
	}
	return "no reason given"
}

// expect holds the skipped tests against the list. all says that every test of the suite was asked for.
func (r *result) expect(list []skip, all bool) {
	for _, s := range list {
		if (s.kernel != "" && s.kernel != r.kernel) || s.pkg != r.pkg {
			continue
		}
		i := slices.IndexFunc(r.reasons, func(text string) bool { return strings.HasPrefix(text, s.test+": ") })
		if i >= 0 {
			r.reasons[i] = "expected: " + r.reasons[i]
		} else if all {
			r.problem("%s is on the list of skipped tests (%s), and was not skipped: take it off", s.test, s.reason)
		}
	}
	for _, text := range r.reasons {
		if !strings.HasPrefix(text, "expected: ") {
			r.problem("skipped, and not on the list: %s", text)
		}
	}
}
