// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/table"
)

// write is the table form of a plan: what clients can reach, where each endpoint stands and why, what is wrong.
func write(w io.Writer, width int, wide bool, doc Document) error {
	fmt.Fprintf(w, "node %s  zone %s  region %s  addresses %s\n\n",
		table.OrDash(doc.Node.Name), table.OrDash(doc.Node.Zone), table.OrDash(doc.Node.Region), table.OrDash(table.Joined(doc.Node.Addresses)))
	if len(doc.Frontends) == 0 {
		fmt.Fprint(w, "No frontends: no Service here has an address to serve.\n")
	} else if err := table.WriteColumns(w, width, wide, frontendColumns(), doc.Frontends); err != nil {
		return err
	} else {
		writeNotes(w, width, doc)
	}
	fmt.Fprintln(w)
	if len(doc.Endpoints) == 0 {
		fmt.Fprint(w, "No endpoints: no EndpointSlice has any for these Services.\n")
	} else if err := table.WriteColumns(w, width, wide, EndpointColumns(doc), doc.Endpoints); err != nil {
		return err
	} else if !wide {
		WriteLegend(w, width, doc)
	}
	if len(doc.Problems) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return table.WriteColumns(w, width, wide, ProblemColumns(), doc.Problems)
}

// WriteLegend explains each reason once; the wide table says it at every endpoint, with its names.
func WriteLegend(w io.Writer, width int, doc Document) {
	seen := map[string]bool{}
	for _, e := range doc.Endpoints {
		key := string(e.Reason)
		if text := ReasonText(e.Reason, doc.Node); !seen[key] {
			seen[key] = true
			table.WriteFolded(w, width, "  ", key+": "+table.Printable(text))
		}
	}
}

// writeNotes explains each note of a side once.
func writeNotes(w io.Writer, width int, doc Document) {
	seen := map[lb.Note]bool{"": true}
	for _, f := range doc.Frontends {
		for _, note := range []lb.Note{f.Internal.Note, f.External.Note} {
			if !seen[note] {
				seen[note] = true
				table.WriteFolded(w, width, "  ", string(note)+": "+table.Printable(noteText(note, doc.Node)))
			}
		}
	}
}

func frontendColumns() []table.Column[Frontend] {
	return []table.Column[Frontend]{
		{Heading: "SERVICE", Cell: func(f Frontend) string { return table.WithPort(f.Service, f.Port) }},
		{Heading: "KIND", Cell: func(f Frontend) string { return string(f.Kind) }},
		{Heading: "FRONTEND", Cell: func(f Frontend) string { return table.HostPort(f.Address, f.FrontendPort) + "/" + f.Protocol.String() }},
		{Heading: "FROM THIS NODE", Cell: func(f Frontend) string { return sideText(f.Internal) }},
		{Heading: "FROM OUTSIDE", Wide: true, Cell: func(f Frontend) string { return sideText(f.External) }},
		Outside(func(f Frontend) (string, string) { return sideText(f.Internal), sideText(f.External) }),
		{Heading: "TO OTHER NODES", Needed: func(f Frontend) bool { return f.OffNode != nil }, Cell: func(f Frontend) string { return wayText(f.OffNode) }},
		{Heading: "BALANCE", Needed: func(f Frontend) bool { return f.Balance != "" }, Cell: func(f Frontend) string { return balanceText(f.Balance) }},
		{Heading: "NEXT BACKEND AFTER", Needed: func(f Frontend) bool { return f.UDPRetry > 0 }, Cell: func(f Frontend) string { return udpRetryText(f.UDPRetry) }},
		{Heading: "AFFINITY", Wide: true, Cell: func(f Frontend) string { return table.SecondsText(f.AffinitySeconds) }},
		{Heading: "SOURCES", Wide: true, Cell: func(f Frontend) string { return table.Joined(f.SourceRanges) }},
	}
}

// balanceText names how new connections find a backend; a plan writes nothing where that is the usual way.
func balanceText(balance string) string { return cmp.Or(balance, string(lb.BalanceMaglev)) }

// udpRetryText is "3 datagrams".
func udpRetryText(count uint8) string {
	switch count {
	case 0:
		return ""
	case 1:
		return "1 datagram"
	}
	return fmt.Sprintf("%d datagrams", count)
}

// wayText is "dsr (nearlb.io/off-node)".
func wayText(way *Way) string {
	if way == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", way.Way, way.Because)
}

