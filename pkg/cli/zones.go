// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// zoneRow is what one service port exchanged between this node's zone and one zone of its backends, and why where they are two.
type zoneRow struct {
	Node        string        `json:"node"` // that tells
	Time        time.Time     `json:"time"`
	Service     string        `json:"service"`
	Port        string        `json:"port"`
	Protocol    string        `json:"protocol"`
	ClientZone  string        `json:"client_zone"`  // this node's; "" unknown
	BackendZone string        `json:"backend_zone"` // "" unknown
	Way         string        `json:"way"`          // same-zone, other-zone, unknown-zone
	Connections uint64        `json:"connections"`  // since the backends came
	BytesTo     uint64        `json:"bytes_to"`     // to the backends
	BytesFrom   uint64        `json:"bytes_from"`
	Reason      string        `json:"reason"` // why not in the zone; "" where it is
	Next        string        `json:"next"`   // what to write, or to look at; "" likewise
	With        []zoneSetting `json:"with"`   // what new connections would do; none where no agent answers

	port lb.PortName
}

// zoneSetting is what new connections from this node to the ClusterIP do with a setting: shares of 1.
type zoneSetting struct {
	Setting     string  `json:"setting"` // as-it-is, PreferSameZone, PreferSameNode, Local
	Action      string  `json:"action"`
	Reason      string  `json:"reason"`
	OtherZone   float64 `json:"other_zone"`
	UnknownZone float64 `json:"unknown_zone"`
}

func (r *zoneRow) bytes() uint64 { return r.BytesTo + r.BytesFrom }

// The ways of a row.
const (
	waySame    = "same-zone"
	wayOther   = "other-zone"
	wayUnknown = "unknown-zone"
)

func zonesCommand() *cobra.Command {
	var live agentFlags
	var only filter
	var again watchFlags
	cmd := &cobra.Command{
		Use:   "zones [NAME]",
		Short: "List the bytes between zones, which Services cross, and why",
		Long: `Adds up what the programs counted between this node's zone and those of the
backends, since these came, and says of each Service that crosses why it does,
what to write, and what share of its new connections would cross with that. The
node's own sockets are not counted: no program sees their packets. Clients off
the node count as where they come in: on this node.`,
		Example: `  nearlb zones
  nearlb zones -n prod -o wide
  nearlb zones prod/web --all -o jsonl`,
	}
	live.add(cmd.Flags())
	only.add(cmd, byService, &live.pins)
	takesName(cmd, &live.pins)
	cmd.Flags().BoolVar(&only.all, "all", false, "Services that cross no zone, too")
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatJSONL, command.FormatYAML)
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := only.take(args); err != nil {
			return err
		}
		owner := tableOwner{live: &live, notes: notesOf(cmd.ErrOrStderr(), &again, output.Value)}
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
			owner.look(w, width)
			seen, err := lookAtZones(cmd.Context(), &owner, &only)
			if err != nil {
				return err
			}
			if only.service != "" && len(seen.rows) == 0 {
				return fmt.Errorf("no Service with backends matches %q%s: nearlb services lists those there are", only.service, only.within())
			}
			if seen.unsaid != nil {
				owner.notes.say(w, width, "zone", seen.unsaid.Error(), "this node's zone is taken from its backends: "+table.OneLine(seen.unsaid.Error()))
			}
			if seen.unknown != nil {
				owner.notes.say(w, width, "settings", seen.unknown.Error(), "what settings would change is not known: "+table.OneLine(seen.unknown.Error()))
			}
			return seen.print(w, width, output.Value, only.all)
		})
	}
	return cmd
}

// zonesSeen are the rows of all Services that were asked for.
type zonesSeen struct {
	node, zone string
	rows       []zoneRow
	unsaid     error // why the agent's status does not say node and zone
	unknown    error // why no row has settings, where one should
}

func lookAtZones(ctx context.Context, owner *tableOwner, only *filter) (*zonesSeen, error) {
	seen, live := &zonesSeen{unsaid: owner.unknown}, owner.live
	if owner.unknown == nil {
		seen.node, seen.zone = owner.status.Node.Name, owner.status.Node.Zone
	}
	if err := live.pins.read(func(r *maps.Reader) error { return seen.read(r, only) }); err != nil {
		return nil, err
	}
	var crossing []lb.ServiceName
	for i := range seen.rows {
		if r := &seen.rows[i]; r.Reason != "" {
			crossing = append(crossing, r.port.Service)
		}
	}
	slices.SortFunc(crossing, lb.ServiceName.Compare)
	if crossing = slices.Compact(crossing); len(crossing) > 0 {
		var outcomes []decide.Outcome
		seen.unknown = owner.ask(func() (err error) {
			outcomes, err = agent.AskZones(ctx, live.lockDir, live.pins.pinPath, crossing)
			return err
		})
		seen.settle(outcomes)
	}
	return seen, nil
}

