// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/table"
)

// Diff says which new connections go elsewhere when one set of objects takes the place of another. Connections that exist stay where
// they are while their backend serves.
type Diff struct {
	Node      Node         `json:"node"`
	Frontends []Move       `json:"frontends"` // those that answer differently
	Problems  []lb.Problem `json:"problems"`  // of the new objects alone
}

type Move struct {
	FrontendID
	Change   string         `json:"change"` // added | removed | changed
	Internal *MovedSide     `json:"internal,omitempty"`
	External *MovedSide     `json:"external,omitempty"`
	Affinity *[2]int64      `json:"affinitySeconds,omitempty"` // before, after; where it differs
	Sources  bool           `json:"sourceRanges,omitempty"`    // they differ
	OffNode  *[2]lb.OffNode `json:"offNode,omitempty"`         // before, after; where it differs
	Balance  *[2]string     `json:"balance,omitempty"`         // before, after; where it differs
	UDPRetry *[2]int        `json:"udpRetry,omitempty"`        // before, after; where it differs
}

type MovedSide struct {
	From     string         `json:"from"` // a reason; with another action than balance: that, too. "": there was no such frontend
	To       string         `json:"to"`
	Moved    float64        `json:"moved"` // share of the new connections that get another answer, 0 to 1
	Backends []MovedBackend `json:"backends"`
}

type MovedBackend struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	From    float64    `json:"from"` // share of the side's new connections, 0 to 1
	To      float64    `json:"to"`
}

// The changes of a frontend.
const (
	moveAdded   = "added"
	moveRemoved = "removed"
	moveChanged = "changed"
)

func newDiff(before, after Document) Diff {
	d := Diff{Node: after.Node, Frontends: []Move{}, Problems: []lb.Problem{}}
	was := make(map[FrontendID]Frontend, len(before.Frontends))
	for _, f := range before.Frontends {
		was[f.FrontendID] = f
	}
	for _, now := range after.Frontends {
		old, known := was[now.FrontendID]
		delete(was, now.FrontendID)
		if m := moveOf(old, now); !known || m.differs() {
			if m.Change = moveChanged; !known {
				m.Change = moveAdded
			}
			d.Frontends = append(d.Frontends, m)
		}
	}
	for _, old := range was {
		m := moveOf(old, Frontend{FrontendID: old.FrontendID})
		m.Change = moveRemoved
		d.Frontends = append(d.Frontends, m)
	}
	slices.SortFunc(d.Frontends, Move.compare)
	for _, p := range after.Problems {
		if !slices.Contains(before.Problems, p) {
			d.Problems = append(d.Problems, p)
		}
	}
	return d
}

func (m Move) compare(o Move) int {
	return cmp.Or(cmp.Compare(m.Service, o.Service), cmp.Compare(m.Port, o.Port), m.Kind.Compare(o.Kind), m.Address.Compare(o.Address),
		cmp.Compare(m.FrontendPort, o.FrontendPort), cmp.Compare(m.Protocol, o.Protocol), cmp.Compare(m.Change, o.Change))
}

func (m Move) differs() bool {
	return m.Internal != nil || m.External != nil || m.Affinity != nil || m.Sources || m.OffNode != nil || m.Balance != nil || m.UDPRetry != nil
}

func moveOf(old, now Frontend) Move {
	m := Move{FrontendID: now.FrontendID, Internal: movedSide(old.Internal, now.Internal), External: movedSide(old.External, now.External)}
	if old.AffinitySeconds != now.AffinitySeconds {
		m.Affinity = &[2]int64{old.AffinitySeconds, now.AffinitySeconds}
	}
	if was, is := balanceText(old.Balance), balanceText(now.Balance); was != is {
		m.Balance = &[2]string{was, is}
	}
	if old.UDPRetry != now.UDPRetry {
		m.UDPRetry = &[2]int{int(old.UDPRetry), int(now.UDPRetry)}
	}
	m.Sources = !slices.Equal(old.SourceRanges, now.SourceRanges)
	if was, is := old.OffNode.name(), now.OffNode.name(); was != is {
		m.OffNode = &[2]lb.OffNode{was, is}
	}
	return m
}

// name is SNAT's where nobody says more.
func (w *Way) name() lb.OffNode {
	if w == nil {
		return lb.OffNodeSNAT
	}
	return w.Way
}

// movedSide is nil where the two give the same answers.
func movedSide(old, now Side) *MovedSide {
	m := &MovedSide{From: answerText(old), To: answerText(now), Backends: []MovedBackend{}}
	was, is := sideShares(old), sideShares(now)
	for _, at := range sortedKeys(was, is) {
		if from, to := was[at], is[at]; from != to {
			m.Backends = append(m.Backends, MovedBackend{at.Addr(), at.Port(), from, to})
			m.Moved += max(0, to-from)
		}
	}
	if old.Action != now.Action {
		m.Moved = 1
	}
	m.Moved = roundShare(m.Moved)
	if m.From == m.To && len(m.Backends) == 0 {
		return nil
	}
	return m
}

// answerText is the reason, after any other action than balance.
func answerText(s Side) string {
	if s.Action == lb.Balance || s.Action == "" {
		return string(s.Reason)
	}
	return fmt.Sprintf("%s: %s", s.Action, s.Reason)
}

