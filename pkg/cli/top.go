// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"

	"github.com/nearlb/nearlb/pkg/table"
)

// topOptions is what nearlb top was asked for.
type topOptions struct {
	live     agentFlags
	only     filter
	view     string
	once     bool
	idle     bool // rows of what is idle, too
	bare     bool
	interval time.Duration
	sort     string
	format   string
}

func topCommand() *cobra.Command {
	o := topOptions{}
	cmd := &cobra.Command{
		Use:   "top [services|backends|clients|zones|nodes]",
		Short: "Say what goes on now: rates of connections, bytes and failures",
		Long: `Reads the kernel's counters twice, an interval apart, and tells the difference a
second, and which connections are open; again and again without --once. Zones
and nodes are those of backends; SYN is the time to a connection's first answer.
Of the node's own connections only new ones are known: no program sees their
packets.`,
		Example: `  nearlb top                       a live screen: h lists its keys
  nearlb top backends --service prod/web --sort failed
  nearlb top --once --interval 5s -o json`,
		Args:      topView(&o.view),
		ValidArgs: topViews,
	}
	flags := cmd.Flags()
	o.live.add(flags)
	o.only.add(cmd, byService|byNode|byClient, &o.live.pins)
	flags.BoolVar(&o.once, "once", false, "one interval, then end")
	flags.DurationVar(&o.interval, "interval", time.Second, "time between two readings")
	flags.StringVar(&o.sort, "sort", topSorts[0].name, "largest first: `column` "+strings.Join(topSortNames(), ", "))
	flags.BoolVar(&o.idle, "all", false, "what is idle, too")
	flags.BoolVar(&o.bare, "no-headers", false, "tables without their headings")
	command.Complete(cmd, "sort", topSortNames)
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatJSONL)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.format = output.Value
		if err := o.check(); err != nil {
			return err
		}
		return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
	}
	return cmd
}

// topView takes the view from the arguments.
func topView(view *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		*view = topServices
		if len(args) > 1 {
			return command.Usagef("%d arguments: %s takes one view", len(args), cmd.CommandPath())
		}
		if len(args) == 1 {
			*view = args[0]
		}
		if !slices.Contains(topViews, *view) {
			return command.Usagef("view %q: want %s", *view, strings.Join(topViews, ", "))
		}
		return nil
	}
}

func (o *topOptions) check() error {
	if o.interval < 100*time.Millisecond {
		return command.Usagef("--interval %v: want 100ms or more", o.interval)
	}
	if !slices.Contains(topSortNames(), o.sort) {
		return command.Usagef("--sort %q: want %s", o.sort, strings.Join(topSortNames(), ", "))
	}
	if o.view == topClients && (o.only.service != "" || o.only.namespace != "" || o.only.node != "") {
		return command.Usagef("clients are counted over all Services: --service, --namespace and --node narrow services and backends")
	}
	if o.view != topClients && o.only.client.addr.IsValid() {
		return command.Usagef("--client narrows clients alone: nearlb top clients")
	}
	return o.only.take(nil)
}

// run tells each interval, the first from now on.
func (o *topOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	meter := &topMeter{options: o}
	defer meter.close()
	if err := meter.look(); err != nil {
		return err
	}
	if err := meter.named(); err != nil {
		return err
	}
	if screen := terminalOf(in, out); screen != nil && !o.once && o.format == command.FormatTable {
		return screen.run(ctx, meter)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.interval): // from the end of a look: two are never nearer
		}
		if err := meter.look(); err != nil {
			return err
		}
		if err := o.tell(out, meter.document()); err != nil || o.once {
			return err
		}
	}
}

// tell writes one interval. On a terminal a table takes the place of the one before.
func (o *topOptions) tell(out io.Writer, doc topDocument) error {
	switch o.format {
	case command.FormatJSON:
		return command.WriteJSON(out, doc)
	case command.FormatJSONL:
		for _, row := range doc.Rows {
			if err := command.WriteJSONLine(out, row); err != nil {
				return err
			}
		}
		return nil
	}
	var page strings.Builder
	if err := o.write(&page, table.TerminalWidth(out), doc); err != nil {
		return err
	}
	if o.once {
		_, err := io.WriteString(out, page.String())
		return err
	}
	return turnPage(out, []byte(page.String()))
}

