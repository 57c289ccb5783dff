// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

func servicesCommand() *cobra.Command {
	return dump[maps.FrontendRow]{
		use: "services [NAME]", short: "List frontends and where their connections go",
		service:  func(r maps.FrontendRow) string { return r.Service },
		example:  "  nearlb services\n  nearlb services default/web -o json\n  nearlb services -n prod -o name\n  nearlb services --node n2 -o wide",
		filters:  byService | byNode | byBackend,
		rows:     (*maps.Reader).Frontends,
		keep:     keepFrontend,
		ready:    markRepeats,
		ask:      askAnnotations,
		identity: func(r *maps.FrontendRow) any { return [...]string{r.Service, r.Port, r.Protocol} }, // whose counters it has
		rates: func(before, now *maps.FrontendRow, seconds float64) {
			now.NewPerSecond = gained(before.Connections, now.Connections, seconds)
			now.RejectedPerSecond = gained(before.Rejected, now.Rejected, seconds)
			now.DroppedPerSecond = gained(before.Dropped, now.Dropped, seconds)
		},
		empty: "No services: the agent has published none.",
		columns: []table.Column[maps.FrontendRow]{
			{Heading: "SERVICE", Cell: func(r maps.FrontendRow) string { return table.WithPort(r.Service, r.Port) }},
			{Heading: "KIND", Cell: func(r maps.FrontendRow) string { return r.Kind }},
			{Heading: "FRONTEND", Cell: func(r maps.FrontendRow) string { return table.HostPort(r.Address, r.FrontendPort) + "/" + r.Protocol }},
			{Heading: "FROM THIS NODE", Cell: func(r maps.FrontendRow) string { return liveSideText(r.Internal) }},
			{Heading: "FROM OUTSIDE", Wide: true, Cell: func(r maps.FrontendRow) string { return liveSideText(r.External) }},
			plan.Outside(func(r maps.FrontendRow) (string, string) { return liveSideText(r.Internal), liveSideText(r.External) }),
			{Heading: "TO OTHER NODES", Wide: true, Cell: func(r maps.FrontendRow) string { return offNodeText(r) }},
			{Heading: "OPEN", Wide: true, Right: true, Cell: func(r maps.FrontendRow) string { return count(r.Open) }},
			{Heading: "NEW/S", When: table.EachSecond, Right: true, Cell: once(func(r maps.FrontendRow) string { return perSecond(r.NewPerSecond, rate) })},
			{Heading: "TOTAL", Wide: true, When: table.OncePrint, Right: true, Cell: once(func(r maps.FrontendRow) string { return count(r.Connections) })},
			{Heading: "REJECTED", Wide: true, When: table.OncePrint, Right: true, Cell: once(func(r maps.FrontendRow) string { return count(r.Rejected) })},
			{Heading: "REJECTED/S", Wide: true, When: table.EachSecond, Right: true, Cell: once(func(r maps.FrontendRow) string { return perSecond(r.RejectedPerSecond, rate) })},
			{Heading: "DROPPED", Wide: true, When: table.OncePrint, Right: true, Cell: once(func(r maps.FrontendRow) string { return count(r.Dropped) })},
			{Heading: "DROPPED/S", Wide: true, When: table.EachSecond, Right: true, Cell: once(func(r maps.FrontendRow) string { return perSecond(r.DroppedPerSecond, rate) })},
			{Heading: "AFFINITY", Wide: true, Right: true, Cell: func(r maps.FrontendRow) string { return table.SecondsText(int64(r.AffinitySeconds)) }},
			{Heading: "SOURCES", Wide: true, Cell: func(r maps.FrontendRow) string { return strings.Join(r.SourceRanges, ",") }},
			{Heading: "ANNOTATIONS", Wide: true, Cell: func(r maps.FrontendRow) string { return annotationsText(r.Annotations) }},
		},
	}.command()
}

// offNodeText says how clients off the node get to backends on other nodes: "snat", "-" where there are none, or "dsr, carry to n3 (cannot answer
// clients), snat to n4 (takes no packets)".
func offNodeText(r maps.FrontendRow) string {
	if r.External.Action != string(lb.Balance) {
		return ""
	}
	if r.OffNode == nil {
		return "-"
	}
	text := r.OffNode.Way
	if r.OffNode.Lacks != "" {
		text += " (" + r.OffNode.Lacks + " asked, no tunnel)"
	}
	if len(r.OffNode.Carry) > 0 {
		text += ", carry to " + someNodes(r.OffNode.Carry) + " (cannot answer clients)"
	}
	if len(r.OffNode.SNAT) > 0 {
		text += ", snat to " + someNodes(r.OffNode.SNAT) + " (takes no packets)"
	}
	return text
}

