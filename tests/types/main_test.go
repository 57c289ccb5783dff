// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTypesThatOnlyAnotherSystemHasWrongAreFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":              "module example.org/m\n\ngo 1.26\n",
		"main.go":             "package main\n\nimport \"example.org/m/part\"\n\nfunc main() { part.Do() }\n",
		"part/part.go":        "//go:build !windows\n\npackage part\n\nfunc Do() {}\n",
		"part/part_linux.go":  "package part\n\nimport _ \"unsafe\"\n\nvar _ = 1\n",
		"part/part_darwin.go": "package part\n\nimport \"net/http\"\n\nfunc in() int { return http.StatusText(404) }\n",
		"part/do_windows.go":  "package part\n\nimport \"os\"\n\nfunc Do() { os.Exit(0) }\n",
		"part/do_freebsd.go":  "package part\n\nfunc Do() {}\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for system, want := range map[string]string{
		"linux/amd64":   "",
		"windows/amd64": "",
		"darwin/arm64":  "part_darwin.go:5", // in a body
		"freebsd/amd64": "Do redeclared",    // of a file for all but Windows
		"linux":         "want a system and an ",
	} {
		err := check(system, dir, ".")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", system, err, want)
		}
	}
}
