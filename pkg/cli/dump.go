// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nearlb/nearlb/pkg/maps"
)

// dump is a command that prints the rows of one table.
type dump[R any] struct {
	use, short, example string
	filters             int // byService ...
	rows                func(*maps.Reader) iter.Seq2[R, error]
	keep                func(R, *filter) bool
	columns             []column[R]
	empty               string // what it means that there are none
}

func (d dump[R]) command(more ...func(*cobra.Command, *filter)) *cobra.Command {
	var pins pinFlags
	var only filter
	var again watchFlags
	cmd := &cobra.Command{Use: d.use, Short: d.short, Example: d.example, Args: noArguments}
	pins.add(cmd.Flags())
	only.add(cmd, d.filters, &pins)
	for _, add := range more {
		add(cmd, &only)
	}
	output := addOutputFlag(cmd, formatTable, formatWide, formatJSON, formatYAML)
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
			return pins.read(func(reader *maps.Reader) error {
				rows, err := collect(d.rows(reader), func(row R) bool { return d.keep(row, &only) })
				if err != nil {
					return err
				}
				return d.print(w, width, output.value, rows, only.narrows())
			})
		})
	}
	return cmd
}

func (d dump[R]) print(w io.Writer, width int, format string, rows []R, filtered bool) error {
	if len(rows) == 0 && (format == formatTable || format == formatWide) {
		text := d.empty
		if filtered {
			text = "Nothing matches the filters."
		}
		_, err := fmt.Fprintln(w, text)
		return err
	}
	return writeRows(w, width, format, d.columns, rows)
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
		return print(out, terminalWidth(out))
	}
	if f.interval < 100*time.Millisecond {
		return usagef("--interval %v: want 100ms or more", f.interval)
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for {
		var page bytes.Buffer
		if err := print(&page, terminalWidth(out)); err != nil {
			return err
		}
		if err := turnPage(out, page.Bytes()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// turnPage clears the terminal and shows what fits on it; anything else gets the whole page.
func turnPage(out io.Writer, page []byte) error {
	file, ok := out.(*os.File)
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
