// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// printed is what test programs print with -test.v=test2json, whose own lines begin with a mark.
func printed(lines ...string) string {
	text := strings.Join(append(lines, ""), "\n")
	for _, own := range []string{"=== ", "--- "} {
		text = strings.ReplaceAll(text, own, "\x16"+own)
	}
	return text
}

const begun, passed = "=== RUN   TestA", "--- PASS: TestA (0.10s)\n=== NAME  "

func TestASuiteIsJudgedByWhatItPrintedAndHowItEnded(t *testing.T) {
	well, badly := &job.Ended{Seconds: 2}, &job.Ended{Status: "exit status 2"}
	listed := []skip{{pkg: "p", test: "TestB", reason: "known"}}
	skipped := printed("=== RUN   TestB", "x_test.go:1: no such device", "--- SKIP: TestB (0.00s)\n=== NAME  ")
	for name, c := range map[string]struct {
		output string
		ended  *job.Ended
		list   []skip
		want   string // part of the only problem; "": none
	}{
		"passes":                    {printed(begun, passed) + "PASS\n", well, nil, ""},
		"fails":                     {printed(begun, "x_test.go:1: bad", "--- FAIL: TestA (0.10s)\n=== NAME  ") + "FAIL\n", badly, nil, "FAIL TestA"},
		"panics outside of a test":  {printed(begun, passed) + "panic: oh\n", badly, nil, "exit status 2"},
		"hangs":                     {printed(begun), nil, nil, "it did not come to its end"},
		"has no test":               {"PASS\n", well, nil, "no test ran"},
		"skips what is on the list": {skipped + "PASS\n", well, listed, ""},
		"skips another":             {skipped + "PASS\n", well, nil, "not on the list: TestB: x_test.go:1: no such device"},
		"does not skip what it may": {printed("=== RUN   TestB", "--- PASS: TestB (0.00s)\n=== NAME  ") + "PASS\n", well, listed, "take it off"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := judge("6.1", "p", c.output, c.ended)
			if err != nil {
				t.Fatal(err)
			}
			r.expect(c.list, true)
			all := strings.Join(r.problems, "\n")
			if !strings.Contains(all, c.want) || (c.want == "") != (all == "") {
				t.Errorf("problems %q, want %q", all, c.want)
			}
		})
	}
}

func TestTheNewestPackageIsByItsNumbers(t *testing.T) {
	older, newer := "linux-image-6.12.99+deb12-amd64", "linux-image-6.12.117+deb12-amd64"
	if compareVersions(older, newer) >= 0 || compareVersions(newer, older) <= 0 {
		t.Errorf("%s is not older than %s", older, newer)
	}
	for _, pkg := range []string{older, newer} {
		if !kernels["6.12"].MatchString(pkg) || kernels["6.1"].MatchString(pkg) {
			t.Errorf("%s is taken for a wrong kernel", pkg)
		}
	}
}

func TestWhatIsLongIsQuickOnTheOldestKernelAlone(t *testing.T) {
	o := options{kernels: []string{"6.12", "6.1"}, suites: []suite{{pkg: "a"}, {pkg: "b", oldest: true}}}
	for _, test := range []struct {
		quick  bool
		kernel string
		want   int
	}{{false, "6.1", 2}, {false, "6.12", 2}, {true, "6.1", 2}, {true, "6.12", 1}} {
		o.quick = test.quick
		if got := len(o.of(test.kernel)); got != test.want {
			t.Errorf("quick %v on %s: %d suites, want %d", test.quick, test.kernel, got, test.want)
		}
	}
	o = options{quick: true, kernels: []string{"6.1"}, suites: []suite{{pkg: "a", only: "X|Y", quick: "X"}}}
	if got := o.of("6.1"); len(got) != 1 || got[0].only != "X" || o.suites[0].only != "X|Y" {
		t.Errorf("-quick runs %+v", got)
	}
	o = options{kernels: []string{"6.1"}, suites: []suite{{pkg: "a", worlds: 5}}}
	for quick, want := range map[bool]bool{false: false, true: true} {
		o.quick = quick
		if got := slices.Contains(runs(o.of("6.1"), time.Minute)[0].Env, "RAPID_CHECKS=5"); got != want {
			t.Errorf("quick %v: properties of five worlds %v", quick, got)
		}
	}
	o = options{quick: true, kernels: []string{"6.12", "6.1"}, suites: []suite{{pkg: "a"}, {pkg: "b", oldest: true}}}
	if got := runs(o.of("6.12"), time.Minute); len(got) != 1 || got[0].Dir != source+"/a" {
		t.Errorf("runs %+v", got)
	}
}

// Other kernels do not run the suite that holds as much, and a whole run leaves nothing to it.
func TestWhatAnotherSuiteHoldsIsLeftOutWhereThatOneRuns(t *testing.T) {
	o := options{kernels: []string{"6.12", "6.1"}, suites: []suite{{pkg: "a", held: "X"}, {pkg: "b", oldest: true}}}
	for _, test := range []struct {
		quick  bool
		kernel string
		want   string
	}{{false, "6.1", ""}, {false, "6.12", ""}, {true, "6.1", "X"}, {true, "6.12", ""}} {
		o.quick = test.quick
		if got := o.of(test.kernel)[0].without; got != test.want || o.suites[0].without != "" {
			t.Errorf("quick %v on %s: %q is left out, want %q", test.quick, test.kernel, got, test.want)
		}
	}
}

// A name that no test has any more would leave its path out in silence.
func TestEveryNameOfAPathIsATests(t *testing.T) {
	files, err := filepath.Glob("../packet/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, path := range strings.Split(paths, "|") {
		name, _, _ := strings.Cut(path, "/")
		if !strings.Contains(all.String(), "\nfunc "+name) {
			t.Errorf("no test of tests/packet has a name that begins with %s", name)
		}
	}
}