// askAnnotations puts nearlb's annotations to the frontends of their Services.
func askAnnotations(ctx context.Context, live *agentFlags, rows []maps.FrontendRow) error {
	all, err := agent.AskAnnotations(ctx, live.lockDir, live.pins.pinPath)
	if err != nil {
		return err
	}
	of := map[string][]lb.Annotation{}
	for _, s := range all {
		of[s.Service.String()] = s.Annotations
	}
	for i := range rows {
		rows[i].Annotations = of[rows[i].Service]
	}
	return nil
}

// annotationsText is "retry-refused=true, slow-strat (no effect)".
func annotationsText(all []lb.Annotation) string {
	texts := make([]string, len(all))
	for i, a := range all {
		if texts[i] = strings.TrimPrefix(a.Name, "nearlb.io/"); a.Problem != "" {
			texts[i] += " (no effect)"
		} else {
			texts[i] += "=" + a.Value
		}
	}
	return strings.Join(texts, ", ")
}

// markRepeats marks the rows whose service port's counters a row before has.
func markRepeats(rows []maps.FrontendRow) {
	told := map[[3]string]bool{}
	for i := range rows {
		r := &rows[i]
		port := [...]string{r.Service, r.Port, r.Protocol}
		r.Repeats, told[port] = told[port], true
	}
}

// once shows a service port's number once, not for each of its frontends.
func once(cell func(maps.FrontendRow) string) func(maps.FrontendRow) string {
	return func(r maps.FrontendRow) string {
		if r.Repeats {
			return ""
		}
		return cell(r)
	}
}

func keepFrontend(r maps.FrontendRow, f *filter) bool {
	if !f.keepsService(r.Service, r.Port) {
		return false
	}
	if f.node == "" && !f.backend.addr.IsValid() {
		return true
	}
	for _, side := range []maps.SideRow{r.Internal, r.External} {
		for _, tier := range side.Tiers {
			for _, b := range tier.Backends {
				if f.keepsNode(b.Node) && f.backend.keeps(b.Address, b.Port) {
					return true
				}
			}
		}
	}
	return false
}

func backendsCommand() *cobra.Command {
	cmd := dump[maps.BackendRow]{
		use: "backends [NAME]", short: "List backends: state, nearness, connections",
		service: func(r maps.BackendRow) string { return r.Service },
		example: "  nearlb backends default/web\n  nearlb backends --node n2 --watch",
		filters: byService | byNode | byBackend,
		rows:    (*maps.Reader).Backends,
		keep: func(r maps.BackendRow, f *filter) bool {
			return f.keepsService(r.Service, r.Port) && f.keepsNode(r.Node) && f.backend.keeps(r.Address, r.BackendPort)
		},
		empty:    "No backends: the agent has published none.",
		ready:    markLess,
		identity: func(r *maps.BackendRow) any { return [...]uint32{r.ID, uint32(r.Generation)} },
		rates: func(before, now *maps.BackendRow, seconds float64) {
			now.NewPerSecond = gained(before.Connections, now.Connections, seconds)
			now.BytesToPerSecond = gained(before.BytesTo, now.BytesTo, seconds)
			now.BytesFromPerSecond = gained(before.BytesFrom, now.BytesFrom, seconds)
			now.TellSYN(now.SYN.Since(before.SYN))
		},
		columns: backendColumns(),
	}.command()
	cmd.AddCommand(readmitCommand())
	return cmd
}

