// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/watch"
)

// statusDocument is what the agent says of itself and what the kernel says, side by side.
type statusDocument struct {
	Agent   *agent.Status      `json:"agent"`             // null: it wrote no status file that we can read
	Unknown string             `json:"unknown,omitempty"` // why agent is null
	Tables  []maps.FillRow     `json:"tables"`
	Devices []attach.DeviceRow `json:"devices"`

	Draining bool `json:"draining"` // new connections are left to kube-proxy (nearlb handover)
}

func statusCommand() *cobra.Command {
	var pins pinFlags
	var lockDir string
	var again watchFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say what runs, what is attached, how full the tables are",
		Long: `Reads the agent's status file and the kernel. Ends with 1 unless an agent serves
and can publish every Service.`,
		Args: command.NoArguments,
	}
	pins.add(cmd.Flags())
	addLockDir(cmd.Flags(), &lockDir)
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatYAML)
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var last statusDocument
		err := again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) (err error) {
			if last, err = readStatus(&pins, lockDir); err != nil {
				return err
			}
			return writeStatus(w, width, output.Value, last)
		})
		if err == nil && !last.healthy() {
			return command.QuietError{}
		}
		return err
	}
	return cmd
}

// readStatus fails where no agent ever ran. One that waits for the first list of objects has no tables yet. A status file that is missing or cannot be read is shown, beside the kernel's part.
func readStatus(pins *pinFlags, lockDir string) (statusDocument, error) {
	var doc statusDocument
	status, err := agent.ReadStatus(lockDir, pins.pinPath)
	switch {
	case err == nil:
		doc.Agent = &status
	case errors.Is(err, agent.ErrNoStatus):
		doc.Unknown = "no status file (is --lock-dir the agent's?)"
	default:
		doc.Unknown = err.Error()
	}
	err = pins.read(func(reader *maps.Reader) (err error) {
		doc.Draining = reader.Draining()
		doc.Tables, err = collect(reader.Fill(), func(maps.FillRow) bool { return true })
		return err
	})
	if errors.Is(err, bpf.ErrNoAgent) && doc.Agent != nil && works(*doc.Agent) {
		doc.Tables, doc.Devices = []maps.FillRow{}, []attach.DeviceRow{}
		return doc, nil
	}
	if err != nil {
		return doc, err
	}
	doc.Devices, err = attach.List(bpf.LinkDirectory(pins.pinPath))
	doc.Devices = command.List(doc.Devices)
	return doc, err
}

// healthy is what the exit status tells.
func (d statusDocument) healthy() bool {
	return d.Agent != nil && works(*d.Agent) && d.Agent.State == agent.Serving && len(d.Agent.Failing) == 0
}

func writeStatus(w io.Writer, width int, format string, doc statusDocument) error {
	switch format {
	case command.FormatJSON:
		return command.WriteJSON(w, doc)
	case command.FormatYAML:
		return command.WriteYAML(w, doc)
	}
	var facts bytes.Buffer
	if doc.Agent == nil {
		fmt.Fprintf(&facts, "agent     unknown: %s; what is in the kernel goes on serving\n", table.OneLine(doc.Unknown))
	} else {
		writeAgent(&facts, *doc.Agent, time.Now())
	}
	if doc.Draining {
		fmt.Fprintln(&facts, "draining  new connections are left to kube-proxy, open ones go on (nearlb handover)")
	}
	fmt.Fprintf(&facts, "devices   %s\n", attachedText(doc.Devices))
	writeFacts(w, width, facts.String())
	fmt.Fprintln(w)
	if err := table.WriteColumns(w, width, format == command.FormatWide, fillColumns(), doc.Tables); err != nil {
		return err
	}
	return writeComplaints(w, width, doc.Agent)
}

// factLabel is how wide the labels of a status's facts are.
const factLabel = 10

// writeFacts writes lines that begin with a label, each as wide as the terminal at the most.
func writeFacts(w io.Writer, width int, facts string) {
	for line := range strings.Lines(facts) {
		line = strings.TrimSuffix(line, "\n")
		at := min(len(line), factLabel)
		table.WriteFolded(w, width, line[:at], line[at:])
	}
}

