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

// No line of a table is wider than the terminal where each cell has room in a line of its own, and no cell is lost.
func TestRowsFitTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns, width := rapid.IntRange(1, 6).Draw(t, "columns"), rapid.IntRange(40, 60).Draw(t, "width")
		cell := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z]{1,8}`), rapid.StringMatching(`[a-z]{1,36}`))
		cells := rapid.SliceOfN(rapid.SliceOfN(cell, columns, columns), 1, 6).Draw(t, "cells")
		numbers := rapid.SliceOfN(rapid.Bool(), columns, columns).Draw(t, "numbers")
		var out strings.Builder
		if err := Write(&out, width, true, cells, numbers); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > width {
				t.Errorf("%q is %d wide, of %d", line, utf8.RuneCountInString(line), width)
			}
		}
		want := strings.Fields(strings.Join(slices.Concat(cells...), " "))
		if got := strings.Fields(out.String()); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		out.Reset()
		if err := Write(&out, 0, true, cells, numbers); err != nil || strings.Count(out.String(), "\n") != len(cells) {
			t.Errorf("no terminal: %q, %v, of %d rows", out.String(), err, len(cells))
		}
	})
}

// Without fold each row has one line that fits, and a text that has no room keeps its beginning and its end.
func TestRowsOfOneLineFitTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns, width := rapid.IntRange(1, 4).Draw(t, "columns"), rapid.IntRange(40, 60).Draw(t, "width")
		cell := rapid.StringMatching(`[a-zü]{1,50}`)
		cells := rapid.SliceOfN(rapid.SliceOfN(cell, columns, columns), 1, 6).Draw(t, "cells")
		numbers := make([]bool, columns)
		headings := make([]string, columns)
		for i := range headings {
			headings[i] = "HEADING"
			if numbers[i] = i > 0 && rapid.Bool().Draw(t, "number"); numbers[i] {
				for n := range cells {
					cells[n][i] = "12345"
				}
			}
		}
		var out strings.Builder
		if err := Write(&out, width, false, append([][]string{headings}, cells...), numbers); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != 1+len(cells) {
			t.Fatalf("%d lines of %d rows:\n%s", len(lines), len(cells), &out)
		}
		for n, line := range lines {
			if utf8.RuneCountInString(line) > width {
				t.Errorf("%q is wider than %d", line, width)
			}
			if n == 0 {
				continue
			}
			if begin, end, cut := strings.Cut(strings.Fields(line)[0], "…"); !strings.HasPrefix(cells[n-1][0], begin) || !strings.HasSuffix(cells[n-1][0], end) || !cut && begin != cells[n-1][0] {
				t.Errorf("%q is shown as %q", cells[n-1][0], line)
			}
		}
	})
}

// Bytes that are no text of UTF-8 may be a terminal's own controls: 0x9b begins one as ESC [ does.
func TestWhatIsNoTextIsEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"a\x9b31mb": `a\x9b31mb`, "\xc3": `\xc3`, "\u009bm": `\x9bm`, "\u202e": `\u202e`, "\U000e0001": `\U000e0001`, "\x7f\x1b": `\x7f\x1b`, "ü\ufffd": "ü\ufffd", "": "",
	} {
		if got := Printable(text); got != want {
			t.Errorf("Printable(%q) is %q, want %q", text, got, want)
		}
		if got := OneLine(text); got != want {
			t.Errorf("OneLine(%q) is %q, want %q", text, got, want)
		}
	}
}

// A long word that is cut for a terminal stays text.
func TestALineIsCutBetweenCharacters(t *testing.T) {
	var out strings.Builder
	WriteFolded(&out, 30, "x ", "a"+strings.Repeat("ü", 100))
	if !utf8.ValidString(out.String()) {
		t.Errorf("the lines are no text: %q", out.String())
	}
	if got := strings.Count(out.String(), "ü"); got != 100 {
		t.Errorf("%d characters of 100", got)
	}
}
