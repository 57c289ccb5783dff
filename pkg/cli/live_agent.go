// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/table"
)

// agentFlags say which agent is asked.
type agentFlags struct {
	pins    pinFlags
	lockDir string
}

func (f *agentFlags) add(flags *pflag.FlagSet) {
	f.pins.add(flags)
	addLockDir(flags, &f.lockDir)
}

// stream writes rows of a table as they come: under headings that are written once, in columns that do not become narrower.
type stream[R any] struct {
	out     *bufio.Writer
	columns []table.Column[R]
	widths  []int
}

// newStream shows the columns that are always shown, and with wide all.
func newStream[R any](w io.Writer, wide bool, columns []table.Column[R]) *stream[R] {
	shown := slices.DeleteFunc(slices.Clone(columns), func(c table.Column[R]) bool { return c.Wide && !wide })
	return &stream[R]{out: bufio.NewWriter(w), columns: shown}
}

// write writes some rows, the first ones in columns that fit them into a terminal's width.
func (s *stream[R]) write(width int, rows ...R) error {
	cells := make([][]string, 0, len(rows)+1)
	if headings := s.headings(); s.widths == nil {
		cells = append(cells, headings)
	}
	for _, row := range rows {
		line := make([]string, len(s.columns))
		for i, c := range s.columns {
			if line[i] = table.Printable(c.Cell(row)); line[i] == "" {
				line[i] = "-"
			}
		}
		cells = append(cells, line)
	}
	right := make([]bool, len(s.columns))
	if s.widths == nil {
		s.widths, _ = table.Widths(cells, width, right)
	}
	for _, line := range cells {
		s.widen(line, width)
		table.WriteRow(s.out, width, line, s.widths, right)
	}
	return s.out.Flush()
}

func (s *stream[R]) headings() (texts []string) {
	for _, c := range s.columns {
		texts = append(texts, c.Heading)
	}
	return texts
}

// widen makes the columns as wide as a line needs, if the terminal has room for that.
func (s *stream[R]) widen(line []string, width int) {
	wider, total := slices.Clone(s.widths), table.Gap*(len(line)-1)
	for i, text := range line {
		wider[i] = max(wider[i], utf8.RuneCountInString(text))
		total += wider[i]
	}
	if width == 0 || total <= width {
		s.widths = wider
	}
}

// sinceFlag is a time in the past, as a duration before now or in RFC 3339.
type sinceFlag struct{ at time.Time }

func (f *sinceFlag) Type() string { return "time" }

func (f *sinceFlag) String() string {
	if f.at.IsZero() {
		return ""
	}
	return f.at.Format(time.RFC3339)
}

func (f *sinceFlag) Set(text string) error {
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		f.at = time.Now().Add(-ago)
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("want a time before now as 5m or 2h30m, or a time as 2006-01-02T15:04:05Z")
	}
	f.at = at
	return nil
}

// clock is a time of day, with the date if it is another day than now's.
func clock(at, now time.Time) string {
	at = at.In(now.Location())
	if at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format("15:04:05.000")
	}
	return at.Format("2006-01-02 15:04:05")
}

// keepsText is filter.keepsService for rows that have no row type of the tables: namespace/name[:port], or the name in any namespace.
func keepsService(asked, service, port string) bool {
	return (&filter{service: asked}).keepsService(service, port)
}

// keepsPod tells whether a Pod of "namespace/name" is the one that was asked for, by that or by its name.
func keepsPod(asked, pod string) bool {
	return pod != "" && (asked == pod || strings.HasSuffix(pod, "/"+asked))
}