func (o *topOptions) write(w io.Writer, width int, doc topDocument) error {
	shown := doc.Rows
	if !o.idle {
		shown = slices.DeleteFunc(slices.Clone(shown), func(r topRow) bool { return r.idle() })
	}
	if len(shown) == 0 {
		_, err := fmt.Fprintf(w, "Nothing goes on: no connection is open, and none came in %v.\n", o.interval)
		return err
	}
	if o.bare {
		w = &headless{Writer: w}
	}
	return table.WriteColumns(w, width, o.format == command.FormatWide, topColumns(o.view), shown)
}

// topColumns are those of a view: what its rows are of, then the numbers.
func topColumns(view string) []table.Column[topRow] {
	backend := func(heading string, cell func(topRow) string) table.Column[topRow] {
		return table.Column[topRow]{Heading: heading, Cell: cell}
	}
	var columns []table.Column[topRow]
	switch view {
	case topServices:
		columns = append(columns, backend("SERVICE", func(r topRow) string { return r.name() }))
	case topBackends:
		columns = append(columns, backend("BACKEND", func(r topRow) string { return r.Backend }), backend("SERVICE", func(r topRow) string { return r.name() }),
			table.Column[topRow]{Heading: "NODE", Wide: true, Cell: func(r topRow) string { return text(r.BackendNode) }},
			table.Column[topRow]{Heading: "STATE", Wide: true, Cell: func(r topRow) string { return r.State }})
	case topClients:
		columns = append(columns, backend("CLIENT", func(r topRow) string { return r.Client }))
	case topNodes:
		columns = append(columns, backend("NODE", func(r topRow) string { return text(r.BackendNode) }))
	}
	if view == topZones || view == topNodes || view == topBackends {
		columns = append(columns, table.Column[topRow]{Heading: "ZONE", Wide: view == topBackends, Cell: func(r topRow) string { return text(r.BackendZone) }})
	}
	return append(columns, topNumbers(view)...)
}

func topNumbers(view string) []table.Column[topRow] {
	number := func(heading string, cell func(topRow) string) table.Column[topRow] {
		return table.Column[topRow]{Heading: heading, Right: true, Cell: cell}
	}
	columns := []table.Column[topRow]{
		number("NEW/S", func(r topRow) string { return rate(r.New) }),
		number("OPEN", func(r topRow) string { return count(r.Open) }),
	}
	if view != topClients {
		columns = append(columns,
			number("IN/S", func(r topRow) string { return size(uint64(value(r.BytesIn))) }),
			number("OUT/S", func(r topRow) string { return size(uint64(value(r.BytesOut))) }))
	}
	columns = append(columns, number("FAIL/S", func(r topRow) string { return rate(r.Failed) }))
	if view != topClients {
		median := number("SYN P50", func(r topRow) string { return microseconds(r.SYN50) })
		median.Wide = true
		columns = append(columns, median, number("SYN P99", func(r topRow) string { return microseconds(r.SYN99) }))
	}
	if view == topServices || view == topBackends {
		crossing := number("XZONE/S", func(r topRow) string { return size(uint64(value(r.CrossZone))) })
		crossing.Wide = view == topBackends // which has its zone, too
		columns = append(columns, crossing)
	}
	for _, c := range []table.Column[topRow]{
		number("REFUSED/S", func(r topRow) string { return rate(r.Refused) }), number("UNANSWERED/S", func(r topRow) string { return rate(r.Unanswered) }),
		number("REJECTED/S", func(r topRow) string { return rate(r.Rejected) }), number("DROPPED/S", func(r topRow) string { return rate(r.Dropped) }),
	} {
		c.Wide = true
		columns = append(columns, c)
	}
	return columns
}

