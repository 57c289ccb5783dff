// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"

	"github.com/nearlb/nearlb/pkg/table"
)

// dump is a command that prints the rows of one table.
type dump[R any] struct {
	use, short, example string
	filters             int // byService ...
	rows                func(*maps.Reader) iter.Seq2[R, error]
	keep                func(R, *filter) bool
	columns             []table.Column[R]
	service             func(R) string // namespace/name, of commands that take a Service's NAME and have -o name; nil: others
	empty               string         // what it means that there are none

	ready func([]R)                                     // fills in what depends on the rows above; nil: nothing does
	ask   func(context.Context, *agentFlags, []R) error // fills in what an agent knows, but for narrow tables; nil: nothing
	// Of commands that show differences with --watch: what makes a row that of the print before, and what it has gained a second since.
	identity func(*R) any
	rates    func(before, now *R, seconds float64)
}

func (d dump[R]) command(more ...func(*cobra.Command, *filter)) *cobra.Command {
	var live agentFlags
	var only filter
	var again watchFlags
	var bare bool
	pins := &live.pins
	cmd := &cobra.Command{Use: d.use, Short: d.short, Example: d.example, Args: command.NoArguments}
	live.add(cmd.Flags())
	only.add(cmd, d.filters, pins)
	for _, add := range more {
		add(cmd, &only)
	}
	formats := []string{command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatJSONL, command.FormatYAML}
	if d.service != nil {
		formats = append(formats, command.FormatName)
		takesName(cmd, pins)
	}
	output := command.AddOutputFlag(cmd, append(formats, command.FormatJSONPath)...)
	var order sortFlag
	order.add(cmd)
	cmd.Flags().BoolVar(&bare, "no-headers", false, "tables without their headings")
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := only.take(args); err != nil {
			return err
		}
		last := differences[R]{dump: &d}
		var row R
		if err := order.of(row); err != nil {
			return err
		}
		show := shown[R]{columns: d.at(again.on).columns, empty: d.empty, bare: bare, output: output}
		if only.narrows() {
			show.empty = "Nothing matches the filters."
		}
		owner := tableOwner{live: &live, notes: notesOf(cmd.ErrOrStderr(), &again, output.Value)}
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
			owner.look(w, width)
			show.stamp = stampNow(owner.status)
			return pins.read(func(reader *maps.Reader) error {
				kept := func(row R) bool { return d.keep(row, &only) }
				rows, err := collect(d.rows(reader), func(row R) bool { return again.on || kept(row) })
				if err != nil {
					return err
				}
				if again.on { // what comes into the filter later was there before
					last.follow(rows, time.Now())
					rows = slices.DeleteFunc(rows, func(row R) bool { return !kept(row) })
				}
				if len(rows) == 0 {
					if err := only.named(reader); err != nil {
						return err
					}
				}
				sortRows(rows, &order)
				if d.ready != nil {
					d.ready(rows)
				}
				if output.Value == command.FormatName {
					return d.printNames(w, rows)
				}
				if d.ask != nil && output.Value != command.FormatTable {
					err := owner.ask(func() error { return d.ask(cmd.Context(), &live, rows) })
					owner.unanswered(w, width, "", err)
				}
				return show.all(w, width, rows)
			})
		})
	}
	return cmd
}

// printNames writes each Service once, in the order of its rows.
func (d dump[R]) printNames(w io.Writer, rows []R) error {
	told := map[string]bool{}
	for _, row := range rows {
		if name := d.service(row); !told[name] {
			told[name] = true
			if _, err := fmt.Fprintln(w, table.Printable(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// headless leaves out the first line: a table's headings, which are never longer than their columns.
type headless struct {
	io.Writer
	past bool
}

func (h *headless) Write(text []byte) (int, error) {
	rest := text
	if !h.past {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			return len(text), nil
		}
		h.past, rest = true, text[end+1:]
	}
	n, err := h.Writer.Write(rest)
	return n + len(text) - len(rest), err
}

// watchFlags print again and again.
type watchFlags struct {
	on       bool
	interval time.Duration
}

func (f *watchFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.on, "watch", "w", false, "print again every --interval, until interrupted")
	cmd.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "time between two prints of --watch")
}

// run prints once, or until ctx ends, which is no error then. On a terminal each print takes the place of the one before.
func (f *watchFlags) run(ctx context.Context, out io.Writer, print func(w io.Writer, width int) error) error {
	if !f.on {
		return print(out, table.TerminalWidth(out))
	}
	if f.interval < 100*time.Millisecond {
		return command.Usagef("--interval %v: want 100ms or more", f.interval)
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	for {
		var page bytes.Buffer
		if err := print(&page, table.TerminalWidth(out)); err != nil {
			return err
		}
		if err := turnPage(out, page.Bytes()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval): // from the end of a print: late ones are not made up for
		}
	}
}

// turnPage clears the terminal and shows what fits on it; anything else gets the whole page.
func turnPage(out io.Writer, page []byte) error {
	file, ok := table.FileOf(out)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		_, err := out.Write(page)
		return err
	}
	_, height, err := term.GetSize(int(file.Fd()))
	if lines := bytes.SplitAfter(page, []byte("\n")); err == nil && height > 2 && len(lines) > height {
		more := len(lines) - height + 1
		page = fmt.Appendf(bytes.Join(lines[:height-2], nil), "... %d more lines\n", more)
	}
	_, err = out.Write(append([]byte("\x1b[H\x1b[2J"), page...))
	return err
}
