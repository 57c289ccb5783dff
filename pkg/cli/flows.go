// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

func flowsCommand() *cobra.Command {
	var live agentFlags
	var only filter
	var again watchFlags
	var bare, bytes bool
	var states stateFlag
	var group string
	var order sortFlag
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the connections that the kernel remembers",
		Long: `Lists the connections that go on, those of pods and clients off the node: new
(nothing came back yet), answered, open, and closing (one side has). --all and
--state show those that have ended, too, as long as the kernel remembers them.
AGE is the time since its entry was made, IDLE since its last packet. Up to
10,000 are listed by client; of more, each is printed as it is read, in no
order, unless --sort-by asks for one. The second entry of a connection whose
source port is translated is in JSON and -o wide (FLAGS: alias).

--bytes adds what each client sent and received since somebody first asked: the
agent has the programs count for a minute after each question, and ends it when
nobody asks. Packets take the longer path through the programs meanwhile. The
first question waits a second, so that there is something to show.`,
		Example: `  nearlb flows --service default/web
  nearlb flows --client 10.244.1.1 --state closed,reset -o wide
  nearlb flows --group-by client
  nearlb flows --backend 10.244.2.10 --sort-by -idleSeconds
  nearlb flows --bytes --group-by client --sort-by -bytesReceived -w`,
		Args: command.NoArguments,
	}
	flags := cmd.Flags()
	pins := &live.pins
	live.add(flags)
	only.add(cmd, byService|byNode|byBackend|byClient|byFrontend, pins)
	flags.BoolVar(&only.all, "all", false, "those that have ended, too")
	flags.BoolVar(&bytes, "bytes", false, "count bytes of each flow from now on, and show them")
	flags.Var(&states, "state", "only flows in these `states`: "+strings.Join(maps.FlowStates(), ", "))
	command.Complete(cmd, "state", maps.FlowStates)
	flags.StringVar(&group, "group-by", "", "count flows by `WHAT`: client, service or backend")
	command.Complete(cmd, "group-by", func() []string { return []string{"client", "service", "backend"} })
	order.add(cmd)
	formats := []string{command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatJSONL, command.FormatYAML, command.FormatJSONPath}
	output := command.AddOutputFlag(cmd, formats...)
	flags.BoolVar(&bare, "no-headers", false, "tables without their headings")
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := only.take(args); err != nil {
			return err
		}
		keep := func(r *maps.FlowRow) bool {
			return states.keeps(r.State, only.all) && keepFlow(r, &only) && (output.Value != command.FormatTable || !slices.Contains(r.Flags, "alias"))
		}
		list := func(reader *maps.Reader) iter.Seq2[maps.FlowRow, error] { return sieve(reader.Flows(), keep) }
		counting := flowCounting{owner: tableOwner{live: &live, notes: notesOf(cmd.ErrOrStderr(), &again, output.Value)}}
		if bytes {
			list = func(reader *maps.Reader) iter.Seq2[maps.FlowRow, error] { return sieve(reader.CountedFlows(), keep) }
		}
		narrowed := only.narrows() || len(states.only) > 0
		if group != "" {
			by, err := groupBy(group)
			if err != nil {
				return err
			}
			show := shown[groupRow]{columns: groupColumns(by, bytes), empty: noFlows(narrowed), bare: bare, output: output}
			if err := order.of(groupRow{}); err != nil {
				return err
			}
			return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
				if err := counting.begin(cmd.Context(), w, width, bytes); err != nil {
					return err
				}
				show.stamp = stampNow(counting.owner.status)
				return pins.read(func(reader *maps.Reader) error {
					show.none = func() error { return only.named(reader) }
					rows, err := groupFlows(list(reader), by)
					if err != nil {
						return err
					}
					sortRows(rows, &order)
					return show.all(w, width, rows)
				})
			})
		}
		show := shown[maps.FlowRow]{columns: flowColumns(), empty: noFlows(narrowed), bare: bare, output: output}
		if err := order.of(maps.FlowRow{}); err != nil {
			return err
		}
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
			if err := counting.begin(cmd.Context(), w, width, bytes); err != nil {
				return err
			}
			show.stamp = stampNow(counting.owner.status)
			return pins.read(func(reader *maps.Reader) error {
				show.none = func() error { return only.named(reader) }
				if !order.given() {
					return show.each(w, width, list(reader), (*maps.FlowRow).Compare)
				}
				rows, err := collect(list(reader), func(maps.FlowRow) bool { return true })
				if err != nil {
					return err
				}
				sortRows(rows, &order)
				return show.all(w, width, rows)
			})
		})
	}
	return cmd
}

