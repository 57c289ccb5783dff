// SPDX-License-Identifier: Apache-2.0

package table

import (
	"io"
	"slices"
)

// Column is one column of a table of rows R.
type Column[R any] struct {
	Heading string
	Wide    bool         // shown with -o wide
	Narrow  bool         // not shown with -o wide, where other columns say it
	Needed  func(R) bool // shown where a row needs it, of a Wide column without -o wide; nil: always
	When    ColumnTime
	Right   bool // numbers: aligned at their ends
	Cell    func(R) string
}

// ColumnTime says when a column of a read command is shown.
type ColumnTime int

// Times of columns.
const (
	Always     ColumnTime = iota
	OncePrint             // without --watch: totals
	EachSecond            // with --watch: differences a second
)

func (c Column[R]) isShown(wide bool, rows []R) bool {
	switch {
	case wide && (c.Wide || c.Narrow):
		return c.Wide
	case c.Needed != nil:
		return slices.ContainsFunc(rows, c.Needed)
	}
	return wide || !c.Wide
}

// WriteColumns writes rows under headings. A width above 0 is the terminal's: columns are then narrowed to fit, and a cell
// longer than its column keeps the rest of its line while the row goes on below, so that one long address moves
// nothing else. Where that is not enough the last columns have a line of their own in each row, unless one alone is too long. Width 0 gives one line a row.
func WriteColumns[R any](w io.Writer, width int, wide bool, columns []Column[R], rows []R) error {
	return LayColumns(w, width, wide, true, columns, rows)
}

// LayColumns is WriteColumns; without fold texts are shortened in the place of a second line.
func LayColumns[R any](w io.Writer, width int, wide, fold bool, columns []Column[R], rows []R) error {
	var shown []Column[R]
	for _, c := range columns {
		if c.isShown(wide, rows) {
			shown = append(shown, c)
		}
	}
	headings := make([]string, len(shown))
	for i, c := range shown {
		headings[i] = c.Heading
	}
	cells := [][]string{headings}
	for _, row := range rows {
		line := make([]string, len(shown))
		for i, c := range shown {
			if line[i] = Printable(c.Cell(row)); line[i] == "" {
				line[i] = "-"
			}
		}
		cells = append(cells, line)
	}
	right := make([]bool, len(shown))
	for i, c := range shown {
		right[i] = c.Right
	}
	return Write(w, width, fold, cells, right)
}
