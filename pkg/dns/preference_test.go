// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	wire "github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// nearness are the topology keys that say of packets what `nearlb.io/dns: prefer` says of names.
var nearness = []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region", lb.AnyTopology}

// A client that looks a name up with `prefer` gets the very endpoints that a connection to a Service with the same preference may reach,
// port by port.
func TestNamesPreferTheEndpointsThatPacketsDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		place := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label) }
		node := lb.Node{Name: "n1", Zone: place("node's zone", "a", "b", ""), Region: place("node's region", "r", "s", "")}
		node.Labels = lb.NewLabels(map[string]string{nearness[0]: node.Name})
		named := &lb.NamedService{Name: lb.ServiceName{Namespace: "prod", Name: "db"}, Headless: true, Selection: lb.NamesPrefer}
		in := lb.Input{Service: lb.Service{
			Name: named.Name, Type: lb.TypeClusterIP, ClusterIPs: addrs("10.96.0.1", "fd00:96::1"),
			Ports:    []lb.ServicePort{{Name: "sql", Protocol: lb.TCP, Port: 5432}, {Name: "admin", Protocol: lb.TCP, Port: 8080}},
			Internal: lb.PolicyCluster, External: lb.PolicyCluster, TopologyKeys: nearness,
		}}
		for i := range rapid.IntRange(0, 8).Draw(t, "endpoints") {
			isReady := place("ready", "yes", "yes", "no") == "yes"
			e := lb.NamedEndpoint{Place: lb.Place{Node: place("node", "n1", "n2", "n3", ""), Zone: place("zone", "a", "b", ""), Region: place("region", "r", "s", "")}}
			if isReady {
				e.Is = lb.IsReady
			}
			e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)})}
			if place("family", "4", "6") == "6" {
				e.Addresses = []netip.Addr{netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)})}
			}
			var ports []lb.NamedPort
			for _, p := range in.Service.Ports {
				if place("has port", "yes", "no") == "no" {
					continue
				}
				ports = append(ports, tcp(p.Name, p.Port))
				endpoint := lb.Endpoint{Port: lb.PortKey{Name: p.Name, Protocol: lb.TCP}, Address: netip.AddrPortFrom(e.Addresses[0], p.Port), Ready: isReady, Serving: isReady,
					Node: e.Node, Zone: e.Zone, Region: e.Region}
				if e.Node != "" {
					endpoint.Labels = lb.NewLabels(map[string]string{nearness[0]: e.Node})
				}
				in.Endpoints = append(in.Endpoints, endpoint)
			}
			named.Slices = append(named.Slices, lb.NewNamedSlice("", ports, e))
		}
		view := dns.NewView(dns.ViewOptions{Node: node})
		view.Set(named)
		view.Synced()
		responder := dns.NewResponder(view, dns.Options{Zones: []string{"cluster.local"}})
		for _, f := range decide.Serve(in, node).Frontends {
			var packets []netip.Addr
			for _, tier := range f.Internal.Tiers {
				for _, b := range tier.Backends {
					packets = append(packets, b.Address.Addr())
				}
			}
			qtype := "AAAA"
			if f.Key.Address.Addr().Is4() {
				qtype = "A"
			}
			slices.SortFunc(packets, netip.Addr.Compare)
			name := "_" + f.Port.Port + "._tcp.db.prod.svc.cluster.local"
			got := addressesOf(responder.Serve(context.Background(), query(name, qtype), dns.Client{TCP: true}).Answer)
			glue := addressesOf(responder.Serve(context.Background(), query(name, "SRV"), dns.Client{TCP: true}).Extra)
			glue = slices.DeleteFunc(glue, func(a netip.Addr) bool { return a.Is4() != f.Key.Address.Addr().Is4() })
			if !slices.Equal(got, packets) || !slices.Equal(glue, packets) {
				t.Fatalf("%s %s: %v, SRV: %v, packets go to %v", name, qtype, got, glue, packets)
			}
		}
	})
}

// addressesOf are those of records, in order.
func addressesOf(records []wire.RR) (all []netip.Addr) {
	for _, rr := range records {
		var ip netip.Addr
		switch rr := rr.(type) {
		case *wire.A:
			ip, _ = netip.AddrFromSlice(rr.A.To4())
		case *wire.AAAA:
			ip, _ = netip.AddrFromSlice(rr.AAAA)
		}
		if ip.IsValid() {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
