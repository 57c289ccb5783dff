// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// Of many packets of a client off the node some stay here with its address and some leave with this node's: each backend has what it sees, and the
// source of the answer is the first packet's, as its verdict is.
func TestEachBackendOfManyPacketsHasTheSourceThatItSees(t *testing.T) {
	privileged.Require(t)
	const web = "10.96.0.10"
	own := map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2001:db8::1")}
	input := lb.Input{Service: lb.Service{
		Name: lb.ServiceName{Namespace: "default", Name: "web"}, Type: lb.TypeClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr(web), netip.MustParseAddr("fd00:10:96::a")}, Internal: lb.PolicyCluster, External: lb.PolicyCluster,
		Ports: []lb.ServicePort{{Name: "t", Protocol: lb.TCP, Port: 80}, {Name: "u", Protocol: lb.UDP, Port: 80}},
	}}
	node := lb.Node{Name: "n1", Addresses: []netip.Addr{own[true], own[false]}}
	for name, addresses := range map[string][]string{"n1": {"10.244.1.1:80", "[fd00:10:244:1::1]:80"}, "n2": {"10.244.2.1:80", "[fd00:10:244:2::1]:80"}} {
		for _, address := range addresses {
			for _, port := range input.Service.Ports {
				input.Endpoints = append(input.Endpoints, lb.Endpoint{
					Port: lb.PortKey{Name: port.Name, Protocol: port.Protocol}, Address: netip.MustParseAddrPort(address), Ready: true, Serving: true, Slice: "web-1", Node: name,
				})
			}
		}
	}
	config := maps.Config{SNATPorts: maps.DefaultSNATPorts()}
	tracer, problems, err := Offline([]lb.Decision{decide.Decide(input, node)}, config.WithNode(node), FromNetwork)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	defer tracer.Close()
	for _, to := range input.Service.ClusterIPs {
		for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
			kept := 0
			for i := range byte(16) {
				client := netip.AddrFrom4([4]byte{203, 0, 113, i})
				if to.Is6() {
					client = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: i + 2})
				}
				request := Request{From: FromNetwork, Source: netip.AddrPortFrom(client, 0), To: netip.AddrPortFrom(to, 80), Protocol: protocol}
				first, err := tracer.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				request.Count = 20
				answer, err := tracer.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				if answer.Source == nil || *answer.Source != *first.Source || answer.SNAT != first.SNAT {
					t.Errorf("%v of %v: source %v, snat %v; of the first packet alone %v, %v", protocol, client, answer.Source, answer.SNAT, first.Source, first.SNAT)
				}
				if *first.Source == client {
					kept++
				}
				if len(answer.Backends) != 2 {
					t.Errorf("%v of %v: backends %+v: want both", protocol, client, answer.Backends)
				}
				for _, b := range answer.Backends {
					sees, away := client, b.Tier != "node"
					if away {
						sees = own[to.Is4()]
					}
					if b.Source != sees || (b.Way != nil) != away {
						t.Errorf("%v of %v: backend %v sees %v by the way %v: want %v", protocol, client, b.Address, b.Source, b.Way, sees)
					}
				}
			}
			if kept == 0 || kept == 16 {
				t.Errorf("%v to %v: of 16 first packets %d stay here: the test does not test what it should", protocol, to, kept)
			}
		}
	}
}
