// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bench"
)

// Of all rounds the least counts; what became slower comes first; paths that one binary alone has are left out.
func TestThePathThatBecameSlowestComesFirst(t *testing.T) {
	row := func(name string, flows int, ns float64) bench.Path {
		return bench.Path{Name: name, Flows: flows, Min: ns}
	}
	old, now := minima{}, minima{}
	old.add(bench.Result{Paths: []bench.Path{row("from_pod/tcp4/established", 1, 60), row("from_pod/tcp4/miss", 0, 50), row("gone", 0, 1)}})
	old.add(bench.Result{Paths: []bench.Path{row("from_pod/tcp4/established", 1, 64), row("from_pod/tcp4/miss", 0, 40)}})
	now.add(bench.Result{Paths: []bench.Path{row("from_pod/tcp4/established", 1, 57), row("from_pod/tcp4/miss", 0, 50), row("fresh", 0, 1)}})
	var out strings.Builder
	if err := compare(&out, old, now); err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"PATH", "FLOWS", "OLD", "NEW", "RATIO"},
		{"from_pod/tcp4/miss", "0", "40", "50", "1.25"},
		{"from_pod/tcp4/established", "1", "60", "57", "0.95"},
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("got\n%s", out.String())
	}
	for i, line := range lines {
		if got := strings.Fields(line); strings.Join(got, " ") != strings.Join(want[i], " ") {
			t.Errorf("line %d: %q, want %q", i+1, got, want[i])
		}
	}
}

// fails writes a program that fails so many times and prints a result after that.
func fails(t *testing.T, times int) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "nearlb")
	script := fmt.Sprintf(`#!/bin/sh
echo x >>%[1]s/runs
if [ $(wc -l <%[1]s/runs) -le %d ]; then exit 1; fi
echo '{"paths": [{"name": "xdp/tcp4/established", "flows": 1, "min": 70}]}'
`, dir, times)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

func TestARoundThatFailsIsMeasuredAgain(t *testing.T) {
	old, now := minima{}, minima{}
	if err := measureBoth([]string{fails(t, 0), fails(t, 2)}, []minima{old, now}, 1); err != nil {
		t.Fatal(err)
	}
	at := path{"xdp/tcp4/established", 1}
	if old[at] != 70 || now[at] != 70 {
		t.Errorf("measured %v before and %v after, want 70 in both", old, now)
	}
	if err := measureBoth([]string{fails(t, tries)}, []minima{old}, 1); err == nil {
		t.Error("a binary that fails always was measured")
	}
}
