// SPDX-License-Identifier: Apache-2.0

// Command gate runs the suites that a change has to pass, side by side, and says what each took beside its budget: `make gate`
// runs all, `make test` those that test behaviour, `go run ./tests/gate hosts packets` those and what they need.
//
// Budgets are processor time, which a machine that does other things as well hardly changes; the clock would fail good changes there.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// limits of the sum of what suites take, in seconds of processor time: 25 minutes of two cores with empty caches, 10 with warm ones.
const (
	freshLimit = 2 * 25 * 60
	warmLimit  = 2 * 10 * 60
)

// patience is the time for all: less than the 90 minutes after which a run is ended from outside, without a report.
const patience = 80 * time.Minute

func main() {
	lanes := lanesOf(runtime.NumCPU())
	flag.IntVar(&lanes.most, "lanes", lanes.most, "suites that run at once while processors are idle; three for two processors always do")
	without := flag.Bool("behaviour", false, "leave out what does not test behaviour on this machine's kernel (fresh, lint, kernels)")
	flag.Parse()
	all, err := complete(suites)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
	chosen, err := choose(all, flag.Args(), *without)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lanes.spare = watch(ctx)
	announce(os.Stdout, chosen)
	started := time.Now()
	results := run(ctx, os.Stdout, chosen, lanes)
	if !summarise(os.Stdout, results, time.Since(started), len(flag.Args()) == 0) {
		os.Exit(1)
	}
}

// choose gives the suites of these names and those that they come after, in order. No names: all, or all that test behaviour.
func choose(all []suite, names []string, behaviour bool) ([]suite, error) {
	wanted := map[string]bool{}
	var want func(name string) error
	want = func(name string) error {
		i := slices.IndexFunc(all, func(s suite) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("there is no suite %q", name)
		}
		wanted[name] = true
		for _, before := range all[i].after {
			if err := want(before); err != nil {
				return err
			}
		}
		return nil
	}
	if len(names) == 0 {
		for _, s := range all {
			if !behaviour || !slices.Contains(beside, s.name) {
				names = append(names, s.name)
			}
		}
	}
	for _, name := range names {
		if err := want(name); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(s suite) bool { return !wanted[s.name] }), nil
}