func noFlows(narrowed bool) string {
	if narrowed {
		return "Nothing matches the filters."
	}
	return "No flows: no connection to a Service goes on. --all shows those that have ended."
}

func keepFlow(r *maps.FlowRow, f *filter) bool {
	return f.keepsService(r.Service, r.Port) && f.keepsNode(r.Node) && f.backend.keeps(r.Backend, r.BackendPort) &&
		f.client.keeps(r.Client, r.ClientPort) && f.frontend.keeps(r.Frontend, r.FrontendPort)
}

// sieve leaves out the rows that are not wanted, one at a time.
func sieve[R any](rows iter.Seq2[R, error], keep func(*R) bool) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for row, err := range rows {
			if (err != nil || keep(&row)) && !yield(row, err) {
				return
			}
		}
	}
}

// stateFlag is some states of flows.
type stateFlag struct{ only []string }

func (f *stateFlag) Type() string   { return "states" }
func (f *stateFlag) String() string { return strings.Join(f.only, ",") }

// Set refuses words that are no state.
func (f *stateFlag) Set(text string) error {
	f.only = nil
	for word := range strings.SplitSeq(text, ",") {
		if !slices.Contains(maps.FlowStates(), word) {
			return unknownWord("state", word, maps.FlowStates())
		}
		f.only = append(f.only, word)
	}
	return nil
}

// keeps tells whether flows of a state are shown: those that were asked for, else those that go on, or all.
func (f *stateFlag) keeps(state string, all bool) bool {
	if len(f.only) > 0 {
		return slices.Contains(f.only, state)
	}
	return all || maps.GoesOn(state)
}

func flowColumns() []table.Column[maps.FlowRow] {
	return []table.Column[maps.FlowRow]{
		{Heading: "CLIENT", Cell: func(r maps.FlowRow) string { return table.HostPort(r.Client, r.ClientPort) }},
		{Heading: "FRONTEND", Cell: func(r maps.FlowRow) string { return table.HostPort(r.Frontend, r.FrontendPort) + "/" + r.Protocol }},
		{Heading: "BACKEND", Cell: func(r maps.FlowRow) string { return table.HostPort(r.Backend, r.BackendPort) }},
		{Heading: "STATE", Cell: func(r maps.FlowRow) string { return r.State }},
		{Heading: "AGE", Right: true, Cell: func(r maps.FlowRow) string { return flowAge(r.AgeSeconds) }},
		{Heading: "IDLE", Right: true, Cell: func(r maps.FlowRow) string { return idle(r.IdleSeconds) }},
		{Heading: "SENT", Right: true, Needed: isCounted, Cell: func(r maps.FlowRow) string { return sizeOf(r.BytesSent) }},
		{Heading: "RECEIVED", Right: true, Needed: isCounted, Cell: func(r maps.FlowRow) string { return sizeOf(r.BytesReceived) }},
		{Heading: "SERVICE", Wide: true, Cell: func(r maps.FlowRow) string { return table.WithPort(r.Service, r.Port) }},
		{Heading: "NODE", Wide: true, Cell: func(r maps.FlowRow) string { return r.Node }},
		{Heading: "ZONE", Wide: true, Cell: func(r maps.FlowRow) string { return r.Zone }},
		{Heading: "BACKEND IS", Wide: true, Cell: func(r maps.FlowRow) string { return r.BackendState }},
		{Heading: "SOURCE PORT", Wide: true, Right: true, Cell: func(r maps.FlowRow) string { return strconv.Itoa(int(r.SourcePort)) }},
		{Heading: "FLAGS", Wide: true, Cell: func(r maps.FlowRow) string { return strings.Join(r.Flags, ",") }},
	}
}

func isCounted(r maps.FlowRow) bool { return r.BytesSent != nil }

// flowAge is a time that may not be known.
func flowAge(seconds *int64) string {
	if seconds == nil {
		return ""
	}
	return idle(*seconds)
}

// sizeOf is a number of bytes that may not be known.
func sizeOf(bytes *uint64) string {
	if bytes == nil {
		return ""
	}
	return size(*bytes)
}
