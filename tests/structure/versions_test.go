// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A package compiles once for all modules only where each of them chooses the same version of everything below it.
func TestTheModulesAgreeOnTheVersionsOfWhatTheyShare(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root(t), "tests", "*", "go.mod"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d modules below tests, %v", len(files), err)
	}
	chosen := map[string]map[string][]string{} // by module, by version: who chooses it
	for _, file := range append(files, filepath.Join(root(t), "go.mod")) {
		dir := filepath.Dir(file)
		cmd := exec.Command("go", "list", "-deps", "-test",
			"-f", "{{with .Module}}{{.Path}}@{{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}", "./...")
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("list the modules of %s: %v", dir, err)
		}
		lines := strings.Fields(string(out))
		slices.Sort(lines)
		for _, line := range slices.Compact(lines) {
			module, version, _ := strings.Cut(line, "@")
			if version == "" { // one of ours
				continue
			}
			if chosen[module] == nil {
				chosen[module] = map[string][]string{}
			}
			chosen[module][version] = append(chosen[module][version], filepath.Base(dir))
		}
	}
	if len(chosen) < 50 {
		t.Errorf("%d modules found: the test does not see them any more", len(chosen))
	}
	for _, module := range slices.Sorted(maps.Keys(chosen)) {
		if len(chosen[module]) > 1 {
			t.Errorf("%s: %v: go get the highest in the others", module, chosen[module])
		}
	}
}
