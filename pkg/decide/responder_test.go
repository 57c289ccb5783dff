// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// clusterDNS is kube-dns with as many endpoints, on other nodes.
func clusterDNS(endpoints ...string) lb.Input {
	in := lb.Input{Service: lb.Service{
		Name: lb.ServiceName{Namespace: "kube-system", Name: "kube-dns"}, Type: lb.TypeClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")},
		Ports: []lb.ServicePort{{Name: "dns", Protocol: lb.UDP, Port: 53}, {Name: "dns-tcp", Protocol: lb.TCP, Port: 53},
			{Name: "metrics", Protocol: lb.TCP, Port: 9153}},
		Internal: lb.PolicyCluster, External: lb.PolicyCluster,
	}}
	for _, e := range endpoints {
		for _, p := range in.Service.Ports {
			in.Endpoints = append(in.Endpoints, lb.Endpoint{Port: lb.PortKey{Name: p.Name, Protocol: p.Protocol},
				Address: netip.AddrPortFrom(netip.MustParseAddr(e), p.Port), Ready: true, Serving: true, Node: "n2"})
		}
	}
	in.Responders = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:10053"), netip.MustParseAddrPort("[2001:db8::1]:10053")}
	return in
}

func TestTheResponderComesBeforeTheEndpointsOfItsFamily(t *testing.T) {
	d := Serve(clusterDNS("10.244.2.2", "fd00:244::2"), lb.Node{Name: "n1", Zone: "a"})
	for _, f := range d.Frontends {
		var got []string
		for _, tier := range f.Internal.Tiers {
			for _, b := range tier.Backends {
				got = append(got, b.Address.String())
			}
		}
		want := map[netip.AddrPort][]string{
			netip.MustParseAddrPort("10.96.0.10:53"):     {"192.0.2.1:10053", "10.244.2.2:53"},
			netip.MustParseAddrPort("[fd00:96::a]:53"):   {"[2001:db8::1]:10053", "[fd00:244::2]:53"},
			netip.MustParseAddrPort("10.96.0.10:9153"):   {"10.244.2.2:9153"},
			netip.MustParseAddrPort("[fd00:96::a]:9153"): {"[fd00:244::2]:9153"},
		}[f.Key.Address]
		if !slices.Equal(got, want) || len(f.External.Tiers) != 1 || len(f.External.Tiers[0].Backends) != 1 {
			t.Errorf("%v: tiers %v, want %v; clients off the node %+v", f.Key, got, want, f.External)
		}
	}
	states := map[lb.State]int{}
	for _, b := range d.Backends {
		states[b.State]++
		if b.State == lb.Responder && (b.Near != lb.TierNode || !slices.Equal(b.Lists, []lb.List{lb.ListCluster})) {
			t.Errorf("got %+v", b)
		}
	}
	if states[lb.Responder] != 4 || states[lb.Active] != 6 {
		t.Errorf("states %v", states)
	}
}

func TestTheResponderAnswersWhereThereAreNoEndpoints(t *testing.T) {
	for _, f := range Serve(clusterDNS(), lb.Node{Name: "n1"}).Frontends {
		want := map[bool]lb.Action{true: lb.Balance, false: lb.Reject}[f.Key.Address.Port() == 53]
		if f.Internal.Action != want || f.External.Action != lb.Reject {
			t.Errorf("%v: %s, for clients off the node %s", f.Key, f.Internal.Action, f.External.Action)
		}
	}
}

// CoreDNS on the host network, on the port that the responder has: it is an endpoint like any other.
func TestAnEndpointIsNoResponder(t *testing.T) {
	in := clusterDNS("10.244.2.2")
	in.Responders = []netip.AddrPort{netip.MustParseAddrPort("10.244.2.2:53")}
	for _, b := range Serve(in, lb.Node{Name: "n1"}).Backends {
		if b.State != lb.Active {
			t.Errorf("got %+v", b)
		}
	}
}

// NodeLocal DNSCache's address, and one of the other family.
func TestNamesAreAskedForAtFurtherAddressesAsAtTheClusterIPs(t *testing.T) {
	in := clusterDNS("10.244.2.2", "fd00:244::2")
	plain := Serve(in, lb.Node{Name: "n1"})
	in.AlsoAt = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10"), in.Service.ClusterIPs[0]}
	d := Serve(in, lb.Node{Name: "n1", HostIPs: in.AlsoAt[:1], Addresses: in.AlsoAt[1:2]})
	if len(d.Frontends) != len(plain.Frontends)+4 || !slices.EqualFunc(d.Backends, plain.Backends, func(a, b lb.Backend) bool { return a.Key == b.Key && slices.Equal(a.Lists, b.Lists) }) {
		t.Fatalf("%d frontends, %v", len(d.Frontends), d.Backends)
	}
	for _, f := range d.Frontends {
		if !slices.Contains(in.AlsoAt[:2], f.Key.Address.Addr()) {
			continue
		}
		at := slices.IndexFunc(d.Frontends, func(o lb.Frontend) bool {
			return o.Kind == lb.KindClusterIP && o.Key.Protocol == f.Key.Protocol && o.Key.Address.Port() == 53 && o.Key.Address.Addr().Is4() == f.Key.Address.Addr().Is4()
		})
		sameTiers := slices.EqualFunc(f.Internal.Tiers, d.Frontends[at].Internal.Tiers, func(a, b lb.Tier) bool { return a.Name == b.Name && slices.Equal(a.Backends, b.Backends) })
		if !sameTiers || f.Key.Address.Port() != 53 || f.Kind != lb.KindExternalIP || !f.OnHost || f.External.Action != lb.Reject {
			t.Errorf("got %+v", f)
		}
	}
	in.Service.ClusterIPs = in.Service.ClusterIPs[1:]
	for _, f := range Serve(in, lb.Node{Name: "n1"}).Frontends {
		if f.Key.Address.Addr() == in.AlsoAt[0] {
			t.Errorf("the Service is of the other family: %+v", f)
		}
	}
}