func backendColumns() []table.Column[maps.BackendRow] {
	return slices.Concat([]table.Column[maps.BackendRow]{
		{Heading: "SERVICE", Cell: func(r maps.BackendRow) string { return table.WithPort(r.Service, r.Port) }},
		{Heading: "BACKEND", Cell: func(r maps.BackendRow) string { return table.HostPort(r.Address, r.BackendPort) + "/" + r.Protocol }},
		{Heading: "NODE", Cell: func(r maps.BackendRow) string { return r.Node }},
		{Heading: "ZONE", Cell: func(r maps.BackendRow) string { return r.Zone }},
		{Heading: "TIER", Cell: func(r maps.BackendRow) string { return r.Tier }},
		{Heading: "STATE", Cell: backendState},
		{Heading: "OPEN", Right: true, Cell: func(r maps.BackendRow) string { return count(r.Open) }},
		{Heading: "OTHERS' OPEN", Wide: true, Right: true, Cell: openOthers},
		{Heading: "TOTAL", When: table.OncePrint, Right: true, Cell: func(r maps.BackendRow) string { return count(r.Connections) }},
		{Heading: "NEW/S", When: table.EachSecond, Right: true, Cell: func(r maps.BackendRow) string { return perSecond(r.NewPerSecond, rate) }},
		{Heading: "IN/S", Wide: true, When: table.EachSecond, Right: true, Cell: func(r maps.BackendRow) string { return perSecond(r.BytesToPerSecond, sizeRate) }},
		{Heading: "OUT/S", Wide: true, When: table.EachSecond, Right: true, Cell: func(r maps.BackendRow) string { return perSecond(r.BytesFromPerSecond, sizeRate) }},
	}, troubleColumns(), []table.Column[maps.BackendRow]{
		{Heading: "LISTS", Wide: true, Cell: func(r maps.BackendRow) string { return strings.Join(r.Lists, ",") }},
		{Heading: "PACKETS TO", Wide: true, When: table.OncePrint, Right: true, Cell: func(r maps.BackendRow) string { return count(r.PacketsTo) }},
		{Heading: "BYTES TO", Wide: true, When: table.OncePrint, Right: true, Cell: func(r maps.BackendRow) string { return size(r.BytesTo) }},
		{Heading: "PACKETS FROM", Wide: true, When: table.OncePrint, Right: true, Cell: func(r maps.BackendRow) string { return count(r.PacketsFrom) }},
		{Heading: "BYTES FROM", Wide: true, When: table.OncePrint, Right: true, Cell: func(r maps.BackendRow) string { return size(r.BytesFrom) }},
	})
}

// openOthers is empty where other nodes have not told.
func openOthers(r maps.BackendRow) string {
	if r.OpenOthers == nil {
		return ""
	}
	return count(uint64(*r.OpenOthers))
}

// troubleColumns are those by which a slow or dead backend is told.
func troubleColumns() []table.Column[maps.BackendRow] {
	return []table.Column[maps.BackendRow]{
		{Heading: "SHARE", Wide: true, Right: true, Needed: func(r maps.BackendRow) bool { return r.Less }, Cell: tierShare},
		{Heading: "REFUSED", Wide: true, Right: true, Needed: func(r maps.BackendRow) bool { return r.Refused > 0 },
			Cell: func(r maps.BackendRow) string { return count(r.Refused) }},
		{Heading: "UNANSWERED", Wide: true, Right: true, Needed: func(r maps.BackendRow) bool { return r.Unanswered > 0 },
			Cell: func(r maps.BackendRow) string { return count(r.Unanswered) }},
		{Heading: "SYN P50", Wide: true, Right: true, Cell: func(r maps.BackendRow) string { return microseconds(r.SYN50) }},
		{Heading: "SYN P99", Wide: true, Right: true, Needed: func(r maps.BackendRow) bool { return r.SYN99 != nil && *r.SYN99 >= slowAnswer },
			Cell: func(r maps.BackendRow) string { return microseconds(r.SYN99) }},
		{Heading: "LAST REPLY", Wide: true, Right: true, Needed: func(r maps.BackendRow) bool { return r.Refused+r.Unanswered > 0 || r.EjectedUntil != "" }, Cell: lastReply},
		{Heading: "LEFT OUT UNTIL", Wide: true, Cell: func(r maps.BackendRow) string { return r.EjectedUntil }},
		{Heading: "BECAUSE", Wide: true, Cell: func(r maps.BackendRow) string { return r.EjectedBecause }},
	}
}

// slowAnswer is a time to answer a SYN, in microseconds, that tables show without being asked: no network of a cluster takes so long.
const slowAnswer = 100_000

// muchLess is the part of another's share below which a backend gets less than others: tables of slots differ by one.
const muchLess = 0.8

// markLess marks backends that get fewer new connections than others of their tier: those of less weight, or that start slowly.
func markLess(rows []maps.BackendRow) {
	type tier struct {
		service, port, protocol, tier string
		four                          bool
	}
	of := func(r *maps.BackendRow) tier { return tier{r.Service, r.Port, r.Protocol, r.Tier, r.Address.Is4()} }
	most := map[tier]float64{}
	for i := range rows {
		most[of(&rows[i])] = max(most[of(&rows[i])], value(rows[i].Share))
	}
	for i := range rows {
		rows[i].Less = rows[i].Share != nil && *rows[i].Share < muchLess*most[of(&rows[i])]
	}
}

func tierShare(r maps.BackendRow) string {
	if r.Share == nil {
		return ""
	}
	return plan.ShareText(*r.Share)
}

func lastReply(r maps.BackendRow) string {
	if r.LastReplySeconds == nil {
		return "never"
	}
	return idle(*r.LastReplySeconds) + " ago"
}

