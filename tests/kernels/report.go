// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// report prints what went wrong, then a table of all. It says whether nothing did.
func report(to io.Writer, results []*result, suites []suite) bool {
	ok := true
	for _, r := range results {
		for _, problem := range r.problems {
			ok = false
			fmt.Fprintf(to, "\nLinux %s, %s: %s\n", r.kernel, r.pkg, problem)
		}
	}
	fmt.Fprintln(to)
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KERNEL\tPACKAGE\tPASSED\tFAILED\tSKIPPED\tSECONDS\tPROCESSOR TIME SO FAR")
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%.0f\t%.0f\n", r.kernel, r.pkg, r.passed, r.failed, r.skipped, r.seconds, r.cpu)
	}
	table.Flush()
	for _, r := range results {
		for _, reason := range r.reasons {
			fmt.Fprintf(to, "skipped on Linux %s, %s: %s\n", r.kernel, r.pkg, reason)
		}
	}
	for _, s := range suites {
		if s.without != "" {
			fmt.Fprintf(to, "left out of %s: %s (%s)\n", s.pkg, s.without, s.why)
		}
		if s.only != "" {
			fmt.Fprintf(to, "run of %s: %s\n", s.pkg, s.only)
		}
	}
	return ok
}
