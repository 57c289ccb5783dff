// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestControllersThatTheMachinesCgroupsDidNotGiveAreGivenBack(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	written := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, subtreeControl))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write("cgroup.controllers", "cpuset cpu memory pids\n")
	write(subtreeControl, "memory pids\n")
	enabled, err := enableControllers(dir)
	if want := []string{"cpuset", "cpu"}; err != nil || !slices.Equal(enabled, want) {
		t.Fatalf("%v, %v; want %v", enabled, err, want)
	}
	if got := written(); got != "+cpuset +cpu" {
		t.Errorf("the kernel is told %q", got)
	}
	giveBack([]loan{{dir, enabled}})
	if got := written(); got != "-cpu" { // each by itself, so that one in use keeps none of the others
		t.Errorf("at the end the kernel is told %q", got)
	}
	write(subtreeControl, "cpuset cpu memory pids\n")
	if enabled, err := enableControllers(dir); err != nil || enabled != nil {
		t.Errorf("with all of them given: %v, %v", enabled, err)
	}
}
