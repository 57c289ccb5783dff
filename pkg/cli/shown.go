// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/table"
)

// shown is how rows are printed.
type shown[R any] struct {
	columns []table.Column[R]
	empty   string       // what a table without rows says
	none    func() error // why there are no rows, where that is an error; nil: it never is
	bare    bool         // no headings
	output  *command.OutputFlag
	stamp   stamp // of the rows, but in tables
}

// manyRows are as many as are kept before they are printed.
const manyRows = 10_000

// all prints rows that are there, in their order.
func (s *shown[R]) all(w io.Writer, width int, rows []R) error {
	if len(rows) == 0 && s.none != nil {
		if err := s.none(); err != nil {
			return err
		}
	}
	format := s.output.Value
	switch tables := format == command.FormatTable || format == command.FormatWide; {
	case s.output.Path != nil:
		return s.output.Path.Write(w, stampAll(s.stamp, rows))
	case !tables:
		return command.WriteRows(w, width, format, nil, stampAll(s.stamp, rows))
	case len(rows) == 0:
		_, err := fmt.Fprintln(w, s.empty)
		return err
	case s.bare:
		w = &headless{Writer: w}
	}
	return command.WriteRows(w, width, format, s.columns, rows)
}

// each prints rows in order where there are not very many, and else as they come.
func (s *shown[R]) each(w io.Writer, width int, rows iter.Seq2[R, error], compare func(a, b *R) int) error {
	var kept []R
	var out *pieces[R]
	flush := func() error {
		if out == nil {
			out = s.pieces(w)
		}
		err := out.write(width, kept)
		kept = kept[:0]
		return err
	}
	for row, err := range rows {
		if err != nil {
			return err
		}
		kept = append(kept, row)
		if len(kept) == manyRows && s.output.Path == nil {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if out == nil {
		slices.SortFunc(kept, func(a, b R) int { return compare(&a, &b) })
		return s.all(w, width, kept)
	}
	if len(kept) > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	return out.end()
}

// pieces prints rows as they come, so that together they are what writeRows prints of all of them, but for the widths of a table's
// columns: they grow as they must.
type pieces[R any] struct {
	w      io.Writer
	format string
	stamp  stamp
	table  *stream[R]
	begun  bool
}

func (s *shown[R]) pieces(w io.Writer) *pieces[R] {
	if s.bare {
		w = &headless{Writer: w, past: s.output.Value != command.FormatTable && s.output.Value != command.FormatWide}
	}
	return &pieces[R]{w: w, format: s.output.Value, stamp: s.stamp, table: newStream(w, s.output.Value == command.FormatWide, s.columns)}
}

func (p *pieces[R]) write(width int, rows []R) error {
	defer func() { p.begun = true }()
	switch p.format {
	case command.FormatJSON:
		return p.writeJSON(rows)
	case command.FormatJSONL, command.FormatYAML:
		return command.WriteRows(p.w, width, p.format, nil, stampAll(p.stamp, rows))
	}
	return p.table.write(width, rows...)
}

// writeJSON writes the rows of a list that goes on.
func (p *pieces[R]) writeJSON(rows []R) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("  ", "  ")
	for i := range rows {
		before := ",\n  "
		if !p.begun && i == 0 {
			before = "[\n  "
		}
		text.WriteString(before)
		if err := encoder.Encode(stamped[R]{p.stamp, &rows[i]}); err != nil {
			return err
		}
		text.Truncate(text.Len() - 1) // the encoder's end of line
	}
	_, err := p.w.Write(text.Bytes())
	return err
}

func (p *pieces[R]) end() error {
	if p.format != command.FormatJSON {
		return nil
	}
	_, err := io.WriteString(p.w, "\n]\n")
	return err
}
