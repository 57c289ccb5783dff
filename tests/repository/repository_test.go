// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheRepositoryIsFoundFromEveryModuleAndFromNowhereElse(t *testing.T) {
	want, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".", "tests/cluster/rig", "tests/oracle", "tests/manifests"} {
		t.Chdir(filepath.Join(want, dir))
		if got, err := Root(); err != nil || got != want {
			t.Errorf("from %s: %q, %v; want %q", dir, got, err, want)
		}
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("go.mod", []byte("module example.org/github.com/nearlb/nearlb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Root(); err == nil {
		t.Errorf("from elsewhere: %q, want an error", got)
	}
}
