// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/journal"
)

// dropFilter keeps the events that a person asked for.
type dropFilter struct {
	service, client, verdict string
	since                    sinceFlag
}

func dropsCommand() *cobra.Command {
	var live agentFlags
	var only dropFilter
	var follow bool
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "List packets that were dropped or rejected of late, and why",
		Long: `Lists what the programs told of packets that Services did not get, oldest first,
with names as they were then: the agent keeps the last 512 kB, some 1,500
packets. Each processor tells of 10 a second at most; how many were not told of
is said at the end, on standard error with -o jsonl. A pod's name is known where
a Service has it as an endpoint on this node, or with --dns-pods verified.`,
		Example: `  nearlb drops --since 5m
  nearlb drops -f --service prod/web
  nearlb drops --client 10.244.1.7 --verdict reject -o jsonl`,
		Args: noArguments,
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until interrupted")
	flags.StringVar(&only.service, "service", "", "only this Service: `namespace/name[:port]`, or its name in any namespace")
	flags.StringVar(&only.client, "client", "", "only this client: `IP[:PORT]`, or a pod as namespace/name or name")
	flags.StringVar(&only.verdict, "verdict", "", "only this `verdict`, drop or reject, or reason, as no-endpoints")
	flags.Var(&only.since, "since", "only what came since: 5m ago, or a `time` as 2006-01-02T15:04:05Z")
	live.add(flags)
	complete(cmd, "service", func() []string { return liveServices(&live.pins) })
	complete(cmd, "verdict", dropVerdicts)
	output := addOutputFlag(cmd, formatTable, formatWide, formatJSONL)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		only.verdict = strings.ReplaceAll(only.verdict, "_", "-")
		if only.verdict != "" && !slices.Contains(dropVerdicts(), only.verdict) {
			return usagef("--verdict %q: want drop, reject, or one of their reasons: %s", only.verdict, strings.Join(dropVerdicts()[2:], ", "))
		}
		printer := newDropPrinter(cmd.OutOrStdout(), cmd.ErrOrStderr(), output.value, follow)
		return printer.run(cmd.Context(), &live, &only)
	}
	return cmd
}

// dropVerdicts are the values of --verdict: two classes, and the reasons.
func dropVerdicts() []string {
	all := []string{string(bpf.Drop), string(bpf.Reject)}
	for _, v := range bpf.Refusals() {
		if !slices.Contains(all, v.Reason) {
			all = append(all, v.Reason)
		}
	}
	return all
}

func (f *dropFilter) keeps(d *journal.Drop) bool {
	if f.verdict != "" && f.verdict != d.Verdict && f.verdict != d.Reason {
		return false
	}
	return keepsService(f.service, d.Service, d.Port) && f.keepsClient(d) && !d.Time.Before(f.since.at)
}

func (f *dropFilter) keepsClient(d *journal.Drop) bool {
	asked, port, err := parseAddress(f.client)
	if f.client == "" || err != nil {
		return f.client == "" || keepsPod(f.client, d.ClientPod)
	}
	if at, err := netip.ParseAddrPort(d.Client); err == nil {
		return at.Addr() == asked && (port == 0 || port == at.Port())
	}
	return port == 0 && d.Client == asked.String()
}

// dropPrinter writes events as they come.
type dropPrinter struct {
	out, errs io.Writer
	format    string
	follow    bool
	table     *stream[journal.Drop]
	batch     []journal.Drop    // of a table that is not followed: its columns are made for all
	nothing   string            // what it means that there are none
	unsampled journal.Unsampled // as last told
}

func newDropPrinter(out, errs io.Writer, format string, follow bool) *dropPrinter {
	now := time.Now()
	return &dropPrinter{out: out, errs: errs, format: format, follow: follow, table: newStream(out, format == formatWide, dropColumns(now))}
}

func dropColumns(now time.Time) []column[journal.Drop] {
	return []column[journal.Drop]{
		{heading: "TIME", cell: func(d journal.Drop) string { return clock(d.Time, now) }},
		{heading: "VERDICT", cell: func(d journal.Drop) string { return d.Verdict + ": " + d.Reason }},
		{heading: "CLIENT", cell: func(d journal.Drop) string { return clientText(d.Client, d.ClientPod) }},
		{heading: "FRONTEND", cell: func(d journal.Drop) string { return d.Frontend + "/" + d.Protocol }},
		{heading: "SERVICE", cell: func(d journal.Drop) string { return withPort(d.Service, d.Port) }},
		{heading: "HOOK", wide: true, cell: func(d journal.Drop) string { return d.Hook }},
		{heading: "ADDRESS", wide: true, cell: func(d journal.Drop) string { return d.Client }},
		{heading: "NODE", wide: true, cell: func(d journal.Drop) string { return d.Node }},
	}
}

// clientText is the pod's name where it is known.
func clientText(client, pod string) string {
	if pod != "" {
		return pod
	}
	return client
}

// run reads until the agent has told all, or ctx ends or a signal comes where it is followed.
func (p *dropPrinter) run(ctx context.Context, live *agentFlags, only *dropFilter) error {
	if p.follow {
		var stop context.CancelFunc
		ctx, stop = untilSignal(ctx)
		defer stop()
	}
	if p.nothing = "No drops: no packet was dropped or rejected of late."; *only != (dropFilter{}) {
		p.nothing = "Nothing matches the filters."
	}
	err := agent.ReadDrops(ctx, live.lockDir, live.pins.pinPath, p.follow, func(news agent.DropNews) error { return p.tell(news, only) })
	if p.follow && ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	return p.end()
}

func (p *dropPrinter) tell(news agent.DropNews, only *dropFilter) error {
	switch {
	case news.Drop != nil:
		var row journal.Drop
		if err := json.Unmarshal(*news.Drop, &row); err != nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		if only.keeps(&row) {
			return p.print(row)
		}
	case news.Forgotten > 0:
		fmt.Fprintf(p.errs, "nearlb: %d packets are missing here: they came faster than they were read\n", news.Forgotten)
	case news.Unsampled != nil:
		return p.tellUnsampled(*news.Unsampled)
	}
	return nil
}

func (p *dropPrinter) print(row journal.Drop) error {
	switch {
	case p.format == formatJSONL:
		return writeJSONLine(p.out, row)
	case p.follow:
		return p.table.write(terminalWidth(p.out), row)
	}
	p.batch = append(p.batch, row)
	return nil
}

// gathers says whether all is written at the end, as one table.
func (p *dropPrinter) gathers() bool { return p.format != formatJSONL && !p.follow }

// tellUnsampled says how many packets no event told of when there are more, or has end say it.
func (p *dropPrinter) tellUnsampled(u journal.Unsampled) error {
	more := u.Packets != p.unsampled.Packets
	if p.unsampled = u; !more || p.gathers() {
		return nil
	}
	return p.sayUnsampled(p.errs)
}

func (p *dropPrinter) sayUnsampled(to io.Writer) error {
	u := p.unsampled
	_, err := fmt.Fprintf(to, "%d more since %s were counted, and not told of one by one\n", u.Packets, clock(u.Since, time.Now()))
	return err
}

// end writes what is kept for a table: the agent has told all.
func (p *dropPrinter) end() (err error) {
	if !p.gathers() {
		return nil
	}
	if len(p.batch) > 0 {
		err = writeTable(p.out, terminalWidth(p.out), p.format == formatWide, dropColumns(time.Now()), p.batch)
	} else {
		_, err = fmt.Fprintln(p.out, p.nothing)
	}
	if err != nil || p.unsampled.Packets == 0 {
		return err
	}
	return p.sayUnsampled(p.out)
}
