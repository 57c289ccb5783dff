// SPDX-License-Identifier: Apache-2.0

// Command vet holds go vet's checks against the packages that match its arguments, in the working directory's module:
//
//	go run ./tests/vet ./...
//
// go vet itself reads every dependency a second time, for facts that a few checks use; for Kubernetes that takes longer than
// compiling it. This command takes the types of dependencies from what the compiler exports, and facts from the packages that
// match alone: a printf-like function of another module is not known as one.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
)

func main() {
	dir := flag.String("C", ".", "directory of the module")
	flag.Parse()
	found, err := check(os.Stdout, *dir, flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vet:", err)
	}
	if found || err != nil {
		os.Exit(1)
	}
}

// check prints what vet's checks find in packages and their tests, and says whether that is anything.
func check(to io.Writer, dir string, patterns ...string) (bool, error) {
	all, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax | packages.NeedModule, Tests: true, Dir: dir}, patterns...)
	if err != nil {
		return false, err
	}
	if n := packages.PrintErrors(all); n > 0 {
		return false, fmt.Errorf("%d errors in what is to be checked", n)
	}
	for _, p := range all {
		maps.DeleteFunc(p.Imports, func(_ string, imported *packages.Package) bool { return !slices.Contains(all, imported) })
	}
	graph, err := checker.Analyze(vet.Suite, all, nil)
	if err != nil {
		return false, err
	}
	found := map[string]bool{} // a file belongs to its package, and to that with its tests
	for _, root := range graph.Roots {
		if root.Err != nil {
			return false, fmt.Errorf("%v: %w", root, root.Err)
		}
		for _, d := range root.Diagnostics {
			line := fmt.Sprintf("%v: %s (%s)\n", root.Package.Fset.Position(d.Pos), d.Message, root.Analyzer.Name)
			if !found[line] {
				found[line] = true
				fmt.Fprint(to, line)
			}
		}
	}
	return len(found) > 0, nil
}
