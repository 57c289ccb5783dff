// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

func (z *zonesSeen) print(w io.Writer, width int, format string, all bool) error {
	switch format {
	case command.FormatJSON, command.FormatJSONL, command.FormatYAML:
		return command.WriteRows(w, width, format, nil, z.rows)
	}
	if len(z.rows) == 0 {
		_, err := fmt.Fprintln(w, "No traffic: no Service that was asked for has a backend.")
		return err
	}
	fmt.Fprintf(w, "node %s  zone %s\n\n", table.OrDash(table.Printable(z.node)), table.OrDash(table.Printable(z.zone)))
	if err := table.WriteColumns(w, width, format == command.FormatWide, pairColumns(), z.pairs()); err != nil {
		return err
	}
	services := z.services(all)
	fmt.Fprintln(w)
	if len(services) == 0 {
		_, err := fmt.Fprintln(w, "No Service crosses zones. --all lists all of them.")
		return err
	}
	if err := table.WriteColumns(w, width, format == command.FormatWide, crossingColumns(), services); err != nil {
		return err
	}
	return z.writeReasons(w, width, services)
}

// zonePair is all traffic between two zones.
type zonePair struct {
	client, backend    string
	connections, bytes uint64
	share              float64 // of all bytes
}

func (z *zonesSeen) pairs() (all []zonePair) {
	var total uint64
	for i := range z.rows {
		r := &z.rows[i]
		at := slices.IndexFunc(all, func(p zonePair) bool { return p.backend == r.BackendZone })
		if at < 0 {
			at, all = len(all), append(all, zonePair{client: r.ClientZone, backend: r.BackendZone})
		}
		all[at].connections += r.Connections
		all[at].bytes += r.bytes()
		total += r.bytes()
	}
	for i := range all {
		all[i].share = float64(all[i].bytes) / float64(max(total, 1))
	}
	slices.SortFunc(all, func(a, b zonePair) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.backend, b.backend))
	})
	return all
}

func pairColumns() []table.Column[zonePair] {
	return []table.Column[zonePair]{
		{Heading: "CLIENTS IN", Cell: func(p zonePair) string { return p.client }},
		{Heading: "BACKENDS IN", Cell: func(p zonePair) string { return p.backend }},
		{Heading: "CONNECTIONS", Right: true, Cell: func(p zonePair) string { return count(p.connections) }},
		{Heading: "BYTES", Right: true, Cell: func(p zonePair) string { return size(p.bytes) }},
		{Heading: "SHARE", Right: true, Cell: func(p zonePair) string { return percent(p.share) }},
	}
}

// crossing is one service port.
type crossing struct {
	port             lb.PortName
	service          string
	crossed, unknown uint64
	total            uint64
	reason           string // of the zone that gets most
	next             string
	with             []zoneSetting
}

// services are those that cross, most bytes first; with all the others, too.
func (z *zonesSeen) services(all bool) (out []crossing) {
	for i := range z.rows {
		r := &z.rows[i]
		if len(out) == 0 || out[len(out)-1].port != r.port {
			out = append(out, crossing{port: r.port, service: table.WithPort(r.Service, r.Port)})
		}
		c := &out[len(out)-1]
		c.total += r.bytes()
		switch r.Way {
		case wayOther:
			c.crossed += r.bytes()
		case wayUnknown:
			c.unknown += r.bytes()
		}
		if c.reason == "" {
			c.reason, c.next, c.with = r.Reason, r.Next, r.With
		}
	}
	return slices.DeleteFunc(out, func(c crossing) bool { return !all && c.reason == "" })
}

func crossingColumns() []table.Column[crossing] {
	would := func(heading string, setting decide.Setting, wide bool) table.Column[crossing] {
		return table.Column[crossing]{Heading: heading, Right: true, Wide: wide, Cell: func(c crossing) string { return withText(c.with, string(setting)) }}
	}
	return []table.Column[crossing]{
		{Heading: "SERVICE", Cell: func(c crossing) string { return c.service }},
		{Heading: "CROSSED", Right: true, Cell: func(c crossing) string { return size(c.crossed) }},
		{Heading: "UNKNOWN", Right: true, Wide: true, Cell: func(c crossing) string { return size(c.unknown) }},
		{Heading: "OF ALL", Right: true, Cell: func(c crossing) string { return percent(float64(c.crossed) / float64(max(c.total, 1))) }},
		{Heading: "WHY", Cell: func(c crossing) string { return c.reason }},
		would("NOW", decide.AsItIs, false),
		would("SAME ZONE", decide.WantsSameZone, false),
		would("SAME NODE", decide.WantsSameNode, true),
		would("LOCAL", decide.WantsLocal, true),
	}
}

// writeReasons explains each reason once, with what to do about the Service that crosses most by it.
func (z *zonesSeen) writeReasons(w io.Writer, width int, services []crossing) error {
	node := plan.Node{Name: z.node, Zone: z.zone}
	var told []string
	for _, c := range services {
		if c.reason == "" || slices.Contains(told, c.reason) {
			continue
		}
		if told = append(told, c.reason); len(told) == 1 {
			fmt.Fprintln(w)
		}
		table.WriteFolded(w, width, "  ", c.reason+": "+crossedText(c.reason, node))
		if c.next != "" {
			table.WriteFolded(w, width, "    ", "next: "+table.Printable(c.next))
		}
	}
	if slices.ContainsFunc(services, func(c crossing) bool { return len(c.with) > 0 }) {
		table.WriteFolded(w, width, "  ", "NOW, SAME ZONE: the share of new connections from this node that crosses as it is, and with trafficDistribution")
	}
	return nil
}