// Outside is the column of clients off the node where not all of them get what those on the node get.
func Outside[R any](sides func(R) (internal, external string)) table.Column[R] {
	return table.Column[R]{
		Heading: "FROM OUTSIDE",
		Narrow:  true,
		Needed:  func(r R) bool { internal, external := sides(r); return internal != external },
		Cell: func(r R) string {
			internal, external := sides(r)
			if internal == external {
				return "same"
			}
			return external
		},
	}
}

// endpointKey names an endpoint of a Service in a plan.
type endpointKey struct {
	service, port string
	protocol      lb.Protocol
	address       netip.AddrPort
}

// sharesOf are the shares of new connections from this node, by the first frontend that leads to an endpoint; of equal ones there is none.
func sharesOf(doc Document) map[endpointKey]float64 {
	shares := map[endpointKey]float64{}
	for _, f := range doc.Frontends {
		for _, side := range []Side{f.Internal, f.External} {
			for _, tier := range side.Tiers {
				for _, b := range tier.Backends {
					key := endpointKey{f.Service, f.Port, f.Protocol, netip.AddrPortFrom(b.Address, b.Port)}
					if _, known := shares[key]; !known && b.Share > 0 {
						shares[key] = b.Share
					}
				}
			}
		}
	}
	return shares
}

// ShareText is "33.3 %", "0.10 %", "0 %".
func ShareText(share float64) string {
	switch {
	case share == 0:
		return "0 %"
	case share < 0.01:
		return fmt.Sprintf("%.2f %%", 100*share)
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// EndpointColumns are those of the endpoints of a document; shares are its frontends'.
func EndpointColumns(doc Document) []table.Column[Endpoint] {
	node, shares := doc.Node, sharesOf(doc)
	share := func(e Endpoint) string {
		part, known := shares[endpointKey{e.Service, e.Port, e.Protocol, netip.AddrPortFrom(e.Address, e.EndpointPort)}]
		if !e.Selected || !known {
			return ""
		}
		return ShareText(part)
	}
	columns := []table.Column[Endpoint]{
		{Heading: "SERVICE", Cell: func(e Endpoint) string { return table.WithPort(e.Service, e.Port) }},
		{Heading: "ENDPOINT", Cell: func(e Endpoint) string { return table.HostPort(e.Address, e.EndpointPort) + "/" + e.Protocol.String() }},
		{Heading: "NODE", Cell: func(e Endpoint) string { return e.Node }},
		{Heading: "ZONE", Cell: func(e Endpoint) string { return e.Zone }},
		{Heading: "SLICE", Wide: true, Cell: func(e Endpoint) string { return e.Slice }},
		{Heading: "USED", Cell: func(e Endpoint) string { return yesNo(e.Selected) }},
	}
	if len(shares) > 0 {
		columns = append(columns, table.Column[Endpoint]{Heading: "SHARE", Right: true, Cell: share})
	}
	return append(columns,
		table.Column[Endpoint]{Heading: "REASON", Cell: func(e Endpoint) string { return string(e.Reason) }},
		table.Column[Endpoint]{Heading: "MEANING", Wide: true, Cell: func(e Endpoint) string { return ReasonText(e.Reason, node) }})
}

// ProblemColumns are those of problems of objects.
func ProblemColumns() []table.Column[lb.Problem] {
	return []table.Column[lb.Problem]{
		{Heading: "PROBLEM IN", Cell: func(p lb.Problem) string { return p.Object }},
		{Heading: "FIELD", Cell: func(p lb.Problem) string { return p.Field }},
		{Heading: "MESSAGE", Cell: func(p lb.Problem) string { return p.Message }},
	}
}

func sideText(side Side) string {
	tiers := make([]string, len(side.Tiers))
	for i, tier := range side.Tiers {
		tiers[i] = fmt.Sprintf("%d in %s", len(tier.Backends), tier.Tier)
	}
	return SideWords(string(side.Action), string(side.Reason), string(side.Note), tiers)
}

// SideWords is "same-zone: 2 in zone, then 3 in cluster", "all (no-hints): 2 in cluster", or "reject: no-endpoints".
func SideWords(action, reason, note string, tiers []string) string {
	if action != string(lb.Balance) {
		return action + ": " + reason
	}
	if note != "" {
		reason += " (" + note + ")"
	}
	return reason + ": " + strings.Join(tiers, ", then ")
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