func backendState(r maps.BackendRow) string {
	if r.EjectedUntil != "" {
		return explain.Ejected
	}
	return r.State
}

func affinityCommand() *cobra.Command {
	return dump[maps.AffinityRow]{
		use: "affinity", short: "List the clients that session affinity remembers",
		example: "  nearlb affinity --client 10.244.1.1",
		filters: byService | byBackend | byClient,
		rows:    (*maps.Reader).Affinity,
		keep: func(r maps.AffinityRow, f *filter) bool {
			return f.keepsService(r.Service, r.Port) && f.backend.keeps(r.Backend, r.BackendPort) && f.client.keeps(r.Client, 0)
		},
		empty: "No affinity: no client of a Service with session affinity is remembered.",
		columns: []table.Column[maps.AffinityRow]{
			{Heading: "CLIENT", Cell: func(r maps.AffinityRow) string { return r.Client.String() }},
			{Heading: "SERVICE", Cell: func(r maps.AffinityRow) string { return table.WithPort(r.Service, r.Port) + "/" + r.Protocol }},
			{Heading: "BACKEND", Cell: func(r maps.AffinityRow) string { return table.HostPort(r.Backend, r.BackendPort) }},
			{Heading: "BACKEND IS", Cell: func(r maps.AffinityRow) string { return r.State }},
			{Heading: "IDLE", Right: true, Cell: func(r maps.AffinityRow) string { return idle(r.IdleSeconds) }},
		},
	}.command()
}

func verdictsCommand() *cobra.Command {
	return dump[maps.VerdictRow]{
		use: "verdicts", short: "Count the packets by what was decided for them",
		example:  "  nearlb verdicts --watch\n  nearlb verdicts --all -o json",
		rows:     (*maps.Reader).Verdicts,
		keep:     func(r maps.VerdictRow, f *filter) bool { return f.all || r.Packets > 0 },
		empty:    "No packets: no program has seen any.",
		identity: func(r *maps.VerdictRow) any { return [...]string{r.Hook, r.Verdict, r.Reason} },
		rates: func(before, now *maps.VerdictRow, seconds float64) {
			now.PacketsPerSecond, now.BytesPerSecond = gained(before.Packets, now.Packets, seconds), gained(before.Bytes, now.Bytes, seconds)
		},
		columns: []table.Column[maps.VerdictRow]{
			{Heading: "HOOK", Cell: func(r maps.VerdictRow) string { return r.Hook }},
			{Heading: "VERDICT", Cell: func(r maps.VerdictRow) string { return r.Verdict }},
			{Heading: "REASON", Cell: func(r maps.VerdictRow) string { return r.Reason }},
			{Heading: "PACKETS", When: table.OncePrint, Right: true, Cell: func(r maps.VerdictRow) string { return count(r.Packets) }},
			{Heading: "BYTES", When: table.OncePrint, Right: true, Cell: func(r maps.VerdictRow) string { return size(r.Bytes) }},
			{Heading: "PACKETS/S", When: table.EachSecond, Right: true, Cell: func(r maps.VerdictRow) string { return perSecond(r.PacketsPerSecond, rate) }},
			{Heading: "BYTES/S", When: table.EachSecond, Right: true, Cell: func(r maps.VerdictRow) string { return perSecond(r.BytesPerSecond, sizeRate) }},
		},
	}.command(allFlag("those that counted nothing too"))
}

func allFlag(usage string) func(*cobra.Command, *filter) {
	return func(cmd *cobra.Command, f *filter) { cmd.Flags().BoolVar(&f.all, "all", false, usage) }
}

func liveSideText(side maps.SideRow) string {
	tiers := make([]string, len(side.Tiers))
	for i, tier := range side.Tiers {
		tiers[i] = fmt.Sprintf("%d in %s", len(tier.Backends), tier.Tier)
	}
	return plan.SideWords(side.Action, side.Reason, side.Note, tiers)
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

// size is a number of bytes in three digits.
func size(bytes uint64) string {
	value, unit := float64(bytes), 0
	for ; value >= 999.5 && unit < 5; unit++ {
		value /= 1000
	}
	if unit == 0 {
		return count(bytes) + " B"
	}
	digits := 0
	if value < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + "kMGTP"[unit-1:unit] + "B"
}

// idle is a time in its largest whole unit.
func idle(seconds int64) string {
	switch {
	case seconds < 120:
		return fmt.Sprintf("%ds", max(seconds, 0))
	case seconds < 2*3600:
		return fmt.Sprintf("%dm", seconds/60)
	}
	return fmt.Sprintf("%dh", seconds/3600)
}

// orNothing leaves out what does not apply.
func orNothing(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
