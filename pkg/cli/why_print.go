// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/journal"
)

// writeWhy writes the causes, then what they were found by.
func writeWhy(w io.Writer, width int, doc whyDocument) error {
	client := doc.Client
	if doc.ClientPod != "" && doc.ClientPod != client {
		client += " (" + doc.ClientPod + ")"
	}
	fmt.Fprintf(w, "%s to %s, on node %s\n\n", printable(client), printable(withPort(doc.Service, doc.Port)), orDash(doc.Node))
	for i, c := range doc.Causes {
		label := []string{"cause", "also"}[min(i, 1)]
		writeFolded(w, width, fmt.Sprintf("%-6s  ", label), printable(c.What+": "+c.Text))
		writeFolded(w, width, "        ", "next: "+printable(c.Next))
	}
	writeOthers(w, width, doc.Others)
	if len(doc.Tries) > 0 {
		fmt.Fprintln(w)
		if err := writeTable(w, width, width == 0 || width >= rulesFrom, tryColumns(), doc.Tries); err != nil {
			return err
		}
	}
	if len(doc.Endpoints) > 0 {
		fmt.Fprintln(w)
		plan := planDocument{Node: planNode{Name: doc.Node, Zone: doc.zone}, Endpoints: doc.Endpoints}
		if err := writeTable(w, width, false, endpointColumns(plan), doc.Endpoints); err != nil {
			return err
		}
		writeLegend(w, width, plan)
	}
	if len(doc.Drops) > 0 {
		fmt.Fprintln(w)
		return writeTable(w, width, false, dropColumns(time.Now()), lastDrops(doc.Drops))
	}
	return nil
}

// rulesFrom is the width of terminals where the rules of tries have room beside the rest; the reasons of endpoints say them, too.
const rulesFrom = 110

// lastDrops are the last few, which tell as much as all.
func lastDrops(all []journal.Drop) []journal.Drop { return all[max(0, len(all)-5):] }

func tryColumns() []column[try] {
	return []column[try]{
		{heading: "FROM", cell: func(t try) string { return string(t.From) }},
		{heading: "KIND", cell: func(t try) string { return t.Kind }},
		{heading: "FRONTEND", cell: func(t try) string { return t.Frontend + "/" + t.Protocol }},
		{heading: "VERDICT", cell: func(t try) string { return t.Answer.Verdict + ": " + t.Answer.Reason }},
		{heading: "BACKEND", cell: func(t try) string {
			if len(t.Answer.Backends) == 0 {
				return ""
			}
			b := t.Answer.Backends[0]
			return hostPort(b.Address, b.Port) + ", " + b.Tier
		}},
		{heading: "RULE", wide: true, cell: func(t try) string { return liveSideText(t.side) }},
	}
}

// writeFolded writes a text that goes on below its own beginning where the terminal ends.
func writeFolded(w io.Writer, width int, label, text string) {
	room := width - len(label)
	for first := true; ; first = false {
		line := text
		if width > 0 && room > 20 && len(text) > room {
			at := strings.LastIndexByte(text[:room+1], ' ')
			if at <= 0 {
				at = room
			}
			line = text[:at]
		}
		if !first {
			label = strings.Repeat(" ", len(label))
		}
		fmt.Fprintf(w, "%s%s\n", label, line)
		if text = strings.TrimPrefix(text[len(line):], " "); text == "" {
			return
		}
	}
}
