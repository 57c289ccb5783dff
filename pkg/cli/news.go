// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"

	"github.com/nearlb/nearlb/pkg/table"
)

// newsFlags are those of a command that lists what an agent keeps.
type newsFlags struct {
	live    agentFlags
	follow  bool
	service string
	since   sinceFlag
	output  *command.OutputFlag
}

func (f *newsFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with what comes, until interrupted")
	flags.StringVar(&f.service, "service", "", "only this Service: `namespace/name[:port]`, or its name in any namespace")
	flags.Var(&f.since, "since", "only what came since: 5m ago, or a `time` as 2006-01-02T15:04:05Z")
	f.live.add(flags)
	command.Complete(cmd, "service", func() []string { return liveServices(&f.live.pins) })
	f.output = command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSONL)
}

// newsPrinter writes rows as an agent tells of them.
type newsPrinter[R any] struct {
	out, errs io.Writer
	format    string
	follow    bool
	keeps     func(*R) bool
	columns   func(now time.Time) []table.Column[R]
	rows      string       // what they are
	nothing   string       // what it means that there are none
	none      func() error // why there are none, where that is an error; nil: it never is
	told      bool         // a row

	table *stream[R]
	batch []R // of a table that is not followed: its columns are made for all
}

func newNewsPrinter[R any](cmd *cobra.Command, f *newsFlags, columns func(time.Time) []table.Column[R]) newsPrinter[R] {
	return newsPrinter[R]{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), format: f.output.Value, follow: f.follow, columns: columns, none: f.named}
}

// named is an error where a Service was asked for by its name, and there is none of that name. What is followed may be of one that comes.
func (f *newsFlags) named() (missing error) {
	if f.follow {
		return nil
	}
	f.live.pins.read(func(r *maps.Reader) error { // where there are no tables, the agent's news are all there is
		missing = (&filter{service: f.service}).named(r)
		return nil
	})
	return missing
}

// noNews explains an empty list.
func noNews(filtered bool, none string) string {
	if filtered {
		return "Nothing matches the filters."
	}
	return none
}

// readNews reads until the agent has told all, or ctx ends or a signal comes where it is followed.
func readNews(ctx context.Context, f *newsFlags, read func(ctx context.Context, lockDir, pinPath string, follow bool, tell func(agent.News) error) error,
	tell func(agent.News) error) error {
	if !f.follow {
		return read(ctx, f.live.lockDir, f.live.pins.pinPath, false, tell)
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	if err := read(ctx, f.live.lockDir, f.live.pins.pinPath, true, tell); ctx.Err() == nil {
		return err
	}
	return nil
}

func (p *newsPrinter[R]) tell(news agent.News) error {
	if news.Forgotten > 0 {
		command.SayAside(p.errs, fmt.Sprintf("%d %s are missing here: they came faster than they were read", news.Forgotten, p.rows))
	}
	if news.Line == nil {
		return nil
	}
	var row R
	if err := json.Unmarshal(*news.Line, &row); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if !p.keeps(&row) {
		return nil
	}
	p.told = true
	switch {
	case p.format == command.FormatJSONL:
		return command.WriteJSONLine(p.out, row)
	case !p.follow:
		p.batch = append(p.batch, row)
		return nil
	}
	if p.table == nil {
		p.table = newStream(p.out, p.format == command.FormatWide, p.columns(time.Now()))
	}
	return p.table.write(table.TerminalWidth(p.out), row)
}

// gathers says whether all is written at the end, as one table.
func (p *newsPrinter[R]) gathers() bool { return p.format != command.FormatJSONL && !p.follow }

// end writes what is kept for a table: the agent has told all.
func (p *newsPrinter[R]) end() error {
	if !p.told && p.none != nil {
		if err := p.none(); err != nil {
			return err
		}
	}
	if !p.gathers() {
		return nil
	}
	if len(p.batch) > 0 {
		return table.WriteColumns(p.out, table.TerminalWidth(p.out), p.format == command.FormatWide, p.columns(time.Now()), p.batch)
	}
	_, err := fmt.Fprintln(p.out, p.nothing)
	return err
}
