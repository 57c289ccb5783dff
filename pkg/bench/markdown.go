// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Markdown writes the table that docs/performance.md shows: a line for each way and number of flows, a column for each family and
// protocol, net nanoseconds in the cells: minimum and median.
func (r Result) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Nanoseconds a packet, minimum / median of %d runs, less an empty program behind the same wrapper (%.0f).\n", r.Runs, r.Floor.Empty)
	fmt.Fprintf(&b, "Beside it: one hot lookup in a kernel hash %.0f, rewriting a packet %.0f. Linux %s, %s.\n\n", r.Floor.HashLookupNet, r.Floor.RewriteNet, r.Kernel, r.CPU)
	columns, lines, cells := r.grid()
	fmt.Fprintf(&b, "| path | flows | %s |\n|---|---:|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s | %s |", l.path, flowsText(l.flows))
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", cells[cell{l, c}])
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// line is a way through the programs, whatever family and protocol.
type line struct {
	path  string // "from_pod established"
	flows int
}

type cell struct {
	line   line
	column string
}

// grid sorts the paths into columns and lines, both in the order in which they were measured.
func (r Result) grid() (columns []string, lines []line, cells map[cell]string) {
	cells = map[cell]string{}
	for _, p := range r.Paths {
		parts := strings.Split(p.Name, "/")
		if len(parts) != 3 {
			continue
		}
		l := line{path: parts[0] + " " + parts[2], flows: p.Flows}
		if !slices.Contains(columns, parts[1]) {
			columns = append(columns, parts[1])
		}
		if !slices.Contains(lines, l) {
			lines = append(lines, l)
		}
		cells[cell{l, parts[1]}] = fmt.Sprintf("%.0f / %.0f", p.Net, p.Median-r.Floor.of(p))
	}
	return columns, lines, cells
}

// of is the empty program that a path is less of.
func (f Floor) of(p Path) float64 {
	if strings.HasPrefix(p.Name, "xdp/") {
		return f.EmptyXDP
	}
	return f.Empty
}

// flowsText writes 100000 as 100,000, and nothing for a path without flows.
func flowsText(n int) string {
	if n == 0 {
		return ""
	}
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
