// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/trace"
)

// writeAnswer is the table form of one answer: a heading, then a line for each thing there is to say, folded where a terminal ends.
func writeAnswer(w io.Writer, width int, r trace.Request, a trace.Answer) error {
	var b strings.Builder
	if a.ID != "" {
		fmt.Fprintf(&b, "%s: ", table.Printable(a.ID))
	}
	fmt.Fprintf(&b, "%s (%s)\n", a.Verdict, strings.ReplaceAll(a.Reason, "-", " "))
	if text := verdictText(a.Verdict + "-" + a.Reason); text != "" {
		table.WriteFolded(&b, width, "  ", text)
	}
	protocol := r.Protocol.String()
	to := table.HostPort(r.To.Addr(), r.To.Port())
	if r.Protocol == trace.ICMP {
		protocol, to = "ICMP echo request", r.To.Addr().String()
	}
	fmt.Fprintf(&b, "  packet   %s from %s %s to %s\n", protocol, r.From, r.Source.Addr(), to)
	if q := a.Question; q != nil {
		fmt.Fprintf(&b, "  question %s %s\n  answer   %s\n", q.Type, table.Printable(q.Name), questionText(q))
	}
	if a.Service != "" {
		port := ""
		if a.Port != nil {
			port = *a.Port
		}
		fmt.Fprintf(&b, "  service  %s\n", table.Printable(table.WithPort(a.Service, port)))
	}
	for i, backend := range a.Backends {
		label := "backend"
		if i > 0 {
			label = ""
		}
		fmt.Fprintf(&b, "  %-7s  %s  %s%s\n", label, table.HostPort(backend.Address, backend.Port), backend.Tier, share(backend.Count, r.Count))
	}
	if a.Source != nil {
		fmt.Fprintf(&b, "  source   %s%s\n", *a.Source, kept(a.SNAT))
	}
	if a.Way != nil {
		table.WriteFolded(&b, width, "  way      ", string(a.Way.Name)+": "+table.Printable(a.Way.Because))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Verdicts)) {
		fmt.Fprintf(&b, "  counted  %d %s\n", a.Verdicts[name], strings.ReplaceAll(name, "-", " "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// questionText says who answers a question, and what.
func questionText(q *trace.Asked) string {
	switch q.Way {
	case trace.WayKernel:
		return strings.Join(append([]string{"in the kernel: " + q.Rcode}, q.Answers...), " ")
	case trace.WayResponder:
		return "by this node's responder: " + q.Because
	}
	return "by the endpoints of the Service: " + q.Because
}

func share(count, of int) string {
	if of <= 1 {
		return ""
	}
	return fmt.Sprintf("  %d of %d, %.1f %%", count, of, 100*float64(count)/float64(of))
}

func kept(snat bool) string {
	if snat {
		return " (replaced)"
	}
	return " (kept)"
}
