// SPDX-License-Identifier: Apache-2.0

// Package table lays cells out in columns, and text in lines, for people who read them in a terminal of some width.
package table

import (
	"bufio"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Gap is how many spaces are between two columns, at least.
const Gap = 2

// Write writes lines of as many cells each, the first of them headings. A width above 0 is the terminal's: columns are then narrowed to fit,
// and a cell longer than its column keeps the rest of its line while the row goes on below, so that one long text moves nothing else. Where
// that is not enough and fold is set, the last columns have a line of their own in each row, unless one alone is too long. Without fold each row
// has one line, and texts are shortened that have no room. Width 0 gives one line a row. Columns of numbers are aligned at their ends.
func Write(w io.Writer, width int, fold bool, cells [][]string, numbers []bool) error {
	if len(cells) == 0 {
		return nil
	}
	if !fold {
		cells = shortened(cells, width, numbers)
	}
	widths, fits := Widths(cells, width, numbers)
	lines := []part{{0, len(widths), 0}}
	switch {
	case fits:
	case fold && slices.Max(widths)+indent <= width:
		lines = parts(widths, width)
	default:
		width = 0 // the terminal wraps it
	}
	out := bufio.NewWriter(w)
	for _, line := range cells {
		for _, p := range lines {
			out.WriteString(strings.Repeat(" ", p.indent))
			WriteRow(out, max(0, width-p.indent), line[p.from:p.to], widths[p.from:p.to], numbers[p.from:p.to])
		}
	}
	return out.Flush()
}

// part are the columns that share a line.
type part struct{ from, to, indent int }

// indent is before the second line of a row, and those after it.
const indent = 4

// parts shares columns out over lines that are as wide as the terminal at the most.
func parts(widths []int, width int) (all []part) {
	now, length := part{}, -Gap // no gap before the first column
	for i, column := range widths {
		if i > now.from && length+Gap+column > width {
			all = append(all, part{now.from, i, now.indent})
			now, length = part{from: i, indent: indent}, indent-Gap
		}
		length += Gap + column
	}
	return append(all, part{now.from, len(widths), now.indent})
}

// Widths takes the longest cell of each column, and where that does not fit narrows the widest columns of texts, but none so
// far that more than half of its cells would be too long; false where that does not fit. Numbers keep their columns.
func Widths(cells [][]string, width int, numbers []bool) (widths []int, fits bool) {
	widths = make([]int, len(cells[0]))
	floors := make([]int, len(cells[0]))
	total := Gap * (len(widths) - 1)
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

// shortened takes from the widest columns of texts what is more than the width, but none of a heading.
func shortened(cells [][]string, width int, numbers []bool) [][]string {
	widths := make([]int, len(cells[0]))
	total := Gap * (len(widths) - 1)
	for i := range widths {
		widths[i], _ = lengths(cells, i)
		total += widths[i]
	}
	for ; width > 0 && total > width; total-- {
		widest := -1
		for i := range widths {
			if !numbers[i] && widths[i] > utf8.RuneCountInString(cells[0][i]) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return cells
		}
		widths[widest]--
	}
	all := make([][]string, len(cells))
	for n, line := range cells {
		all[n] = slices.Clone(line)
		for i := range line {
			all[n][i] = Shorten(line[i], widths[i])
		}
	}
	return all
}

// Shorten leaves out the middle of a text that is longer than so many characters: names begin alike and end alike, and most differ at both.
func Shorten(text string, length int) string {
	all := []rune(text)
	if len(all) <= length || length < 1 {
		return text
	}
	begin := length / 2
	return string(all[:begin]) + "…" + string(all[len(all)-(length-1-begin):])
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

// WriteRow keeps the column positions whatever a cell's length: a cell that runs into the next column sends that to a new line. One that
// would run past the terminal's width (0: there is none) has a new line itself, and ends where the terminal does.
func WriteRow(out *bufio.Writer, width int, line []string, widths []int, right []bool) {
	at, start := 0, 0 // where the line is, where the column begins
	for i, text := range line {
		length := utf8.RuneCountInString(text)
		begin := start
		if right[i] {
			begin += max(0, widths[i]-length)
		}
		past := width > 0 && length <= width && begin+length > width
		if past {
			begin = width - length
		}
		if i > 0 && (past && begin < at+Gap || utf8.RuneCountInString(line[i-1]) > widths[i-1]) {
			out.WriteByte('\n')
			at = 0
		}
		out.WriteString(strings.Repeat(" ", begin-at))
		out.WriteString(text)
		at = begin + length
		start += widths[i] + Gap
	}
	out.WriteByte('\n')
}

// FileOf is the file that a writer is, or writes to.
func FileOf(w io.Writer) (*os.File, bool) {
	if to, is := w.(interface{ File() (*os.File, bool) }); is {
		return to.File()
	}
	file, is := w.(*os.File)
	return file, is
}

// TerminalWidth is the width in columns of the terminal that w is, 0 when it is none.
func TerminalWidth(w io.Writer) int {
	file, ok := FileOf(w)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Fold breaks a line at spaces into lines that are as wide as a terminal at the most; width 0 is none. What goes on begins where the line's
// last column begins, if that is in the first half of the width.
func Fold(line string, width int) (lines []string) {
	text, start, indented := []rune(line), lastColumn(line, width/2), 0
	for width > 0 && indented+len(text) > width {
		at := width - indented
		for space := at; space > start-indented; space-- {
			if text[space] == ' ' {
				at = space
				break
			}
		}
		lines = append(lines, strings.Repeat(" ", indented)+strings.TrimRight(string(text[:at]), " "))
		text, indented = []rune(strings.TrimLeft(string(text[at:]), " ")), start
	}
	return append(lines, strings.Repeat(" ", indented)+string(text))
}

// lastColumn is where the last column begins that begins within so many characters.
func lastColumn(line string, within int) (start int) {
	for _, gap := range gaps.FindAllStringIndex(line, -1) {
		if at := utf8.RuneCountInString(line[:gap[1]]); at <= within {
			start = at
		}
	}
	return start
}

// gaps are those between the columns of a line, and what indents it.
var gaps = regexp.MustCompile(` {2,}`)