func writeAgent(w io.Writer, a agent.Status, now time.Time) {
	fmt.Fprintf(w, "agent     %s\n", agentText(a, now))
	fmt.Fprintf(w, "node      %s, zone %s, addresses %s\n", table.OrDash(a.Node.Name), table.OrDash(a.Node.Zone), table.OrDash(strings.Join(a.Node.Addresses, ",")))
	if !a.Node.Eligible {
		fmt.Fprintln(w, "          load balancers are told to send no traffic here (/healthz): the Node is being deleted, or is not known")
	}
	fmt.Fprintf(w, "nodeports %s\n", table.OrDash(strings.Join(a.Node.NodePorts, ",")))
	fmt.Fprintf(w, "objects   %s\n", table.Printable(a.Source))
	fmt.Fprintf(w, "may       %s\n", table.OrDash(table.Printable(strings.Join(a.May, ", "))))
	fmt.Fprintf(w, "services  %d published, %d waiting, last sync %s\n", a.Services, a.Dirty, ago(a.LastSync, now))
	if a.Held.Any() {
		fmt.Fprintf(w, "held      %s\n", heldText(a.Held))
	}
	for _, b := range a.Ejected[:min(len(a.Ejected), leftOutShown)] {
		fmt.Fprintf(w, "left out  %s of %s: it does not answer (nearlb backends)\n", b.Backend, table.Printable(table.WithPort(b.Service.String(), b.Port)))
	}
	if more := len(a.Ejected) - leftOutShown; more > 0 {
		fmt.Fprintf(w, "          and %d more\n", more)
	}
	fmt.Fprintf(w, "audit     %s, %d differences found since the start\n", ago(a.LastAudit, now), a.Drift)
	if a.Shortcut != nil {
		fmt.Fprintf(w, "shortcut  %s\n", table.OneLine(table.Printable(a.Shortcut.String())))
		for _, what := range a.Shortcut.PassedBy {
			fmt.Fprintf(w, "          %s\n", table.OneLine(table.Printable(what)))
		}
	}
	if a.Tunnel != nil {
		fmt.Fprintf(w, "tunnel    %s\n", tunnelText(*a.Tunnel))
	}
	if a.Heartbeats != nil {
		fmt.Fprintf(w, "nodes     %s\n", heartbeatText(*a.Heartbeats))
	}
	for _, row := range a.Devices {
		if row.Hook == "xdp" {
			fmt.Fprintf(w, "xdp       %s: %s\n", table.Printable(row.Device), table.OneLine(table.Printable(xdpText(row))))
		}
	}
	if g := a.Growth; g.Times > 0 {
		fmt.Fprintf(w, "tables    grew %d times since the start, last %s\n", g.Times, ago(g.Last, now))
	}
	if a.Growth.Error != "" {
		fmt.Fprintf(w, "tables    cannot grow, tried again: %s\n", table.OneLine(table.Printable(a.Growth.Error)))
	}
	if !works(a) {
		return // and nobody answers health checks
	}
	if a.Names != nil {
		fmt.Fprintf(w, "names     %s\n", namesText(*a.Names, a.Listen["dns"]))
		if a.Names.Kernel != nil {
			fmt.Fprintf(w, "          %s\n", kernelNamesText(*a.Names.Kernel))
		}
	}
	for _, c := range a.Checks {
		fmt.Fprintf(w, "health    %s port %d: ready endpoints here: IPv4 %d, IPv6 %d; answered on %s\n", c.Service, c.Port, c.Endpoints4, c.Endpoints6, table.OrDash(table.Joined(c.Listen)))
	}
}

// tunnelText says which nodes take packets of clients off the node as they came.
func tunnelText(t agent.TunnelStatus) string {
	text := fmt.Sprintf("UDP port %d, %s where a Service says nothing, cookie %s; ", t.Port, t.OffNode, t.Cookie)
	if t.Leaving {
		return text + "turned off, ends with its last connection"
	}
	if t.Unused {
		return text + "no Service asks for it"
	}
	text += fmt.Sprintf("%d other nodes take packets", t.Answer)
	if len(t.Silent) > 0 {
		text += ", to others connections go by SNAT: " + someNodes(t.Silent)
	}
	if len(t.Sealed) > 0 {
		text += "; of them, policies of IPsec are for: " + someNodes(t.Sealed)
	}
	if len(t.Through) > 0 {
		text += "; no dsr, answers come back through this node: " + someNodes(t.Through)
	}
	return text
}

// heartbeatText says which nodes answer each second's question.
func heartbeatText(h agent.HeartbeatStatus) string {
	text := fmt.Sprintf("%d answer heartbeats", h.Answer)
	if len(h.Silent) > 0 {
		text += ", silent: " + someNodes(h.Silent)
	}
	if h.Mode == lb.EjectionObserve {
		text += "; observed only"
	}
	return text
}

// someNodes names the first few.
func someNodes(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return table.Printable(text)
}

// xdpText says what the program at XDP does on a device.
func xdpText(row attach.DeviceRow) string {
	if row.Note != "" {
		return row.Note
	}
	return string(row.Method)
}