// rate is a number of a second in three digits.
func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0"
	case perSecond < 9.95:
		return fmt.Sprintf("%.1f", max(perSecond, 0.1))
	case perSecond < 9999.5:
		return fmt.Sprintf("%.0f", perSecond)
	}
	return strings.TrimSuffix(strings.Replace(size(uint64(perSecond)), " ", "", 1), "B")
}

// microseconds is a time in two or three digits; "" where there is none.
func microseconds(p *float64) string {
	if p == nil {
		return ""
	}
	switch us := *p; {
	case us < 999.5:
		return fmt.Sprintf("%.0fus", us)
	case us < 9950:
		return fmt.Sprintf("%.1fms", us/1e3)
	case us < 999_500:
		return fmt.Sprintf("%.0fms", us/1e3)
	}
	return fmt.Sprintf("%.1fs", *p/1e6)
}

// topMeter reads the tables that are in force: others take their place when they grow, or by an upgrade.
type topMeter struct {
	options *topOptions
	meter   maps.Meter
	tables  liveTables
	node    string     // that the agent says this is
	gains   maps.Gains // of the last look
	live    bool       // a person may turn to any view
}

func (m *topMeter) close() { m.tables.close() }

// look reads what came since the look before.
func (m *topMeter) look() error {
	o := m.options
	reader, err := m.tables.open(o.live.pins.pinPath)
	if err != nil {
		return err
	}
	if status, err := agent.ReadStatus(o.live.lockDir, o.live.pins.pinPath); err == nil {
		m.node, m.meter.Zone = status.Node.Name, status.Node.Zone
	}
	m.meter.Clients = m.live || o.view == topClients
	idle := o.idle || o.format == command.FormatJSON || o.format == command.FormatJSONL
	m.meter.AllPorts, m.meter.AllBackends = idle, idle && o.needsBackends()
	gains, err := m.meter.Look(reader, time.Now())
	if err != nil {
		return err
	}
	o.narrow(&gains)
	m.gains = gains
	return nil
}

// needsBackends: rows are made of backends. Making those that are idle is most of a look's cost.
func (o *topOptions) needsBackends() bool {
	return o.view != topServices && o.view != topClients || o.only.node != ""
}

// named is an error where a Service was asked for by its name, and there is none of that name.
func (m *topMeter) named() error {
	reader, err := m.tables.open(m.options.live.pins.pinPath)
	if err != nil {
		return err
	}
	return m.options.only.named(reader)
}

// document has the rows of the view, in their order.
func (m *topMeter) document() topDocument {
	return topDocumentOf(m.options.view, m.node, m.options.sort, &m.gains)
}

// narrow leaves out what was not asked for, before anything is summed up.
func (o *topOptions) narrow(g *maps.Gains) {
	g.Ports = slices.DeleteFunc(g.Ports, func(p maps.PortGain) bool { return !o.only.keepsService(p.Port.Service.String(), p.Port.Port) })
	g.Backends = slices.DeleteFunc(g.Backends, func(b maps.BackendGain) bool {
		return !o.only.keepsService(b.Port.Service.String(), b.Port.Port) || !o.only.keepsNode(b.Node)
	})
	if o.only.node != "" {
		g.Ports = portsOf(g.Backends)
	}
	g.Clients = slices.DeleteFunc(g.Clients, func(c maps.ClientGain) bool { return !o.only.client.keeps(c.Client, 0) })
}

// portsOf are the service ports of backends, with what these gained: what no backend got is no node's.
func portsOf(backends []maps.BackendGain) (all []maps.PortGain) {
	at := map[lb.PortName]int{}
	for i := range backends {
		b := &backends[i]
		n, known := at[b.Port]
		if !known {
			n = len(all)
			at[b.Port] = n
			all = append(all, maps.PortGain{Port: b.Port})
		}
		all[n].Add(&b.Gain)
	}
	return all
}
