// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The mistakes are in files of a package, in its tests, and behind a function of another package: facts go from one to the other.
func TestMistakesAreFoundOnceInPackagesTheirTestsAndBehindTheirFunctions(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example.org/m\n\ngo 1.26\n",
		"say/say.go":     "package say\n\nimport \"fmt\"\n\nfunc Sayf(format string, args ...any) { fmt.Printf(format, args...) }\n",
		"use/use.go":     "package use\n\nimport \"example.org/m/say\"\n\nfunc Use() { say.Sayf(\"%d\", \"text\") }\n",
		"use/in_test.go": "package use\n\nimport \"testing\"\n\nfunc TestUse(t *testing.T) { t.Logf(\"%s\", 1) }\n",
		"use/ex_test.go": "package use_test\n\nimport \"testing\"\n\nfunc Testuse(t *testing.T) { t.Log(\"%s\", 1) }\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	found, err := check(&out, dir, "./...")
	if err != nil || !found {
		t.Fatalf("found %v, %v\n%s", found, err, out.String())
	}
	for _, place := range []string{"use.go:5", "in_test.go:5", "ex_test.go:5"} {
		if strings.Count(out.String(), place) != 1+strings.Count(place, "ex_") {
			t.Errorf("%s is told %d times", place, strings.Count(out.String(), place))
		}
	}
	if found, err := check(&out, dir, "./say"); found || err != nil {
		t.Errorf("in a package without mistakes: found %v, %v", found, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "use/use.go"), []byte("package use\n\nfunc Use() { undefined() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := check(&out, dir, "./..."); err == nil {
		t.Error("what does not compile is passed over")
	}
}
