// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

const columnGap = 2

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
	widths, fits := columnWidths(cells, width, right)
	parts := []tablePart{{0, len(widths), 0}}
	if fold && !fits && slices.Max(widths)+partIndent <= width { // else the terminal wraps it
		parts = tableParts(widths, width)
	}
	out := bufio.NewWriter(w)
	for _, line := range cells {
		for _, part := range parts {
			out.WriteString(strings.Repeat(" ", part.indent))
			writeRow(out, line[part.from:part.to], widths[part.from:part.to], right[part.from:part.to])
		}
	}
	return out.Flush()
}

// tablePart are the columns that share a line.
type tablePart struct{ from, to, indent int }

// partIndent is before the second line of a row, and those after it.
const partIndent = 4

// tableParts shares columns out over lines that are as wide as the terminal at the most.
func tableParts(widths []int, width int) (parts []tablePart) {
	part, length := tablePart{}, -columnGap // no gap before the first column
	for i, column := range widths {
		if i > part.from && length+columnGap+column > width {
			parts = append(parts, tablePart{part.from, i, part.indent})
			part, length = tablePart{from: i, indent: partIndent}, partIndent-columnGap
		}
		length += columnGap + column
	}
	return append(parts, tablePart{part.from, len(widths), part.indent})
}

// columnWidths takes the longest cell of each column, and where that does not fit narrows the widest columns of texts, but none so
// far that more than half of its cells would be too long; false where that does not fit. Numbers keep their columns.
func columnWidths(cells [][]string, width int, numbers []bool) (widths []int, fits bool) {
	widths = make([]int, len(cells[0]))
	floors := make([]int, len(cells[0]))
	total := columnGap * (len(widths) - 1)
	for i := range widths {
		if widths[i], floors[i] = lengths(cells, i); numbers[i] {
			floors[i] = widths[i]
		}
		total += widths[i]
	}
	if width == 0 || total <= width {
		return widths, true
	}
	narrow := slices.Clone(widths)
	for ; total > width; total-- {
		widest := -1
		for i := range narrow {
			if narrow[i] > floors[i] && (widest < 0 || narrow[i] > narrow[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return widths, false
		}
		narrow[widest]--
	}
	return narrow, true
}

// lengths gives the longest cell of a column, and the one in the middle if that is longer than the heading.
func lengths(cells [][]string, column int) (longest, middle int) {
	all := make([]int, len(cells))
	for i, line := range cells {
		all[i] = utf8.RuneCountInString(line[column])
	}
	heading := all[0]
	slices.Sort(all)
	middle = all[(len(all)-1)/2]
	if len(all) == 2 { // of one row: all of it
		middle = all[1]
	}
	return all[len(all)-1], max(heading, middle)
}

// writeRow keeps the column positions whatever a cell's length: a cell that runs into the next column sends that to a new line.
func writeRow(out *bufio.Writer, line []string, widths []int, right []bool) {
	at, start := 0, 0 // where the line is, where the column begins
	for i, text := range line {
		if i > 0 && utf8.RuneCountInString(line[i-1]) > widths[i-1] {
			out.WriteByte('\n')
			at = 0
		}
		length := utf8.RuneCountInString(text)
		begin := start
		if right[i] {
			begin += max(0, widths[i]-length)
		}
		out.WriteString(strings.Repeat(" ", begin-at))
		out.WriteString(text)
		at = begin + length
		start += widths[i] + columnGap
	}
	out.WriteByte('\n')
}

// terminalWidth is the width in columns of the terminal that w is, 0 when it is none.
func terminalWidth(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}