// namesText says where names are answered, and who is asked for those of others.
func namesText(n agent.NamesStatus, listen string) string {
	text := fmt.Sprintf("answered on %s in the place of %s", listen, n.Service)
	if !n.Answering {
		text = fmt.Sprintf("left to the endpoints of %s: %s", n.Service, n.Because)
	}
	var others []string
	for _, u := range n.Upstreams {
		if others = append(others, u.Address); u.Silent {
			others[len(others)-1] += " (does not answer)"
		}
	}
	if len(others) == 0 {
		return text + "; there is nobody to ask for other names"
	}
	return text + "; other names are asked of " + strings.Join(others, ", ")
}

// kernelNamesText says which names the programs know.
func kernelNamesText(k agent.KernelNames) string {
	switch {
	case k.Because != "":
		return "none is answered in the kernel until the agent starts again: " + k.Because
	case !k.Answering:
		return "none is answered in the kernel now"
	case k.NoRoom > 0:
		return fmt.Sprintf("A and AAAA are answered in the kernel for %d names; %d names of endpoints have no room there (--size-answers)", k.Names, k.NoRoom)
	}
	return fmt.Sprintf("A and AAAA are answered in the kernel for %d names", k.Names)
}

// heldText says what a sudden lack of objects would have taken away, and when it will.
func heldText(h watch.Held) string {
	return fmt.Sprintf("%d Services, the endpoints of %d others and %d Nodes, which the API server suddenly lists no more; what is missing still is removed at %s",
		h.Services, h.Endpoints, h.Nodes, h.Until.UTC().Format(time.RFC3339))
}

// works says whether there is an agent that follows changes.
func works(a agent.Status) bool { return a.Running && !a.Stale }

// leftOutShown is how many of the backends that are left out are named: a zone that is cut off has thousands.
const leftOutShown = 5

// agentText describes the agent; if none works it says that traffic goes on without it.
func agentText(a agent.Status, now time.Time) string {
	version, seen := table.Printable(a.Version), ago(a.Written, now)
	switch {
	case a.State == agent.Stopped:
		return fmt.Sprintf("stopped %s, version %s; what it published goes on serving", seen, version)
	case !a.Running:
		return fmt.Sprintf("dead: process %d is gone, last seen %s, version %s; what it published goes on serving", a.PID, seen, version)
	case a.Stale:
		return fmt.Sprintf("stale: last seen %s, and process %d hangs or is another program by now; what it published goes on serving", seen, a.PID)
	}
	return fmt.Sprintf("%s, process %d, started %s, version %s", a.State, a.PID, ago(a.Started, now), table.Printable(a.Version))
}

func ago(then, now time.Time) string {
	if then.IsZero() {
		return "never"
	}
	if then.Sub(now) > 10*time.Second {
		return "at " + then.UTC().Format(time.RFC3339) + " by a clock that was ahead"
	}
	return idle(int64(now.Sub(then).Seconds())) + " ago"
}

// attachedText counts devices, not programs, and names the cgroup whose sockets are served.
func attachedText(rows []attach.DeviceRow) string {
	devices := map[int]bool{}
	cgroup := ""
	for _, row := range rows {
		if row.Method == attach.CgroupLink {
			cgroup = "; sockets of " + table.Printable(row.Device)
		} else {
			devices[row.Ifindex] = true
		}
	}
	return fmt.Sprintf("%d with programs attached%s", len(devices), cgroup)
}

func fillColumns() []table.Column[maps.FillRow] {
	return []table.Column[maps.FillRow]{
		{Heading: "TABLE", Cell: func(r maps.FillRow) string { return r.Table }},
		{Heading: "USED", Right: true, Cell: func(r maps.FillRow) string { return count(r.Used) }},
		{Heading: "LIMIT", Right: true, Cell: func(r maps.FillRow) string { return count(r.Limit) }},
		{Heading: "FULL", Right: true, Cell: func(r maps.FillRow) string {
			return fmt.Sprintf("%.1f %%", 100*float64(r.Used)/float64(max(r.Limit, 1)))
		}},
	}
}

// writeComplaints lists what goes wrong: Services that cannot be published, the agent's own troubles, problems of objects.
func writeComplaints(w io.Writer, width int, a *agent.Status) error {
	if a == nil {
		return nil
	}
	for _, f := range a.Failing {
		fmt.Fprintln(w)
		writeFacts(w, width, fmt.Sprintf("failing   %s: %s (attempts: %d)", f.Service, table.OneLine(f.Error), f.Attempts))
	}
	for _, trouble := range a.Trouble {
		fmt.Fprintln(w)
		writeFacts(w, width, "trouble   "+table.OneLine(trouble))
	}
	if len(a.Problems) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return table.WriteColumns(w, width, false, plan.ProblemColumns(), a.Problems)
}
