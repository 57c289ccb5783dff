// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

// writeWhy writes the causes, then what they were found by.
func writeWhy(w io.Writer, width int, doc whyDocument) error {
	client := doc.Client
	if doc.ClientPod != "" && doc.ClientPod != client {
		client += " (" + doc.ClientPod + ")"
	}
	fmt.Fprintf(w, "%s to %s, on node %s\n\n", table.Printable(client), table.Printable(table.WithPort(doc.Service, doc.Port)), table.OrDash(doc.Node))
	for i, c := range doc.Causes {
		label := []string{"cause", "also"}[min(i, 1)]
		table.WriteFolded(w, width, fmt.Sprintf("%-6s  ", label), table.Printable(c.What+": "+c.Text))
		table.WriteFolded(w, width, "        ", "next: "+table.Printable(c.Next))
	}
	writeOthers(w, width, doc.Others)
	if len(doc.Tries) > 0 {
		fmt.Fprintln(w)
		if err := table.WriteColumns(w, width, width == 0 || width >= rulesFrom, tryColumns(), doc.Tries); err != nil {
			return err
		}
	}
	if len(doc.Endpoints) > 0 {
		fmt.Fprintln(w)
		planned := plan.Document{Node: plan.Node{Name: doc.Node, Zone: doc.zone}, Endpoints: doc.Endpoints}
		if err := table.WriteColumns(w, width, false, plan.EndpointColumns(planned), doc.Endpoints); err != nil {
			return err
		}
		plan.WriteLegend(w, width, planned)
	}
	if len(doc.Drops) > 0 {
		fmt.Fprintln(w)
		return table.WriteColumns(w, width, false, dropColumns(time.Now()), lastDrops(doc.Drops))
	}
	return nil
}

// rulesFrom is the width of terminals where the rules of tries have room beside the rest; the reasons of endpoints say them, too.
const rulesFrom = 110

// lastDrops are the last few, which tell as much as all.
func lastDrops(all []journal.Drop) []journal.Drop { return all[max(0, len(all)-5):] }

func tryColumns() []table.Column[try] {
	return []table.Column[try]{
		{Heading: "FROM", Cell: func(t try) string { return string(t.From) }},
		{Heading: "KIND", Cell: func(t try) string { return t.Kind }},
		{Heading: "FRONTEND", Cell: func(t try) string { return t.Frontend + "/" + t.Protocol }},
		{Heading: "VERDICT", Cell: func(t try) string { return t.Answer.Verdict + ": " + t.Answer.Reason }},
		{Heading: "BACKEND", Cell: func(t try) string {
			if len(t.Answer.Backends) == 0 {
				return ""
			}
			b := t.Answer.Backends[0]
			return table.HostPort(b.Address, b.Port) + ", " + b.Tier
		}},
		{Heading: "RULE", Wide: true, Cell: func(t try) string { return liveSideText(t.side) }},
	}
}
