// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/journal"
)

// changeFilter keeps the changes that a person asked for. Those of no single Service go with none.
type changeFilter struct {
	service string
	since   sinceFlag
}

func (f *changeFilter) keeps(c *journal.Change) bool {
	return keepsService(f.service, c.Service, c.Port) && !c.Time.Before(f.since.at)
}

func changesCommand() *cobra.Command {
	var live agentFlags
	var only changeFilter
	var follow bool
	cmd := &cobra.Command{
		Use:   "changes",
		Short: "List what was published of late and why, and the agent's life",
		Long: `Lists what changed for clients of this node, oldest first, with the object that
it came from: backends and frontends that came or went, policies, affinity,
source ranges, this Node, tables that grew, the agent's life. The agent keeps
the last 512 kB, some 2,000 changes, through restarts too; where none runs, what
it left is listed. A first start is one line, however much it published.`,
		Example: `  nearlb changes --since 5m
  nearlb changes -f --service prod/web
  nearlb changes -o jsonl`,
		Args: noArguments,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until interrupted")
	flags.StringVar(&only.service, "service", "", "only this Service: `namespace/name[:port]`, or its name in any namespace")
	flags.Var(&only.since, "since", "only what came since: 5m ago, or a `time` as 2006-01-02T15:04:05Z")
	live.add(flags)
	complete(cmd, "service", func() []string { return liveServices(&live.pins) })
	output := addOutputFlag(cmd, formatTable, formatWide, formatJSONL)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p := changePrinter{out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), format: output.value, follow: follow, only: &only}
		p.table = newStream(p.out, output.value == formatWide, changeColumns(time.Now()))
		return p.run(cmd.Context(), &live)
	}
	return cmd
}

// changePrinter writes changes as they come.
type changePrinter struct {
	out, errs io.Writer
	format    string
	follow    bool
	only      *changeFilter
	table     *stream[journal.Change]
	batch     []journal.Change // of a table that is not followed: its columns are made for all
}

func changeColumns(now time.Time) []column[journal.Change] {
	return []column[journal.Change]{
		{heading: "TIME", cell: func(c journal.Change) string { return clock(c.Time, now) }},
		{heading: "WHAT", cell: func(c journal.Change) string { return c.What }},
		{heading: "ABOUT", cell: changeSubject},
		{heading: "SERVICE", wide: true, cell: func(c journal.Change) string { return withPort(c.Service, c.Port) }},
		{heading: "FROM", wide: true, cell: func(c journal.Change) string { return c.From }},
		{heading: "TO", wide: true, cell: func(c journal.Change) string { return c.To }},
		{heading: "BECAUSE", cell: func(c journal.Change) string { return c.Because }},
	}
}

// changeSubject is what changed, as short as it is clear.
func changeSubject(c journal.Change) string {
	switch {
	case c.Backend != "":
		return c.Backend + " of " + withPort(c.Service, c.Port)
	case c.Frontend != "":
		return c.Frontend + " of " + withPort(c.Service, c.Port)
	case c.Service != "":
		return withPort(c.Service, c.Port)
	case c.What == "services-published":
		return c.To + " Services"
	}
	return ""
}

// run reads from the agent, or where none runs what it left.
func (p *changePrinter) run(ctx context.Context, live *agentFlags) error {
	if p.follow {
		var stop context.CancelFunc
		ctx, stop = untilSignal(ctx)
		defer stop()
	}
	err := agent.ReadChanges(ctx, live.lockDir, live.pins.pinPath, p.follow, p.tell)
	switch {
	case p.follow && ctx.Err() != nil:
		return nil
	case p.follow, err != nil && !errors.Is(err, agent.ErrNotAsked):
		return err
	case err != nil:
		if err := p.left(live, err); err != nil {
			return err
		}
	}
	if p.format == formatJSONL {
		return nil
	}
	return p.end()
}

// left prints what the last agent left; without any the agent is what is missing.
func (p *changePrinter) left(live *agentFlags, none error) error {
	lines, err := agent.LeftChanges(live.lockDir, live.pins.pinPath)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return none
	}
	fmt.Fprintln(p.errs, "nearlb: no agent runs: what follows ends with the last one")
	for _, line := range lines {
		if err := p.tell(agent.ChangeNews{Change: (*json.RawMessage)(&line)}); err != nil {
			return err
		}
	}
	return nil
}

func (p *changePrinter) tell(news agent.ChangeNews) error {
	if news.Forgotten > 0 {
		fmt.Fprintf(p.errs, "nearlb: %d changes are missing here: they came faster than they were read\n", news.Forgotten)
	}
	if news.Change == nil {
		return nil
	}
	var row journal.Change
	if err := json.Unmarshal(*news.Change, &row); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	switch {
	case !p.only.keeps(&row):
		return nil
	case p.format == formatJSONL:
		return writeJSONLine(p.out, row)
	case p.follow:
		return p.table.write(terminalWidth(p.out), row)
	}
	p.batch = append(p.batch, row)
	return nil
}

func (p *changePrinter) end() error {
	if len(p.batch) == 0 {
		nothing := "No changes: nothing was published of late."
		if *p.only != (changeFilter{}) {
			nothing = "Nothing matches the filters."
		}
		_, err := fmt.Fprintln(p.out, nothing)
		return err
	}
	return writeTable(p.out, terminalWidth(p.out), p.format == formatWide, changeColumns(time.Now()), p.batch)
}