// sideShares are the parts of a side's new connections that its backends get: those of the first tier alone, while they serve.
func sideShares(s Side) map[netip.AddrPort]float64 {
	shares := map[netip.AddrPort]float64{}
	if len(s.Tiers) == 0 {
		return shares
	}
	for _, b := range s.Tiers[0].Backends {
		share := b.Share
		if share == 0 {
			share = roundShare(1 / float64(len(s.Tiers[0].Backends)))
		}
		shares[netip.AddrPortFrom(b.Address, b.Port)] = share
	}
	return shares
}

func roundShare(share float64) float64 { return min(1, math.Round(1e6*share)/1e6) }

func sortedKeys(a, b map[netip.AddrPort]float64) []netip.AddrPort {
	var all []netip.AddrPort
	for at := range a {
		all = append(all, at)
	}
	for at := range b {
		if _, both := a[at]; !both {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// movedRow is one side of a frontend, or one of its backends, in a table.
type movedRow struct {
	Move
	clients string
	side    *MovedSide
	backend MovedBackend
}

func writeDiff(w io.Writer, width int, wide bool, d Diff) error {
	sides, backends := d.rows()
	if len(sides) == 0 {
		fmt.Fprintln(w, "No new connection goes elsewhere.")
	} else if err := table.WriteColumns(w, width, wide, movedColumns(sides), sides); err != nil {
		return err
	}
	if len(backends) > 0 {
		fmt.Fprintln(w)
		if err := table.WriteColumns(w, width, wide, movedBackendColumns(), backends); err != nil {
			return err
		}
	}
	if len(d.Problems) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return table.WriteColumns(w, width, wide, ProblemColumns(), d.Problems)
}

// rows are those of the two tables. Clients off the node have none of their own where they get the same answers.
func (d Diff) rows() (sides, backends []movedRow) {
	add := func(m Move, clients string, side *MovedSide) {
		sides = append(sides, movedRow{Move: m, clients: clients, side: side})
		for _, b := range side.Backends {
			backends = append(backends, movedRow{Move: m, clients: clients, side: side, backend: b})
		}
	}
	for _, m := range d.Frontends {
		switch same := m.Internal != nil && m.External != nil && sameMove(*m.Internal, *m.External); {
		case same:
			add(m, "all", m.Internal)
		case m.Internal == nil && m.External == nil:
			add(m, "all", &MovedSide{})
		default:
			if m.Internal != nil {
				add(m, "this node's", m.Internal)
			}
			if m.External != nil {
				add(m, "outside", m.External)
			}
		}
	}
	return sides, backends
}

func sameMove(a, b MovedSide) bool {
	return a.From == b.From && a.To == b.To && a.Moved == b.Moved && slices.Equal(a.Backends, b.Backends)
}

// movedColumns have one for affinity, source ranges, the way to other nodes and what else belongs to a frontend where some differ.
func movedColumns(rows []movedRow) []table.Column[movedRow] {
	columns := []table.Column[movedRow]{
		{Heading: "SERVICE", Cell: func(r movedRow) string { return table.WithPort(r.Service, r.Port) }},
		{Heading: "KIND", Wide: true, Cell: func(r movedRow) string { return string(r.Kind) }},
		{Heading: "FRONTEND", Cell: movedFrontend},
		{Heading: "CLIENTS", Cell: func(r movedRow) string { return r.clients }},
		{Heading: "MOVES", Cell: func(r movedRow) string { return ShareText(r.side.Moved) }},
		{Heading: "WAS", Cell: func(r movedRow) string { return reasonWord(r.side.From) }},
		{Heading: "IS", Cell: func(r movedRow) string { return reasonWord(r.side.To) }},
	}
	if slices.ContainsFunc(rows, func(r movedRow) bool { return besideText(r) != "-" }) {
		columns = append(columns, table.Column[movedRow]{Heading: "ALSO", Cell: besideText})
	}
	return columns
}

// reasonWord leaves the action out, which the reason implies.
func reasonWord(answer string) string {
	if _, reason, other := strings.Cut(answer, ": "); other {
		return reason
	}
	return table.OrDash(answer)
}

func movedBackendColumns() []table.Column[movedRow] {
	return []table.Column[movedRow]{
		{Heading: "FRONTEND", Cell: movedFrontend},
		{Heading: "CLIENTS", Cell: func(r movedRow) string { return r.clients }},
		{Heading: "BACKEND", Cell: func(r movedRow) string { return table.HostPort(r.backend.Address, r.backend.Port) }},
		{Heading: "WAS", Cell: func(r movedRow) string { return ShareText(r.backend.From) }},
		{Heading: "IS", Cell: func(r movedRow) string { return ShareText(r.backend.To) }},
	}
}

func movedFrontend(r movedRow) string {
	return table.HostPort(r.Address, r.FrontendPort) + "/" + r.Protocol.String()
}

// besideText is what differs beside the choice of backends, of a frontend that stays.
func besideText(r movedRow) string {
	var all []string
	if a := r.Affinity; a != nil && r.Change == moveChanged {
		all = append(all, fmt.Sprintf("affinity %d s -> %d s", a[0], a[1]))
	}
	if r.Sources && r.Change == moveChanged {
		all = append(all, "sources")
	}
	if w := r.OffNode; w != nil && r.Change == moveChanged {
		all = append(all, fmt.Sprintf("to other nodes %s -> %s", w[0], w[1]))
	}
	if b := r.Balance; b != nil && r.Change == moveChanged {
		all = append(all, fmt.Sprintf("balance %s -> %s", b[0], b[1]))
	}
	if u := r.UDPRetry; u != nil && r.Change == moveChanged {
		all = append(all, fmt.Sprintf("udp-retry %d -> %d", u[0], u[1]))
	}
	return table.OrDash(strings.Join(all, ", "))
}
