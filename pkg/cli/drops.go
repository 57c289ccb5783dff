// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/table"
)

// dropFilter keeps the events that a person asked for.
type dropFilter struct {
	service, client, verdict string
	since                    time.Time
}

func dropsCommand() *cobra.Command {
	var f newsFlags
	var only dropFilter
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
		Args: command.NoArguments,
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&only.client, "client", "", "only this client: `IP[:PORT]`, or a pod as namespace/name or name")
	flags.StringVar(&only.verdict, "verdict", "", "only this `verdict`, drop or reject, or reason, as no-endpoints")
	command.Complete(cmd, "verdict", dropVerdicts)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		only.verdict = strings.ReplaceAll(only.verdict, "_", "-")
		if only.verdict != "" && !slices.Contains(dropVerdicts(), only.verdict) {
			return command.Usagef("--verdict %q: want drop, reject, or one of their reasons: %s", only.verdict, strings.Join(dropVerdicts()[2:], ", "))
		}
		only.service, only.since = f.service, f.since.at
		p := newDropPrinter(newNewsPrinter(cmd, &f, dropColumns), only)
		if err := readNews(cmd.Context(), &f, agent.ReadDrops, p.tell); err != nil {
			return err
		}
		return p.end()
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
	return keepsService(f.service, d.Service, d.Port) && f.keepsClient(d) && !d.Time.Before(f.since)
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

func dropColumns(now time.Time) []table.Column[journal.Drop] {
	return []table.Column[journal.Drop]{
		{Heading: "TIME", Cell: func(d journal.Drop) string { return clock(d.Time, now) }},
		{Heading: "VERDICT", Cell: func(d journal.Drop) string { return d.Verdict + ": " + d.Reason }},
		{Heading: "CLIENT", Cell: func(d journal.Drop) string { return clientText(d.Client, d.ClientPod) }},
		{Heading: "FRONTEND", Cell: func(d journal.Drop) string { return d.Frontend + "/" + d.Protocol }},
		{Heading: "SERVICE", Cell: func(d journal.Drop) string { return table.WithPort(d.Service, d.Port) }},
		{Heading: "HOOK", Wide: true, Cell: func(d journal.Drop) string { return d.Hook }},
		{Heading: "ADDRESS", Wide: true, Cell: func(d journal.Drop) string { return d.Client }},
		{Heading: "NODE", Wide: true, Cell: func(d journal.Drop) string { return d.Node }},
	}
}

// clientText is the pod's name where it is known.
func clientText(client, pod string) string {
	if pod != "" {
		return pod
	}
	return client
}

// dropPrinter writes events as they come, and how many there are besides.
type dropPrinter struct {
	newsPrinter[journal.Drop]
	unsampled journal.Unsampled // as last told
}

func newDropPrinter(to newsPrinter[journal.Drop], only dropFilter) *dropPrinter {
	to.keeps, to.rows = only.keeps, "packets"
	to.nothing = noNews(only != (dropFilter{}), "No drops: the agent knows of none since it started. nearlb verdicts counts all.")
	return &dropPrinter{newsPrinter: to}
}

// tell says how many packets no event told of when there are more, or has end say it.
func (p *dropPrinter) tell(news agent.News) error {
	if news.Unsampled == nil {
		return p.newsPrinter.tell(news)
	}
	more := news.Unsampled.Packets != p.unsampled.Packets
	if p.unsampled = *news.Unsampled; !more || p.gathers() {
		return nil
	}
	return p.sayUnsampled(p.errs)
}

func (p *dropPrinter) sayUnsampled(to io.Writer) error {
	u := p.unsampled
	_, err := fmt.Fprintf(to, "%d more since %s were counted, and not told of one by one\n", u.Packets, clock(u.Since, time.Now()))
	return err
}

func (p *dropPrinter) end() error {
	if err := p.newsPrinter.end(); err != nil || !p.gathers() || p.unsampled.Packets == 0 {
		return err
	}
	return p.sayUnsampled(p.out)
}
