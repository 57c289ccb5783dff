// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

func tunnelConfig(nodes ...string) Config {
	c := Config{Node4: netip.MustParseAddr("192.0.2.1"), Tunnel: Tunnel{Port: 6091, Nodes: map[string]TunnelNode{}}}
	for i, name := range nodes {
		c.Tunnel.Nodes[name] = TunnelNode{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, Carries: true, Unheard: i > 0}
	}
	return c
}

// Nodes of the tunnel keep their numbers while they are told of, with and without backends, and over a restart; nobody else is in the tables.
func TestNodesOfTheTunnelKeepTheirNumbers(t *testing.T) {
	tables := NewFake(bpf.Sizes{})
	if err := tables.Configure(tunnelConfig("n1", "n2")); err != nil {
		t.Fatal(err)
	}
	before := maps.Collect(tables.store.tunnelAddresses.all())
	if len(before) != 2 || len(maps.Collect(tables.store.tunnelNodes.all())) != 2 {
		t.Fatalf("addresses %v", before)
	}
	tables.Reclaim(tables.now())
	restarted, err := open(tables.store)
	if err != nil {
		t.Fatal(err)
	}
	if err := restarted.Configure(tunnelConfig("n1", "n2")); err != nil {
		t.Fatal(err)
	}
	if again, err := restarted.Config(); err != nil || again.Tunnel.Port != 6091 || len(again.Tunnel.Nodes) != 2 || !again.Tunnel.Nodes["n2"].Carries ||
		again.Tunnel.Nodes["n1"].Unheard || !again.Tunnel.Nodes["n2"].Unheard ||
		again.Tunnel.Nodes["n2"].Addresses[0] != netip.MustParseAddr("192.0.2.2") {
		t.Errorf("the tables say %+v, %v", again.Tunnel, err)
	}
	after := maps.Collect(restarted.store.tunnelAddresses.all())
	for address, number := range after {
		if text, _, _ := restarted.store.names.get(nameKey{Kind: nodeName, Id: number}); text == "" {
			t.Errorf("%v has number %d, which is nobody's", addrOf(address), number)
		}
	}
	if err := restarted.Configure(tunnelConfig("n1")); err != nil {
		t.Fatal(err)
	}
	if left := maps.Collect(restarted.store.tunnelNodes.all()); len(left) != 1 {
		t.Errorf("nodes %v, want n1's alone", left)
	}
	if err := restarted.Configure(Config{}); err != nil {
		t.Fatal(err)
	}
	if end, _, _ := restarted.store.tunnel.get(0); end != (bpf.NearlbTunnelEnd{}) || len(maps.Collect(restarted.store.tunnelAddresses.all())) > 0 {
		t.Errorf("without a tunnel its tables say %+v", end)
	}
}

// Two Node objects may have one address, as that of a machine which got another name is left behind: however often the tables are written, and by
// whomever, they say the same.
func TestAnAddressOfTwoNodesIsTheSameOnesEachTime(t *testing.T) {
	tables := NewFake(bpf.Sizes{})
	c := tunnelConfig("n1", "n2", "n3")
	c.Tunnel.Nodes["n3"] = c.Tunnel.Nodes["n2"]
	if err := tables.Configure(c); err != nil {
		t.Fatal(err)
	}
	first := maps.Collect(tables.store.tunnelAddresses.all())
	for range 32 {
		if found, err := tables.Audit(false); err != nil || len(found) > 0 {
			t.Fatalf("audit: %v, %v", found, err)
		}
		if err := tables.Configure(c); err != nil {
			t.Fatal(err)
		}
		if again := maps.Collect(tables.store.tunnelAddresses.all()); !maps.Equal(first, again) {
			t.Fatalf("the same configuration writes %v, then %v", first, again)
		}
	}
}

