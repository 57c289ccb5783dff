// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// A plan names the way of clients off the node where more than SNAT is asked for and some backend is on another node, and who asks.
func TestThePlanNamesTheWayToOtherNodes(t *testing.T) {
	side := func(nodes ...string) Side {
		tier := Tier{}
		for _, n := range nodes {
			tier.Backends = append(tier.Backends, Backend{Node: n})
		}
		return Side{Tiers: []Tier{tier}}
	}
	for _, row := range []struct {
		side             Side
		asked, otherwise lb.OffNode
		want             string
	}{
		{side("n1", "n2"), "", lb.OffNodeSNAT, ""},
		{side("n1", "n2"), "", lb.OffNodeCarry, "carry (--off-node)"},
		{side("n2"), lb.OffNodeDSR, lb.OffNodeSNAT, "dsr (nearlb.io/off-node, with --carry-port)"},
		{side("n2"), lb.OffNodeDSR, lb.OffNodeCarry, "dsr (nearlb.io/off-node)"},
		{side("n2"), lb.OffNodeSNAT, lb.OffNodeDSR, "snat (nearlb.io/off-node)"},
		{side("n1"), lb.OffNodeDSR, lb.OffNodeSNAT, ""},
	} {
		if got := wayText(newWay(row.side, row.asked, row.otherwise, "n1")); got != row.want {
			t.Errorf("asked %q, otherwise %q: %q, want %q", row.asked, row.otherwise, got, row.want)
		}
	}
}

// What a table shows where somebody needs it, it shows with -o wide as well, and no column twice.
func TestAWidePlanNamesTheWayToOtherNodes(t *testing.T) {
	doc := Document{Frontends: []Frontend{{
		OffNode: &Way{Way: lb.OffNodeCarry, Because: "--off-node"}, Balance: string(lb.BalanceRoundRobin), UDPRetry: 3,
		Internal: Side{Action: lb.Reject}, External: Side{Action: lb.Drop},
	}}}
	for _, wide := range []bool{false, true} {
		var out strings.Builder
		if err := write(&out, 0, wide, doc); err != nil {
			t.Fatal(err)
		}
		for _, heading := range []string{"FROM OUTSIDE", "TO OTHER NODES", "BALANCE", "NEXT BACKEND AFTER", "carry (--off-node)"} {
			if n := strings.Count(out.String(), heading); n != 1 {
				t.Errorf("wide %t: %d times %s:\n%s", wide, n, heading, out.String())
			}
		}
	}
}

// A comparison of plans tells of a way that changes, though each backend keeps its share.
func TestPlansThatDifferInTheWayToOtherNodesDiffer(t *testing.T) {
	frontend := func(way *Way) Document {
		return Document{Frontends: []Frontend{{FrontendID: FrontendID{Service: "default/web"}, OffNode: way}}}
	}
	carry, dsr := &Way{Way: lb.OffNodeCarry}, &Way{Way: lb.OffNodeDSR}
	for _, row := range []struct {
		before, after *Way
		want          string // "": nothing differs
	}{{nil, nil, ""}, {dsr, dsr, ""}, {nil, dsr, "to other nodes snat -> dsr"}, {dsr, carry, "to other nodes dsr -> carry"}} {
		d := newDiff(frontend(row.before), frontend(row.after))
		got := ""
		if rows, _ := d.rows(); len(rows) > 0 {
			got = besideText(rows[0])
		}
		if got != row.want {
			t.Errorf("%q to %q: %q, want %q", row.before.name(), row.after.name(), got, row.want)
		}
	}
}

// A plan names the way in which backends are chosen where it is not Maglev's, and a comparison of plans a change of it.
func TestThePlanTellsHowConnectionsAreBalanced(t *testing.T) {
	plan := func(by lb.Balancing) Document {
		name := lb.ServiceName{Namespace: "default", Name: "web"}
		key := lb.FrontendKey{Address: netip.MustParseAddrPort("10.96.0.1:80")}
		return NewDocument(lb.Node{}, lb.OffNodeSNAT, []lb.Decision{{Service: name, Balancing: by, Frontends: []lb.Frontend{{Key: key, Port: lb.PortName{Service: name}}}}}, nil)
	}
	if by := plan("").Frontends[0].Balance; by != "" {
		t.Errorf("balance %q", by)
	}
	for _, by := range []lb.Balancing{lb.BalanceRoundRobin, lb.BalanceLeastConnections} {
		if got := plan(by).Frontends[0].Balance; got != string(by) {
			t.Errorf("balance %q, want %q", got, by)
		}
		rows, _ := newDiff(plan(""), plan(by)).rows()
		if want := "balance maglev -> " + string(by); len(rows) != 1 || besideText(rows[0]) != want {
			t.Errorf("differences %+v, want %q", rows, want)
		}
	}
}

// A plan says of UDP frontends after how many datagrams the next backend gets those that follow, and a comparison that this changes.
func TestThePlanTellsWhenDatagramsGoToTheNextBackend(t *testing.T) {
	plan := func(datagrams uint8) Document {
		name := lb.ServiceName{Namespace: "default", Name: "web"}
		d := lb.Decision{Service: name, UDPRetry: datagrams}
		for i, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
			at := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), uint16(80+i))
			d.Frontends = append(d.Frontends, lb.Frontend{Key: lb.FrontendKey{Address: at, Protocol: protocol}, Port: lb.PortName{Service: name, Protocol: protocol}})
		}
		return NewDocument(lb.Node{}, lb.OffNodeSNAT, []lb.Decision{d}, nil)
	}
	before, after := plan(0), plan(3)
	if tcp, udp := udpRetryText(after.Frontends[0].UDPRetry), udpRetryText(after.Frontends[1].UDPRetry); tcp != "" || udp != "3 datagrams" {
		t.Errorf("TCP after %q, UDP after %q", tcp, udp)
	}
	rows, _ := newDiff(before, after).rows()
	if len(rows) != 1 || besideText(rows[0]) != "udp-retry 0 -> 3" {
		t.Errorf("differences %+v", rows)
	}
}
