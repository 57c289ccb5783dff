// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type animal struct{ name, address, legs string }

func animals() []column[animal] {
	return []column[animal]{
		{heading: "NAME", cell: func(a animal) string { return a.name }},
		{heading: "ADDRESS", cell: func(a animal) string { return a.address }},
		{heading: "NOTE", wide: true, cell: func(animal) string { return "tame" }},
		{heading: "LEGS", right: true, cell: func(a animal) string { return a.legs }},
	}
}

func table(t *testing.T, width int, wide bool, rows ...animal) string {
	t.Helper()
	var b strings.Builder
	if err := writeTable(&b, width, wide, animals(), rows); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestATableAlignsItsColumnsAndItsNumbers(t *testing.T) {
	got := table(t, 0, false, animal{"ant", "10.0.0.1", "6"}, animal{"millipede", "", "1000"})
	want := `NAME       ADDRESS   LEGS
ant        10.0.0.1     6
millipede  -         1000
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAWideTableHasMoreColumns(t *testing.T) {
	got := table(t, 0, true, animal{"ant", "10.0.0.1", "6"})
	if want := "NAME  ADDRESS   NOTE  LEGS\nant   10.0.0.1  tame     6\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The long address keeps its place in the column, whole, and the row goes on below; the other rows stay as they are.
func TestOneLongAddressMovesNothingElse(t *testing.T) {
	long := "[fd00:1234:5678:9abc:def0:1234:5678:9abc]:8080"
	got := table(t, 40, false, animal{"ant", "10.0.0.1", "6"}, animal{"bee", long, "6"}, animal{"cow", "10.0.0.2", "4"})
	want := `NAME  ADDRESS                       LEGS
ant   10.0.0.1                         6
bee   [fd00:1234:5678:9abc:def0:1234:5678:9abc]:8080
                                       6
cow   10.0.0.2                         4
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Where most cells are long no column is broken: the terminal wraps the lines.
func TestATableThatCannotFitKeepsItsLines(t *testing.T) {
	long := strings.Repeat("x", 60)
	if got := table(t, 40, false, animal{"ant", long, "6"}, animal{"bee", long, "6"}); strings.Count(got, "\n") != 3 {
		t.Errorf("want three lines, got\n%s", got)
	}
}

func TestWithoutATerminalEachRowIsOneLine(t *testing.T) {
	long := strings.Repeat("x", 300)
	if got := table(t, 0, false, animal{long, long, "4"}, animal{"b", "c", "4"}); strings.Count(got, "\n") != 3 {
		t.Errorf("want three lines, got\n%s", got)
	}
}

func TestATerminalTooNarrowForAnythingStillGetsEverything(t *testing.T) {
	got := table(t, 1, false, animal{"grasshopper", "10.0.0.1", "6"})
	for _, want := range []string{"grasshopper", "10.0.0.1", "6"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

func TestNamesCannotMoveTheCursor(t *testing.T) {
	got := table(t, 0, false, animal{"a\x1b[2J\nb\u202ec\tü", "", "4"})
	if want := `a\x1b[2J\x0ab\u202ec\x09ü`; !strings.Contains(got, want) {
		t.Errorf("want %s in\n%s", want, got)
	}
}
