// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
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
	for i, text := range sources(r, a) {
		fmt.Fprintf(&b, "  %-7s  %s\n", []string{"source", ""}[min(i, 1)], text)
	}
	for i, text := range waysOf(a) {
		table.WriteFolded(&b, width, fmt.Sprintf("  %-7s  ", []string{"way", ""}[min(i, 1)]), text)
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

// sources are what the other end sees, with the share of packets where backends see different ones. The first packet's comes first.
func sources(r trace.Request, a trace.Answer) []string {
	if a.Source == nil {
		return nil
	}
	all, counts := []netip.Addr{*a.Source}, map[netip.Addr]int{}
	for _, b := range a.Backends {
		source := b.Source
		if !source.IsValid() {
			source = *a.Source
		}
		if counts[source] += b.Count; !slices.Contains(all, source) {
			all = append(all, source)
		}
	}
	texts := make([]string, len(all))
	for i, source := range all {
		if texts[i] = source.String() + kept(source != r.Source.Addr()); len(all) > 1 {
			texts[i] += share(counts[source], r.Count)
		}
	}
	return texts
}

// waysOf are those to backends on other nodes, each once, the first packet's first.
func waysOf(a trace.Answer) []string {
	if a.Way == nil {
		return nil
	}
	text := func(w *trace.Way) string { return string(w.Name) + ": " + table.Printable(w.Because) }
	all := []string{text(a.Way)}
	for _, b := range a.Backends {
		if b.Way != nil && !slices.Contains(all, text(b.Way)) {
			all = append(all, text(b.Way))
		}
	}
	return all
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
