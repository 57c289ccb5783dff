// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// golden compares what a terminal of 80 columns shows with a file of testdata. NEARLB_UPDATE=1 writes the file: read the difference
// before you commit it. No line may be wider.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	goldenOf(t, name, 80, got)
}

// goldenOf is golden of a terminal of another width; 0: none.
func goldenOf(t *testing.T, name string, width int, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("NEARLB_UPDATE") != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
	for line := range bytes.Lines(got) {
		if n := utf8.RuneCount(bytes.TrimRight(line, "\n")); width > 0 && n > width {
			t.Errorf("%s: a line has %d columns: %s", path, n, line)
		}
	}
}
