// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"slices"

	"github.com/nearlb/nearlb/pkg/table"
)

// column is one column of a table of rows R.
type column[R any] struct {
	heading string
	wide    bool         // shown with -o wide
	needed  func(R) bool // shown without -o wide, where a row needs it; nil: always, unless wide
	when    columnTime
	right   bool // numbers: aligned at their ends
	cell    func(R) string
}

// columnTime says when a column of a read command is shown.
type columnTime int

const (
	always     columnTime = iota
	oncePrint             // without --watch: totals
	eachSecond            // with --watch: differences a second
)

func (c column[R]) isShown(wide bool, rows []R) bool {
	switch {
	case wide:
		return c.wide || c.needed == nil
	case c.needed != nil:
		return slices.ContainsFunc(rows, c.needed)
	}
	return !c.wide
}

// writeTable writes rows under headings. A width above 0 is the terminal's: columns are then narrowed to fit, and a cell
// longer than its column keeps the rest of its line while the row goes on below, so that one long address moves
// nothing else. Where that is not enough the last columns have a line of their own in each row, unless one alone is too long. Width 0 gives one line a row.
func writeTable[R any](w io.Writer, width int, wide bool, columns []column[R], rows []R) error {
	return layTable(w, width, wide, true, columns, rows)
}

// layTable is writeTable; without fold a table that is too wide is left to the terminal, which cuts it.
func layTable[R any](w io.Writer, width int, wide, fold bool, columns []column[R], rows []R) error {
	var shown []column[R]
	for _, c := range columns {
		if c.isShown(wide, rows) {
			shown = append(shown, c)
		}
	}
	headings := make([]string, len(shown))
	for i, c := range shown {
		headings[i] = c.heading
	}
	cells := [][]string{headings}
	for _, row := range rows {
		line := make([]string, len(shown))
		for i, c := range shown {
			if line[i] = printable(c.cell(row)); line[i] == "" {
				line[i] = "-"
			}
		}
		cells = append(cells, line)
	}
	right := make([]bool, len(shown))
	for i, c := range shown {
		right[i] = c.right
	}
	return table.Write(w, width, fold, cells, right)
}
