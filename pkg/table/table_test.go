// SPDX-License-Identifier: Apache-2.0

package table

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestALineIsFoldedBelowItsLastColumn(t *testing.T) {
	for _, c := range []struct {
		line  string
		width int
		want  []string
	}{
		{"short", 20, []string{"short"}},
		{"as long as it is, where there is no terminal", 0, []string{"as long as it is, where there is no terminal"}},
		{"ok      tunnel  no tunnel between the nodes", 30, []string{"ok      tunnel  no tunnel", "        between the nodes"}}, // the last one begins beyond the half
		{"ok  tunnel  no tunnel between the nodes", 30, []string{"ok  tunnel  no tunnel between", "            the nodes"}},
		{"  next: mend the object", 16, []string{"  next: mend the", "  object"}},
		{"aaaaaaaaaaaaaaaaaaaaaaaaa b", 10, []string{"aaaaaaaaaa", "aaaaaaaaaa", "aaaaa b"}},
		{"ü ü ü ü", 3, []string{"ü ü", "ü ü"}},
	} {
		if got := Fold(c.line, c.width); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d: %q, want %q", c.line, c.width, got, c.want)
		}
	}
}

// Nothing is lost but spaces, and no line is too wide.
func TestFoldedLinesFitAndSayTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.StringMatching(`( {0,9}[a-zü:]{0,12}){0,12}`).Draw(t, "line")
		width := rapid.IntRange(1, 60).Draw(t, "width")
		lines := Fold(line, width)
		for _, part := range lines {
			if utf8.RuneCountInString(part) > width {
				t.Errorf("%q is wider than %d", part, width)
			}
		}
		if got, want := strings.Join(strings.Fields(strings.Join(lines, "")), ""), strings.Join(strings.Fields(line), ""); got != want {
			t.Errorf("said %q, want %q", got, want)
		}
	})
}
