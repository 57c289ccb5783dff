// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// names lists suites.
func names(all []suite) (list []string) {
	for _, s := range all {
		list = append(list, s.name)
	}
	return list
}

func TestEveryPackageWithTestsIsInOneSuite(t *testing.T) {
	t.Chdir("../..")
	completed, err := complete(suites)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]int{}
	for _, s := range completed {
		if slices.Contains(s.command, others) || slices.Contains(s.command, imported) || s.name == "compile-libraries" && len(s.command) < 50 {
			t.Errorf("%s: %v is not complete", s.name, s.command)
		}
		if s.dir != "" || s.command[1] != "test" {
			continue
		}
		if s.partial() {
			continue
		}
		patterns := slices.DeleteFunc(slices.Clone(s.command[2:]), func(arg string) bool { return strings.HasPrefix(arg, "-") })
		for _, pkg := range packages(t, patterns...) {
			in[pkg]++
		}
	}
	all := packages(t, "./...")
	if len(all) < 30 {
		t.Errorf("%d packages with tests: the test does not see them any more", len(all))
	}
	for _, pkg := range all {
		if in[pkg] != 1 {
			t.Errorf("%s is in %d suites", pkg, in[pkg])
		}
	}
	modules, err := filepath.Glob("tests/*/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range modules {
		dir := "tests/" + filepath.Base(filepath.Dir(module))
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.dir == dir && slices.Contains(s.command, "./...") && s.warm > 0 }) {
			t.Errorf("no suite runs the tests of %s", dir)
		}
	}
}

// What the race detector does not watch here it watches there.
func TestFuzzHasTheAgentsThatAreProcessesUnderTheRaceDetector(t *testing.T) {
	script, err := os.ReadFile("../fuzz.sh")
	if err != nil || !strings.Contains(string(script), "go test -race -count=1 -timeout 1h "+agent+" -run '"+processes+"'") {
		t.Errorf("tests/fuzz.sh does not run %s of %s: %v", processes, agent, err)
	}
}

