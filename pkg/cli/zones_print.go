// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

func (z *zonesSeen) print(w io.Writer, width int, format string, all bool) error {
	switch format {
	case formatJSON, formatJSONL, formatYAML:
		return writeRows(w, width, format, nil, z.rows)
	}
	if len(z.rows) == 0 {
		_, err := fmt.Fprintln(w, "No traffic: no Service that was asked for has a backend.")
		return err
	}
	fmt.Fprintf(w, "node %s  zone %s\n\n", orDash(printable(z.node)), orDash(printable(z.zone)))
	if err := writeTable(w, width, format == formatWide, pairColumns(), z.pairs()); err != nil {
		return err
	}
	services := z.services(all)
	fmt.Fprintln(w)
	if len(services) == 0 {
		_, err := fmt.Fprintln(w, "No Service crosses zones. --all lists all of them.")
		return err
	}
	if err := writeTable(w, width, format == formatWide, crossingColumns(), services); err != nil {
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

func pairColumns() []column[zonePair] {
	return []column[zonePair]{
		{heading: "CLIENTS IN", cell: func(p zonePair) string { return p.client }},
		{heading: "BACKENDS IN", cell: func(p zonePair) string { return p.backend }},
		{heading: "CONNECTIONS", right: true, cell: func(p zonePair) string { return count(p.connections) }},
		{heading: "BYTES", right: true, cell: func(p zonePair) string { return size(p.bytes) }},
		{heading: "SHARE", right: true, cell: func(p zonePair) string { return percent(p.share) }},
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
			out = append(out, crossing{port: r.port, service: withPort(r.Service, r.Port)})
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

func crossingColumns() []column[crossing] {
	would := func(heading string, setting decide.Setting, wide bool) column[crossing] {
		return column[crossing]{heading: heading, right: true, wide: wide, cell: func(c crossing) string { return withText(c.with, string(setting)) }}
	}
	return []column[crossing]{
		{heading: "SERVICE", cell: func(c crossing) string { return c.service }},
		{heading: "CROSSED", right: true, cell: func(c crossing) string { return size(c.crossed) }},
		{heading: "UNKNOWN", right: true, wide: true, cell: func(c crossing) string { return size(c.unknown) }},
		{heading: "OF ALL", right: true, cell: func(c crossing) string { return percent(float64(c.crossed) / float64(max(c.total, 1))) }},
		{heading: "WHY", cell: func(c crossing) string { return c.reason }},
		would("NOW", decide.AsItIs, false),
		would("SAME ZONE", decide.WantsSameZone, false),
		would("SAME NODE", decide.WantsSameNode, true),
		would("LOCAL", decide.WantsLocal, true),
	}
}

// writeReasons explains each reason once, with what to do about the Service that crosses most by it.
func (z *zonesSeen) writeReasons(w io.Writer, width int, services []crossing) error {
	node := planNode{Name: z.node, Zone: z.zone}
	var told []string
	for _, c := range services {
		if c.reason == "" || slices.Contains(told, c.reason) {
			continue
		}
		if told = append(told, c.reason); len(told) == 1 {
			fmt.Fprintln(w)
		}
		writeFolded(w, width, "  ", c.reason+": "+crossedText(c.reason, node))
		if c.next != "" {
			writeFolded(w, width, "    ", "next: "+printable(c.next))
		}
	}
	if slices.ContainsFunc(services, func(c crossing) bool { return len(c.with) > 0 }) {
		writeFolded(w, width, "  ", "NOW, SAME ZONE: the share of new connections from this node that crosses as it is, and with trafficDistribution")
	}
	return nil
}