// A cluster may have thousands of nodes more than there is room for: that is one line in a status, the same each time, and names the flag.
func TestNodesWithoutRoomAreOneError(t *testing.T) {
	tables := NewFake(bpf.Sizes{Names: 8})
	c := tunnelConfig()
	for i := range 5000 {
		name := fmt.Sprintf("%04d%s", i, strings.Repeat("x", nameLimit-6))
		c.Tunnel.Nodes[name] = TunnelNode{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}}
	}
	want := "configure tables: table names is full (8 entries), and 4992 entries have no room: raise the agent's --size-names"
	for range 2 {
		if err := tables.Configure(c); err == nil || err.Error() != want {
			t.Fatalf("an error of %d bytes, want %s", len(fmt.Sprint(err)), want)
		}
		for name := range tables.tunnelNodes {
			if name[:4] > "0007" {
				t.Errorf("node %s has a number in the place of one before it", name[:4])
			}
		}
	}
}

// The endpoints of this node, and no others, may be named by other nodes: for as long as they are there.
func TestOtherNodesMayNameTheEndpointsOfThisOne(t *testing.T) {
	key := lb.PortKey{Name: "http", Protocol: lb.TCP}
	decision := func(near lb.TierName, addresses ...string) lb.Decision {
		d := lb.Decision{Service: lb.ServiceName{Namespace: "default", Name: "web"}, OffNode: lb.OffNodeCarry}
		f := lb.Frontend{Key: lb.FrontendKey{Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: lb.TCP}, Kind: lb.KindClusterIP,
			Port: lb.PortName{Service: d.Service, Port: "http", Protocol: lb.TCP}}
		tier := lb.Tier{Name: near}
		for _, a := range addresses {
			b := lb.BackendKey{Port: key, Address: netip.MustParseAddrPort(a)}
			tier.Backends = append(tier.Backends, b)
			d.Backends = append(d.Backends, lb.Backend{Key: b, Node: "n1", State: lb.Active, Near: near, Lists: []lb.List{lb.ListCluster}})
		}
		f.Internal = lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster, Tiers: []lb.Tier{tier}}
		f.External = f.Internal
		d.Frontends = []lb.Frontend{f}
		return d
	}
	tables := NewFake(bpf.Sizes{})
	apply := func(d lb.Decision) {
		t.Helper()
		if _, err := tables.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	want := func(n int) {
		t.Helper()
		if live := maps.Collect(tables.store.localBackends.all()); len(live) != n || !maps.Equal(live, tables.localOf(n > 0)) {
			t.Errorf("local backends %v, want %d", live, n)
		}
		if drifts, err := tables.Audit(false); err != nil || len(drifts) > 0 {
			t.Errorf("audit: %v, %v", drifts, err)
		}
	}
	apply(decision(lb.TierNode, "10.1.0.1:80"))
	want(0)
	if err := tables.Configure(tunnelConfig("n1", "n2")); err != nil {
		t.Fatal(err)
	}
	want(1)
	apply(decision(lb.TierNode, "10.1.0.1:80", "10.1.0.2:80"))
	want(2)
	record := tables.frontends[keyOf(lb.FrontendKey{Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: lb.TCP})]
	if got := read[recordValue](tables.store.records, record.record); got.Flags&uint8(bpf.NearlbRecordFlagsRECORD_CARRY) == 0 {
		t.Errorf("flags of the record: %d", got.Flags)
	}
	apply(decision(lb.TierCluster, "10.1.0.1:80", "10.1.0.2:80"))
	want(0)
	apply(decision(lb.TierNode, "10.1.0.1:80"))
	want(1)
	if err := tables.Configure(Config{}); err != nil {
		t.Fatal(err)
	}
	want(0)
}

