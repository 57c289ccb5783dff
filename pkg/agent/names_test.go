// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A question that is handed on must not come back, and not every node may ask the same server first.
func TestOtherNamesAreAskedOfTheEndpointsOfTheClustersDNS(t *testing.T) {
	in := lb.Input{
		Service: lb.Service{
			Name: lb.ServiceName{Namespace: "kube-system", Name: "kube-dns"}, Type: lb.TypeClusterIP,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []lb.ServicePort{{Name: "dns", Protocol: lb.UDP, Port: 53}},
			Internal: lb.PolicyCluster, External: lb.PolicyCluster,
		},
		Responders: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:10053")},
	}
	var want []netip.AddrPort
	for _, text := range []string{"10.244.1.2:53", "10.244.2.2:53", "10.244.3.2:53"} {
		at := netip.MustParseAddrPort(text)
		want = append(want, at)
		in.Endpoints = append(in.Endpoints, lb.Endpoint{Port: lb.PortKey{Name: "dns", Protocol: lb.UDP}, Address: at, Ready: true, Serving: true, Node: "n2"})
	}
	d := decide.Serve(in, lb.Node{Name: "n1"})
	asked := map[netip.AddrPort]bool{}
	for range 1000 {
		got := serversOf(&d)
		asked[got[0]] = true
		slices.SortFunc(got, netip.AddrPort.Compare)
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v in any order", got, want)
		}
	}
	if len(asked) != len(want) {
		t.Errorf("asked first: %v", asked)
	}
}

// --dns-upstream=169.254.20.10 is NodeLocal DNSCache: it must be asked, or the agent must say that it cannot be.
func TestAnUpstreamIsNoAddressWhereTheAgentIsAsked(t *testing.T) {
	o := DefaultNameOptions()
	o.On = true
	o.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("[::ffff:169.254.20.10]:53")}
	if err := o.check(); err == nil {
		t.Error("an upstream was taken that is never asked")
	}
	o.LeaveUpstreams()
	if err := o.check(); err != nil || len(o.AlsoAt) > 0 {
		t.Errorf("%v, asked at %v", err, o.AlsoAt)
	}
	o = DefaultNameOptions()
	o.On = true
	o.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("169.254.20.10:54"), netip.MustParseAddrPort("192.0.2.53:53")}
	o.LeaveUpstreams()
	if err := o.check(); err != nil || !slices.Equal(o.AlsoAt, DefaultNameOptions().AlsoAt) {
		t.Errorf("%v, asked at %v", err, o.AlsoAt)
	}
}
