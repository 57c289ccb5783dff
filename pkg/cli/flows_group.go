// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// groupRow counts the connections of one client, Service port or backend. A connection whose source port was translated counts once.
type groupRow struct {
	Name        string `json:"name"` // address, address:port/protocol, or namespace/name:port; "" of connections to no Service
	Connections uint64 `json:"connections"`
	New         uint64 `json:"new"`
	Answered    uint64 `json:"answered"`
	Open        uint64 `json:"open"`
	Closing     uint64 `json:"closing"`
	Closed      uint64 `json:"closed"`
	Reset       uint64 `json:"reset"`
	Expired     uint64 `json:"expired"`
	IdleSeconds int64  `json:"idleSeconds"`          // since the last packet of any
	AgeSeconds  *int64 `json:"ageSeconds,omitempty"` // of the oldest; nil: not known

	BytesSent     *uint64 `json:"bytesSent,omitempty"`     // by the clients, as far as they were counted; nil: of none
	BytesReceived *uint64 `json:"bytesReceived,omitempty"` // by the clients
}

// grouping is what flows are counted by.
type grouping struct {
	heading string
	name    func(*maps.FlowRow) string
}

func groupBy(what string) (grouping, error) {
	switch what {
	case "client":
		return grouping{"CLIENT", func(r *maps.FlowRow) string { return r.Client.String() }}, nil
	case "service":
		return grouping{"SERVICE", func(r *maps.FlowRow) string { return table.WithPort(r.Service, r.Port) }}, nil
	case "backend":
		return grouping{"BACKEND", func(r *maps.FlowRow) string {
			if at := table.HostPort(r.Backend, r.BackendPort); at != "" {
				return at + "/" + r.Protocol
			}
			return ""
		}}, nil
	}
	return grouping{}, command.Usagef("--group-by %q: want client, service or backend", what)
}

// groupFlows counts, and remembers groups alone. Those with most connections come first.
func groupFlows(flows iter.Seq2[maps.FlowRow, error], by grouping) ([]groupRow, error) {
	groups := map[string]*groupRow{}
	for flow, err := range flows {
		if err != nil {
			return nil, err
		}
		if slices.Contains(flow.Flags, "alias") {
			continue
		}
		name := by.name(&flow)
		row := groups[name]
		if row == nil {
			row = &groupRow{Name: name, IdleSeconds: flow.IdleSeconds}
			groups[name] = row
		}
		row.Connections++
		*row.of(flow.State)++
		row.IdleSeconds = min(row.IdleSeconds, flow.IdleSeconds)
		if age := flow.AgeSeconds; age != nil && (row.AgeSeconds == nil || *row.AgeSeconds < *age) {
			row.AgeSeconds = age
		}
		row.BytesSent, row.BytesReceived = sum(row.BytesSent, flow.BytesSent), sum(row.BytesReceived, flow.BytesReceived)
	}
	rows := make([]groupRow, 0, len(groups))
	for _, row := range groups {
		rows = append(rows, *row)
	}
	slices.SortFunc(rows, func(a, b groupRow) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), strings.Compare(a.Name, b.Name))
	})
	return rows, nil
}

// sum is that of two numbers that may not be known.
func sum(a, b *uint64) *uint64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	both := *a + *b
	return &both
}

// of is the count of a state.
func (r *groupRow) of(state string) *uint64 {
	switch state {
	case maps.FlowNew:
		return &r.New
	case maps.FlowAnswered:
		return &r.Answered
	case maps.FlowOpen:
		return &r.Open
	case maps.FlowClosing:
		return &r.Closing
	case maps.FlowClosed:
		return &r.Closed
	case maps.FlowReset:
		return &r.Reset
	}
	return &r.Expired
}

// groupColumns shows what goes on by states, but where bytes are asked for: a terminal of 80 columns has no room for both.
func groupColumns(by grouping, bytes bool) []table.Column[groupRow] {
	ended := func(r groupRow) uint64 { return r.Closed + r.Reset + r.Expired }
	all := []table.Column[groupRow]{
		{Heading: by.heading, Cell: func(r groupRow) string { return r.Name }},
		{Heading: "FLOWS", Right: true, Cell: func(r groupRow) string { return count(r.Connections) }},
	}
	for _, state := range maps.FlowStates() {
		all = append(all, table.Column[groupRow]{Heading: strings.ToUpper(state), Right: true, Wide: bytes || !maps.GoesOn(state),
			Cell: func(r groupRow) string { return count(*r.of(state)) }})
	}
	return append(all,
		table.Column[groupRow]{Heading: "ENDED", Narrow: true, Right: true, Needed: func(r groupRow) bool { return ended(r) > 0 }, Cell: func(r groupRow) string { return count(ended(r)) }},
		table.Column[groupRow]{Heading: "OLDEST", Right: true, Cell: func(r groupRow) string { return flowAge(r.AgeSeconds) }},
		table.Column[groupRow]{Heading: "IDLE", Right: true, Cell: func(r groupRow) string { return idle(r.IdleSeconds) }},
		table.Column[groupRow]{Heading: "SENT", Right: true, Needed: isCountedGroup, Cell: func(r groupRow) string { return sizeOf(r.BytesSent) }},
		table.Column[groupRow]{Heading: "RECEIVED", Right: true, Needed: isCountedGroup, Cell: func(r groupRow) string { return sizeOf(r.BytesReceived) }})
}

func isCountedGroup(r groupRow) bool { return r.BytesSent != nil }