// A backend of UDP that is a node's tunnel is quiet for as long as it is one, whenever it was published, over a restart, too; after that it is
// what the last decision says. One of TCP is none.
func TestABackendThatIsATunnelIsQuiet(t *testing.T) {
	const tunnel, other = "192.0.2.2:6091", "10.1.0.1:6091"
	tables := NewFake(bpf.Sizes{})
	apply := func(protocol lb.Protocol, state lb.State) {
		t.Helper()
		key := lb.PortKey{Name: "dns", Protocol: protocol}
		d := lb.Decision{Service: lb.ServiceName{Namespace: "default", Name: string(protocol)}}
		tier := lb.Tier{Name: lb.TierCluster}
		for _, a := range []string{other, tunnel} {
			b := lb.BackendKey{Port: key, Address: netip.MustParseAddrPort(a)}
			tier.Backends = append(tier.Backends, b)
			d.Backends = append(d.Backends, lb.Backend{Key: b, State: state, Near: tier.Name, Lists: []lb.List{lb.ListCluster}})
		}
		side := lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster, Tiers: []lb.Tier{tier}}
		d.Frontends = []lb.Frontend{{Key: lb.FrontendKey{Address: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: protocol}, Kind: lb.KindClusterIP,
			Port: lb.PortName{Service: d.Service, Port: key.Name, Protocol: protocol}, Internal: side, External: side}}
		if _, err := tables.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	configure := func(nodes ...string) {
		t.Helper()
		c := tunnelConfig(nodes...)
		if len(nodes) == 0 {
			c = Config{}
		}
		if err := tables.Configure(c); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, state uint8, others uint8) {
		t.Helper()
		for _, s := range tables.services {
			for _, p := range s.ports {
				for _, b := range p.backends {
					want := others
					if wire(&b.row).addrPort().String() == tunnel && p.key.Value().Protocol == lb.UDP {
						want = state
					}
					if live := read[backendRow](tables.store.backends, b.id).State; live != want {
						t.Errorf("%s: %s of %s is %s, want %s", when, wire(&b.row).addrPort(), p.name(), bpf.StateName(live), bpf.StateName(want))
					}
				}
			}
		}
		if drifts, err := tables.Audit(false); err != nil || len(drifts) > 0 {
			t.Errorf("%s: audit: %v, %v", when, drifts, err)
		}
	}
	apply(lb.TCP, lb.Active)
	apply(lb.UDP, lb.Active)
	want("without a tunnel", stateActive, stateActive)
	configure("n1")
	want("no node has the address", stateActive, stateActive)
	configure("n1", "n2")
	want("a node has it", stateQuiet, stateActive)
	apply(lb.UDP, lb.Draining)
	apply(lb.TCP, lb.Draining)
	want("published again", stateQuiet, stateDraining)
	var err error
	if tables, err = open(tables.store); err != nil {
		t.Fatal(err)
	}
	configure("n1", "n2")
	apply(lb.UDP, lb.Draining)
	apply(lb.TCP, lb.Draining)
	want("after a restart", stateQuiet, stateDraining)
	configure("n1")
	want("the node is gone", stateDraining, stateDraining)
	configure("n1", "n2")
	configure()
	want("the tunnel is off", stateDraining, stateDraining)
}

// What a change says that could not be prepared is forgotten: a backend that is a tunnel no more is what the decision in force says.
func TestARefusedChangeLeavesNoStateOfABackendThatIsATunnel(t *testing.T) {
	tables := NewFake(bpf.Sizes{Frontends: 16})
	key := lb.PortKey{Name: "dns", Protocol: lb.UDP}
	b := lb.BackendKey{Port: key, Address: netip.MustParseAddrPort("192.0.2.2:6091")}
	apply := func(state lb.State, frontends int) error {
		side := lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster, Tiers: []lb.Tier{{Name: lb.TierCluster, Backends: []lb.BackendKey{b}}}}
		d := lb.Decision{Service: lb.ServiceName{Namespace: "default", Name: "dns"}, Backends: []lb.Backend{{Key: b, State: state, Near: lb.TierCluster, Lists: []lb.List{lb.ListCluster}}}}
		for i := range frontends {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), 53)
			d.Frontends = append(d.Frontends, lb.Frontend{Key: lb.FrontendKey{Address: at, Protocol: lb.UDP}, Kind: lb.KindClusterIP,
				Port: lb.PortName{Service: d.Service, Port: key.Name, Protocol: lb.UDP}, Internal: side, External: side})
		}
		_, err := tables.Apply(d)
		return err
	}
	if err := tables.Configure(tunnelConfig("n1", "n2")); err != nil {
		t.Fatal(err)
	}
	if err := apply(lb.Active, 1); err != nil {
		t.Fatal(err)
	}
	if err := apply(lb.Quiet, 20); err == nil {
		t.Fatal("20 frontends fit a table of 16")
	}
	if err := tables.Configure(Config{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range tables.services {
		if got := s.ports[0].backends[0].row.State; bpf.StateName(got) != "active" {
			t.Errorf("the backend is %s", bpf.StateName(got))
		}
	}
}
