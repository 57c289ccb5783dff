// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Of each frontend the tables tell how clients off the node get to other nodes, and to which ones not so.
func TestFrontendsNameTheWayToOtherNodes(t *testing.T) {
	tables := NewFake(bpf.Sizes{})
	c := tunnelConfig("n1", "n2", "n3", "n4", "n5")
	c.Node6 = netip.MustParseAddr("2001:db8::1")
	for name, node := range map[string]TunnelNode{"n1": {}, "n2": {Carries: true, Direct: true}, "n3": {Carries: true}, "n4": {}, "n5": {Carries: true, Direct: true}} {
		node.Addresses = c.Tunnel.Nodes[name].Addresses
		if name == "n2" {
			node.Addresses = append(node.Addresses, netip.MustParseAddr("2001:db8::2"))
		}
		c.Tunnel.Nodes[name] = node
	}
	if err := tables.Configure(c); err != nil {
		t.Fatal(err)
	}
	way := func(asked lb.OffNode, frontend string, nodes ...string) *WayRow {
		t.Helper()
		d := lb.Decision{Service: lb.ServiceName{Namespace: "default", Name: "web"}, OffNode: asked}
		f := lb.Frontend{Key: lb.FrontendKey{Address: netip.MustParseAddrPort(frontend), Protocol: lb.TCP}, Kind: lb.KindClusterIP,
			Port: lb.PortName{Service: d.Service, Port: "http", Protocol: lb.TCP}}
		tier := lb.Tier{Name: lb.TierCluster}
		for i, n := range nodes {
			b := lb.BackendKey{Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Address: netip.MustParseAddrPort(fmt.Sprintf("10.1.0.%d:80", i+1))}
			tier.Backends = append(tier.Backends, b)
			near := map[bool]lb.TierName{false: lb.TierCluster, true: lb.TierNode}[n == "n1"]
			d.Backends = append(d.Backends, lb.Backend{Key: b, Node: n, State: lb.Active, Near: near, Lists: []lb.List{lb.ListCluster}})
		}
		f.Internal = lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster, Tiers: []lb.Tier{tier}}
		f.External = f.Internal
		d.Frontends = []lb.Frontend{f}
		if _, err := tables.Apply(d); err != nil {
			t.Fatal(err)
		}
		for row, err := range tables.Reader().Frontends() {
			if err != nil {
				t.Fatal(err)
			}
			return row.OffNode
		}
		t.Fatal("no frontend")
		return nil
	}
	none := []string{}
	const four, six = "10.96.0.1:80", "[fd00::1]:80"
	all := c.Tunnel
	for _, row := range []struct {
		asked    lb.OffNode
		tunnel   Tunnel
		frontend string
		nodes    []string
		want     *WayRow
	}{
		{lb.OffNodeSNAT, all, four, []string{"n2"}, &WayRow{Way: "snat", SNAT: none, Carry: none}},
		{lb.OffNodeSNAT, all, four, []string{"n1"}, nil},
		{lb.OffNodeDSR, all, four, []string{"n1"}, nil},
		{lb.OffNodeCarry, all, four, []string{"n1", "n2", "n3"}, &WayRow{Way: "carry", SNAT: none, Carry: none}},
		{lb.OffNodeDSR, all, four, []string{"n4", "n3", "n2"}, &WayRow{Way: "dsr", SNAT: []string{"n4"}, Carry: []string{"n3"}}},
		{lb.OffNodeDSR, all, four, []string{"", "n2"}, &WayRow{Way: "dsr", SNAT: []string{"10.1.0.1"}, Carry: none}},
		{lb.OffNodeDSR, all, six, []string{"n2", "n5"}, &WayRow{Way: "dsr", SNAT: []string{"n5"}, Carry: none}},
		{lb.OffNodeDSR, Tunnel{}, four, []string{"n1", "n2"}, &WayRow{Way: "snat", SNAT: none, Carry: none, Lacks: "dsr"}},
		{lb.OffNodeDSR, Tunnel{}, four, []string{"n1"}, nil},
	} {
		c.Tunnel = row.tunnel
		if err := tables.Configure(c); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row.want, way(row.asked, row.frontend, row.nodes...)); diff != "" {
			t.Errorf("%s to %v (-want +got):\n%s", row.asked, row.nodes, diff)
		}
	}
}
