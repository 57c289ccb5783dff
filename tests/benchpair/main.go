// SPDX-License-Identifier: Apache-2.0

// Command benchpair measures two nearlb binaries by turns in one run, so that what else the machine does falls on both alike, and prints
// what a packet costs in each.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/nearlb/nearlb/pkg/bench"
)

// path is one row of both results.
type path struct {
	name  string
	flows int
}

// minima are the least nanoseconds a packet of all runs, the empty program's included.
type minima map[path]float64

func main() {
	before, after := flag.String("old", "", "`binary` from before"), flag.String("new", "", "`binary` to compare with it")
	rounds := flag.Int("rounds", 5, "times that each is run")
	runs := flag.Int("runs", 4, "measurements of each path in a round")
	flag.Parse()
	if *before == "" || *after == "" || *rounds < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "benchpair: want -old BINARY -new BINARY, and 1 round or more")
		os.Exit(2)
	}
	old, now := minima{}, minima{}
	for round := range *rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
		if err := measureBoth([]string{*before, *after}, []minima{old, now}, *runs); err != nil {
			fmt.Fprintln(os.Stderr, "benchpair:", err)
			os.Exit(1)
		}
	}
	if err := compare(os.Stdout, old, now); err != nil {
		fmt.Fprintln(os.Stderr, "benchpair:", err)
		os.Exit(1)
	}
}

// tries is how often a round of one binary is measured if it fails: binaries of before this was mended give up where one packet at XDP is left to
// TC, as one of a flow in eight seconds is.
const tries = 3

func measureBoth(binaries []string, into []minima, runs int) error {
	for i, binary := range binaries {
		result, err := measure(binary, runs)
		for try := 1; err != nil && try < tries; try++ {
			fmt.Fprintf(os.Stderr, "%v: measured again\n", err)
			result, err = measure(binary, runs)
		}
		if err != nil {
			return err
		}
		into[i].add(result)
	}
	return nil
}

func measure(binary string, runs int) (result bench.Result, err error) {
	cmd := exec.Command(binary, "bench", "--runs", strconv.Itoa(runs), "-o", "json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return result, fmt.Errorf("run %s: %w", cmd, err)
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return result, fmt.Errorf("read what %s printed: %w", cmd, err)
	}
	return result, nil
}

func (m minima) add(r bench.Result) {
	for _, p := range r.Paths {
		at := path{p.Name, p.Flows}
		if least, found := m[at]; !found || p.Min < least {
			m[at] = p.Min
		}
	}
}

// compare prints the paths that both have, those that became slower by most first.
func compare(w io.Writer, old, now minima) error {
	var both []path
	for at := range now {
		if _, found := old[at]; found {
			both = append(both, at)
		}
	}
	slices.SortFunc(both, func(a, b path) int {
		return cmp.Or(cmp.Compare(now[b]/old[b], now[a]/old[a]), cmp.Compare(a.name, b.name), cmp.Compare(a.flows, b.flows))
	})
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "PATH\tFLOWS\tOLD\tNEW\tRATIO\t\n")
	for _, at := range both {
		fmt.Fprintf(out, "%s\t%d\t%.0f\t%.0f\t%.2f\t\n", at.name, at.flows, old[at], now[at], now[at]/old[at])
	}
	return out.Flush()
}
