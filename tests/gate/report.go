// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// announce says what will run, and how long that takes.
func announce(to io.Writer, chosen []suite) {
	warm, fresh := 0, 0
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, s := range chosen {
		warm, fresh = warm+s.warm, fresh+s.fresh
		fmt.Fprintf(table, "  %s\t%s\n", s.name, s.about)
	}
	cores := min(runtime.NumCPU(), 2) // more help little: what is longest waits for itself
	fmt.Fprintf(to, "%d suites; on this machine, if it does nothing else, about %d minutes, and %d when nothing was compiled before:\n",
		len(chosen), minutes(warm, cores), minutes(warm+fresh, cores))
	table.Flush()
}

// minutes are those that seconds of processor time take, rounded up.
func minutes(seconds, cores int) int { return (seconds + 60*cores - 1) / (60 * cores) }

// budget is what a suite may take: a fifth more than what was measured, and some seconds for small ones.
func (s suite) budget() time.Duration {
	return time.Duration(s.warm+s.fresh)*time.Second*6/5 + 10*time.Second
}

// summarise prints one line for each suite and the sum, and says whether all is well. Suites over their budgets are marked; what
// fails is the sum, from half as much again as the limit for empty caches (threads that share a core with other work need that much
// more), and that only where all suites were to run.
func summarise(to io.Writer, results []*result, clock time.Duration, judged bool) bool {
	ok := true
	var sum, compiled time.Duration
	fmt.Fprintln(to)
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "SUITE\tPROCESSOR s\tBUDGET s\tCLOCK s\t")
	for _, r := range results {
		note := "ok"
		switch {
		case r.err != nil:
			note, ok = "FAILED: "+r.err.Error(), false
		case r.processor > r.budget():
			note = "ok, over its budget"
		}
		sum += r.processor
		if r.warm == 0 {
			compiled += r.processor
		}
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.0f\t %s\n", r.name, r.processor.Seconds(), r.budget().Seconds(), r.clock.Seconds(), note)
	}
	limit, caches := limitOf(compiled)
	fmt.Fprintf(table, "total\t%.0f\t%.0f\t%.0f\t with %s caches\n", sum.Seconds(), limit.Seconds(), clock.Seconds(), caches)
	table.Flush()
	for _, r := range results {
		for _, line := range failures(r) {
			fmt.Fprintf(to, "%s: %s\n", r.name, line)
		}
	}
	switch {
	case judged && sum > freshLimit*time.Second*3/2:
		ok = false
		fmt.Fprintf(to, "FAILED: together the suites take half as much again as %d minutes of two cores: make one cheaper\n", freshLimit/120)
	case sum > limit:
		fmt.Fprintf(to, "together the suites take more than %.0f minutes of two cores: make one cheaper, unless other work slowed them\n", limit.Minutes()/2)
	}
	return ok
}

// failing are lines that say what failed: names of tests, and what tests said with file and line.
var failing = regexp.MustCompile(`^\s*(--- FAIL: |[a-z0-9_]+\.go:\d+: |panic: |FAIL\t|WARNING: DATA RACE)`)

// mostFailures is how many lines of a suite are repeated.
const mostFailures = 40

// failures are the lines of a failed suite that say what failed, once more at the end: what is between may be long.
func failures(r *result) (lines []string) {
	if r.err == nil {
		return nil
	}
	for line := range strings.Lines(string(r.output)) {
		if failing.MatchString(line) && len(lines) < mostFailures {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

// limitOf is what all suites may take together, by what those took that only compile.
func limitOf(compiled time.Duration) (limit time.Duration, caches string) {
	if compiled < time.Minute {
		return warmLimit * time.Second, "warm"
	}
	return freshLimit * time.Second, "empty"
}