func packages(t *testing.T, patterns ...string) []string {
	t.Helper()
	all, err := withTests(patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSuitesComeAfterEarlierOnesAndTogetherKeepTheLimits(t *testing.T) {
	warm, fresh := 0, 0
	for i, s := range suites {
		warm, fresh = warm+s.warm, fresh+s.fresh
		for _, before := range s.after {
			if !slices.Contains(names(suites[:i]), before) {
				t.Errorf("%s comes after %q, which is no earlier suite", s.name, before)
			}
		}
		if s.about == "" || s.warm+s.fresh == 0 {
			t.Errorf("%s does not say what it is and takes", s.name)
		}
	}
	if warm > warmLimit || warm+fresh > freshLimit {
		t.Errorf("the suites take %d s with warm caches and %d s with empty ones, want at most %d and %d", warm, warm+fresh, warmLimit, freshLimit)
	}
}

func TestChosenSuitesBringThoseThatTheyComeAfter(t *testing.T) {
	for _, test := range []struct {
		names     []string
		behaviour bool
		want      string
	}{
		{[]string{"cluster"}, false, "compile-libraries compile compile-modules cluster"},
		{[]string{"cluster"}, true, "compile-libraries compile compile-modules cluster"},
		{nil, false, strings.Join(names(suites), " ")},
		{nil, true, strings.Join(slices.DeleteFunc(names(suites), func(name string) bool { return slices.Contains(beside, name) }), " ")},
	} {
		chosen, err := choose(suites, test.names, test.behaviour)
		if got := strings.Join(names(chosen), " "); err != nil || got != test.want {
			t.Errorf("%v, %v: %s, %v; want %s", test.names, test.behaviour, got, err, test.want)
		}
	}
	if _, err := choose(suites, []string{"hots"}, false); err == nil {
		t.Error("a suite that is not there is chosen")
	}
}

// shell is a suite that runs a line of shell.
func shell(name, line string, after ...string) suite {
	return suite{name: name, after: after, warm: 1, command: []string{"sh", "-c", line}}
}

func TestSuitesRunSideBySideAfterOthersAndWhatFailsIsToldAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	var out strings.Builder
	results := run(t.Context(), &out, []suite{
		shell("first", "mkfifo "+pipe+"; echo '?   p [no test files]'; echo 'ok  p 1s'"),
		shell("reads", "cat "+pipe, "first"), // these two end only side by side
		shell("writes", "echo written >"+pipe, "first"),
		shell("fails", "echo why; echo '--- FAIL: TestX'; echo '    x_test.go:7: wrong'; echo noise; exit 3", "first"),
		shell("after", "echo never", "fails"),
		shell("input", "read line; test $? = 1"),
	}, lanes{sure: 3, most: 3})
	if len(results) != 6 {
		t.Fatalf("%d results, want 6", len(results))
	}
	good := summarise(&out, results, time.Second, true)
	text := out.String()
	for _, want := range []string{"ok  p 1s", "written", "why", "FAILED: exit status 3", "FAILED: not run: fails failed", "total"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not told", want)
		}
	}
	for _, unwanted := range []string{"never", "no test files", "input: FAILED"} {
		if strings.Contains(text, unwanted) {
			t.Errorf("%q is told", unwanted)
		}
	}
	_, end, _ := strings.Cut(text, "total")
	if !strings.Contains(end, "fails: --- FAIL: TestX\nfails:     x_test.go:7: wrong\n") || strings.Contains(end, "noise") {
		t.Error("the end does not repeat what failed, and that alone")
	}
	if good {
		t.Error("all is well, it says")
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestProcessorsHaveTimeWhenTheyWereIdleSinceTheLastLook(t *testing.T) {
	earlier, ok := parseProcessors("cpu  1000 10 500 2000 50 0 30 0 7 0\ncpu0 1 1 1 1\n")
	if want := (processors{idle: 2050, all: 3590}); !ok || earlier != want {
		t.Fatalf("%+v, %t", earlier, ok)
	}
	for idle, want := range map[uint64]bool{0: false, 9: false, 10: true, 100: true} {
		now := processors{idle: earlier.idle + idle, all: earlier.all + 100}
		if now.spare(earlier) != want {
			t.Errorf("idle for %d of 100: spare %t", idle, !want)
		}
	}
	if earlier.spare(earlier) {
		t.Error("no time has gone by, and some of it is spare")
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu a b c d e f", "cpu0 1 2 3 4 5 6"} {
		if _, ok := parseProcessors(bad); ok {
			t.Errorf("%q is taken", bad)
		}
	}
}

// A suite that finds no lane begins when another has ended, or while processors are idle: these two end only side by side.
func TestASuiteMoreRunsWhileProcessorsAreIdle(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	idle := make(chan bool, 1)
	idle <- true
	var out strings.Builder
	results := run(t.Context(), &out, []suite{
		shell("first", "mkfifo "+pipe),
		shell("reads", "cat "+pipe, "first"),
		shell("writes", "echo written >"+pipe, "first"),
	}, lanes{sure: 1, most: 2, spare: idle})
	if len(results) != 3 || !strings.Contains(out.String(), "written") {
		t.Errorf("%d results:\n%s", len(results), out.String())
	}
}

func TestTheLongestSuiteGetsTheProcessorBeforeOthers(t *testing.T) {
	ahead := shell("ahead", "nice")
	ahead.ahead = true
	var out strings.Builder
	niceness := map[string]int{}
	for _, r := range run(t.Context(), &out, []suite{ahead, shell("other", "nice")}, lanes{sure: 2, most: 2}) {
		said := strings.Fields("nothing " + string(r.output)) // first that it may not, where it may not
		n, err := strconv.Atoi(said[len(said)-1])
		if niceness[r.name] = n; err != nil || r.err != nil {
			t.Errorf("%s: %v, %v", r.name, r.err, err)
		}
	}
	raised, err := exec.Command("nice", "-n", "-5", "nice").Output() // where that is not allowed it says so, and goes on
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(raised)); strconv.Itoa(niceness["ahead"]) != want {
		t.Errorf("niceness %v", niceness)
	}
}

func TestAnEndedRunEndsItsProcessesAndTellsOfWhatDidNotRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	told := filepath.Join(t.TempDir(), "told")
	ready := filepath.Join(t.TempDir(), "ready")
	if err := exec.Command("mkfifo", ready).Run(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer cancel(fmt.Errorf("enough"))
		exec.Command("cat", ready).Run() // until the shell has its trap
	}()
	var out strings.Builder
	results := run(ctx, &out, []suite{
		shell("long", "trap 'echo tidied; echo >"+told+"; exit' TERM; echo >"+ready+"; while :; do sleep 0.1; done"),
		shell("next", "true", "long"),
	}, lanes{sure: 2, most: 2})
	for _, r := range results {
		if r.err == nil || !strings.Contains(r.err.Error(), "enough") && !strings.Contains(r.err.Error(), "long failed") {
			t.Errorf("%s: %v", r.name, r.err)
		}
	}
	if len(results) != 2 || !strings.Contains(out.String(), "tidied") {
		t.Errorf("%d results:\n%s", len(results), out.String())
	}
}

func TestTheSumOfProcessorTimeFailsAndABudgetIsMarked(t *testing.T) {
	s := func(name string, warm int, took time.Duration) *result {
		return &result{suite: suite{name: name, warm: warm}, processor: took}
	}
	for _, test := range []struct {
		compiled, took time.Duration
		judged, want   bool
	}{
		{0, warmLimit * time.Second, true, true},
		{0, (warmLimit + 1) * time.Second, true, true},
		{0, (freshLimit*3/2 + 1) * time.Second, true, false},
		{0, (freshLimit*3/2 + 1) * time.Second, false, true},
		{2 * time.Minute, (freshLimit - 120) * time.Second, true, true},
		{2 * time.Minute, freshLimit * 3 / 2 * time.Second, true, false},
	} {
		var out strings.Builder
		got := summarise(&out, []*result{s("compile", 0, test.compiled), s("a", 100, test.took)}, time.Hour, test.judged)
		if got != test.want {
			t.Errorf("%+v: %v\n%s", test, got, out.String())
		}
		if over := test.compiled+test.took > warmLimit*time.Second && test.compiled == 0; over && !strings.Contains(out.String(), "make one cheaper") {
			t.Errorf("it is not said that the sum is over its limit:\n%s", out.String())
		}
		if !strings.Contains(out.String(), "over its budget") {
			t.Errorf("it is not said that a is over its budget:\n%s", out.String())
		}
	}
}
