// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/table"
)

// changeFilter keeps the changes that a person asked for. Those of no single Service go with none, but for those that say which they concern.
type changeFilter struct {
	service string
	since   time.Time
}

func (f *changeFilter) keeps(c *journal.Change) bool {
	return concerns(f.service, c) && !c.Time.Before(f.since)
}

// concerns says whether a change is of a Service that was asked for, or of what is that of several, such as a node.
func concerns(asked string, c *journal.Change) bool {
	name, _, _ := strings.Cut(asked, ":")
	return keepsService(asked, c.Service, c.Port) || slices.ContainsFunc(c.Services, func(service string) bool { return keepsService(name, service, "") })
}

func changesCommand() *cobra.Command {
	var f newsFlags
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
		Args: command.NoArguments,
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p := newChangePrinter(newNewsPrinter(cmd, &f, changeColumns), changeFilter{f.service, f.since.at})
		err := readNews(cmd.Context(), &f, agent.ReadChanges, p.tell)
		if errors.Is(err, agent.ErrNotAsked) && !f.follow {
			err = leftChanges(p, &f.live, err)
		}
		if err != nil {
			return err
		}
		return p.end()
	}
	return cmd
}

func newChangePrinter(to newsPrinter[journal.Change], only changeFilter) *newsPrinter[journal.Change] {
	to.keeps, to.rows = only.keeps, "changes"
	to.nothing = noNews(only != (changeFilter{}), "No changes: nothing was published of late.")
	return &to
}

func changeColumns(now time.Time) []table.Column[journal.Change] {
	return []table.Column[journal.Change]{
		{Heading: "TIME", Cell: func(c journal.Change) string { return clock(c.Time, now) }},
		{Heading: "WHAT", Cell: func(c journal.Change) string { return c.What }},
		{Heading: "ABOUT", Cell: changeSubject},
		{Heading: "SERVICE", Wide: true, Cell: func(c journal.Change) string { return table.WithPort(c.Service, c.Port) }},
		{Heading: "FROM", Wide: true, Cell: func(c journal.Change) string { return c.From }},
		{Heading: "TO", Wide: true, Cell: func(c journal.Change) string { return c.To }},
		{Heading: "BECAUSE", Cell: func(c journal.Change) string { return c.Because }},
	}
}

// changeSubject is what changed, as short as it is clear.
func changeSubject(c journal.Change) string {
	switch {
	case c.Backend != "":
		return c.Backend + " of " + table.WithPort(c.Service, c.Port)
	case c.Frontend != "":
		return c.Frontend + " of " + table.WithPort(c.Service, c.Port)
	case c.Service != "":
		return table.WithPort(c.Service, c.Port)
	case c.What == "services-published":
		return "Services: " + c.To
	}
	return ""
}

// leftChanges prints what the last agent left; without any the agent is what is missing.
func leftChanges(p *newsPrinter[journal.Change], live *agentFlags, none error) error {
	lines, err := agent.LeftChanges(live.lockDir, live.pins.pinPath)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return none
	}
	command.SayAside(p.errs, "no agent runs: what follows ends with the last one")
	for _, line := range lines {
		if err := p.tell(agent.News{Line: (*json.RawMessage)(&line)}); err != nil {
			return err
		}
	}
	return nil
}