// read adds up the counters, and takes the rules that are in force for those that leave the zone.
func (z *zonesSeen) read(r *maps.Reader, only *filter) error {
	if z.unsaid != nil {
		z.zone = r.OwnZone()
	}
	ports := map[uint32]lb.PortName{}
	for row, err := range r.ServiceTraffic() {
		if err != nil {
			return err
		}
		if only.keepsService(row.Port.Service.String(), row.Port.Port) {
			ports[row.ID] = row.Port
		}
	}
	places := newPlaces(z)
	for row, err := range r.Traffic() {
		if err != nil {
			return err
		}
		if port, wanted := ports[row.Service]; wanted {
			places.add(port, &row)
		}
	}
	z.rows = places.sorted()
	leaving := map[lb.PortName]bool{}
	for i := range z.rows {
		if r := &z.rows[i]; r.Way != waySame && (only.all || r.bytes()+r.Connections > 0) {
			leaving[r.port] = true
		}
	}
	sides := map[lb.PortName][]maps.SideRow{}
	for row, err := range r.FrontendsOf(func(p lb.PortName) bool { return leaving[p] }) {
		if err != nil {
			continue // a damaged entry: what was counted stands, and its row says less
		}
		var port lb.PortName
		if port.Service.UnmarshalText([]byte(row.Service)) != nil || port.Protocol.UnmarshalText([]byte(row.Protocol)) != nil {
			continue
		}
		port.Port = row.Port
		sides[port] = append(sides[port], row.Internal, row.External)
	}
	for i := range z.rows {
		if r := &z.rows[i]; leaving[r.port] && r.Way != waySame {
			r.Reason = whyCrossed(z.zone, r.BackendZone, sides[r.port], places.idle[r.port])
			r.Next = crossingNext(r.Reason, r.port.Service, z)
		}
	}
	return nil
}

// places adds up counters by service port and zone.
type places struct {
	of   *zonesSeen
	rows map[zoneKey]*zoneRow
	idle map[lb.PortName]bool // ports that have a backend in this zone which takes no new connections
	now  time.Time
}

type zoneKey struct {
	port lb.PortName
	zone string
}

func newPlaces(of *zonesSeen) *places {
	return &places{of: of, rows: map[zoneKey]*zoneRow{}, idle: map[lb.PortName]bool{}, now: time.Now().UTC()}
}

func (p *places) add(port lb.PortName, t *maps.TrafficRow) {
	key := zoneKey{port, t.Zone}
	row := p.rows[key]
	if row == nil {
		row = &zoneRow{Node: p.of.node, Time: p.now, Service: port.Service.String(), Port: port.Port, Protocol: port.Protocol.String(),
			ClientZone: p.of.zone, BackendZone: t.Zone, Way: wayBetween(p.of.zone, t.Zone), With: []zoneSetting{}, port: port}
		p.rows[key] = row
	}
	row.Connections += t.Connections
	row.BytesTo += t.BytesTo
	row.BytesFrom += t.BytesFrom
	p.idle[port] = p.idle[port] || row.Way == waySame && !t.Active
}

func wayBetween(client, backend string) string {
	switch {
	case client == "" || backend == "":
		return wayUnknown
	case client == backend:
		return waySame
	}
	return wayOther
}

// sorted has what crosses most first.
func (p *places) sorted() []zoneRow {
	crossed := map[lb.PortName]uint64{}
	rows := make([]zoneRow, 0, len(p.rows))
	for key, row := range p.rows {
		rows = append(rows, *row)
		if row.Way != waySame {
			crossed[key.port] += row.bytes()
		}
	}
	slices.SortFunc(rows, func(a, b zoneRow) int {
		return cmp.Or(cmp.Compare(crossed[b.port], crossed[a.port]), a.port.Compare(b.port), cmp.Compare(b.bytes(), a.bytes()), cmp.Compare(a.BackendZone, b.BackendZone))
	})
	return rows
}

// settle puts the agent's outcomes to the rows that have a reason.
func (z *zonesSeen) settle(outcomes []decide.Outcome) {
	with := map[lb.PortName][]zoneSetting{}
	for _, o := range outcomes {
		with[o.Port] = append(with[o.Port], zoneSetting{string(o.Setting), string(o.Action), string(o.Reason), o.OtherZone, o.UnknownZone})
	}
	for i := range z.rows {
		if r := &z.rows[i]; r.Reason != "" {
			r.With = command.List(with[r.port])
		}
	}
}
