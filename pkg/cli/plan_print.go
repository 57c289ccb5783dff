// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// writePlan is the table form of a plan: what clients can reach, where each endpoint stands and why, what is wrong.
func writePlan(w io.Writer, width int, wide bool, doc planDocument) error {
	fmt.Fprintf(w, "node %s  zone %s  region %s  addresses %s\n\n",
		orDash(doc.Node.Name), orDash(doc.Node.Zone), orDash(doc.Node.Region), orDash(joined(doc.Node.Addresses)))
	if len(doc.Frontends) == 0 {
		fmt.Fprint(w, "No frontends: no Service here has an address to serve.\n")
	} else if err := writeTable(w, width, wide, frontendColumns(), doc.Frontends); err != nil {
		return err
	} else {
		writeNotes(w, width, doc)
	}
	fmt.Fprintln(w)
	if len(doc.Endpoints) == 0 {
		fmt.Fprint(w, "No endpoints: no EndpointSlice has any for these Services.\n")
	} else if err := writeTable(w, width, wide, endpointColumns(doc), doc.Endpoints); err != nil {
		return err
	} else if !wide {
		writeLegend(w, width, doc)
	}
	if len(doc.Problems) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return writeTable(w, width, wide, problemColumns(), doc.Problems)
}

// writeLegend explains each reason once; the wide table says it at every endpoint, with its names.
func writeLegend(w io.Writer, width int, doc planDocument) {
	seen := map[string]bool{}
	for _, e := range doc.Endpoints {
		key := string(e.Reason)
		if text := reasonText(e.Reason, doc.Node); !seen[key] {
			seen[key] = true
			writeFolded(w, width, "  ", key+": "+printable(text))
		}
	}
}

// writeNotes explains each note of a side once.
func writeNotes(w io.Writer, width int, doc planDocument) {
	seen := map[lb.Note]bool{"": true}
	for _, f := range doc.Frontends {
		for _, note := range []lb.Note{f.Internal.Note, f.External.Note} {
			if !seen[note] {
				seen[note] = true
				writeFolded(w, width, "  ", string(note)+": "+printable(noteText(note, doc.Node)))
			}
		}
	}
}

func frontendColumns() []column[planFrontend] {
	return []column[planFrontend]{
		{heading: "SERVICE", cell: func(f planFrontend) string { return withPort(f.Service, f.Port) }},
		{heading: "KIND", cell: func(f planFrontend) string { return string(f.Kind) }},
		{heading: "FRONTEND", cell: func(f planFrontend) string { return hostPort(f.Address, f.FrontendPort) + "/" + f.Protocol.String() }},
		{heading: "FROM THIS NODE", cell: func(f planFrontend) string { return sideText(f.Internal) }},
		{heading: "FROM OUTSIDE", wide: true, cell: func(f planFrontend) string { return sideText(f.External) }},
		outside(func(f planFrontend) (string, string) { return sideText(f.Internal), sideText(f.External) }),
		{heading: "TO OTHER NODES", needed: func(f planFrontend) bool { return f.OffNode != nil }, cell: func(f planFrontend) string { return planWayText(f.OffNode) }},
		{heading: "BALANCE", needed: func(f planFrontend) bool { return f.Balance != "" }, cell: func(f planFrontend) string { return balanceText(f.Balance) }},
		{heading: "NEXT BACKEND AFTER", needed: func(f planFrontend) bool { return f.UDPRetry > 0 }, cell: func(f planFrontend) string { return udpRetryText(f.UDPRetry) }},
		{heading: "AFFINITY", wide: true, cell: func(f planFrontend) string { return secondsText(f.AffinitySeconds) }},
		{heading: "SOURCES", wide: true, cell: func(f planFrontend) string { return joined(f.SourceRanges) }},
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

// planWayText is "dsr (nearlb.io/off-node)".
func planWayText(way *planWay) string {
	if way == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", way.Way, way.Because)
}

// outside is the column of clients off the node where not all of them get what those on the node get.
func outside[R any](sides func(R) (internal, external string)) column[R] {
	return column[R]{
		heading: "FROM OUTSIDE",
		needed:  func(r R) bool { internal, external := sides(r); return internal != external },
		cell: func(r R) string {
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
func sharesOf(doc planDocument) map[endpointKey]float64 {
	shares := map[endpointKey]float64{}
	for _, f := range doc.Frontends {
		for _, side := range []planSide{f.Internal, f.External} {
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

// shareText is "33.3 %", "0.10 %", "0 %".
func shareText(share float64) string {
	switch {
	case share == 0:
		return "0 %"
	case share < 0.01:
		return fmt.Sprintf("%.2f %%", 100*share)
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

func endpointColumns(doc planDocument) []column[planEndpoint] {
	node, shares := doc.Node, sharesOf(doc)
	share := func(e planEndpoint) string {
		part, known := shares[endpointKey{e.Service, e.Port, e.Protocol, netip.AddrPortFrom(e.Address, e.EndpointPort)}]
		if !e.Selected || !known {
			return ""
		}
		return shareText(part)
	}
	columns := []column[planEndpoint]{
		{heading: "SERVICE", cell: func(e planEndpoint) string { return withPort(e.Service, e.Port) }},
		{heading: "ENDPOINT", cell: func(e planEndpoint) string { return hostPort(e.Address, e.EndpointPort) + "/" + e.Protocol.String() }},
		{heading: "NODE", cell: func(e planEndpoint) string { return e.Node }},
		{heading: "ZONE", cell: func(e planEndpoint) string { return e.Zone }},
		{heading: "SLICE", wide: true, cell: func(e planEndpoint) string { return e.Slice }},
		{heading: "USED", cell: func(e planEndpoint) string { return yesNo(e.Selected) }},
	}
	if len(shares) > 0 {
		columns = append(columns, column[planEndpoint]{heading: "SHARE", right: true, cell: share})
	}
	return append(columns,
		column[planEndpoint]{heading: "REASON", cell: func(e planEndpoint) string { return string(e.Reason) }},
		column[planEndpoint]{heading: "MEANING", wide: true, cell: func(e planEndpoint) string { return reasonText(e.Reason, node) }})
}

func problemColumns() []column[lb.Problem] {
	return []column[lb.Problem]{
		{heading: "PROBLEM IN", cell: func(p lb.Problem) string { return p.Object }},
		{heading: "FIELD", cell: func(p lb.Problem) string { return p.Field }},
		{heading: "MESSAGE", cell: func(p lb.Problem) string { return p.Message }},
	}
}

func sideText(side planSide) string {
	tiers := make([]string, len(side.Tiers))
	for i, tier := range side.Tiers {
		tiers[i] = fmt.Sprintf("%d in %s", len(tier.Backends), tier.Tier)
	}
	return sideWords(string(side.Action), string(side.Reason), string(side.Note), tiers)
}

// sideWords is "same-zone: 2 in zone, then 3 in cluster", "all (no-hints): 2 in cluster", or "reject: no-endpoints".
func sideWords(action, reason, note string, tiers []string) string {
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

func withPort(service, port string) string {
	if port == "" {
		return service
	}
	return service + ":" + port
}

func secondsText(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf("%ds", seconds)
}

func joined[S fmt.Stringer](all []S) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return strings.Join(texts, ",")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return printable(text)
}
