// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

func TestExternalIPsOfNodesAndOfClusterIPRangesAreKnownAsSuch(t *testing.T) {
	const service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, " +
		"spec: {clusterIP: 10.96.0.10, externalIPs: [192.0.2.2, 192.0.2.9, 10.96.0.1, 198.51.100.7], ports: [{port: 80}]}}"
	source := load(t, NodeConfig{Name: "n1", IPs: ips("192.0.2.9")}, service, nodeObject("n2", "", "InternalIP 192.0.2.2"),
		"{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}")
	in, _ := source.Input(lb.ServiceName{Namespace: "default", Name: "web"})
	same(t, "taken", in.Taken, lb.Taken{
		netip.MustParseAddr("192.0.2.2"): "the address of Node n2",
		netip.MustParseAddr("192.0.2.9"): "the address of Node n1",
		netip.MustParseAddr("10.96.0.1"): "in 10.96.0.0/16, a range of ClusterIPs",
	})
}

func TestANodeThatGetsAnExternalIPMarksItsService(t *testing.T) {
	s := newStore(NodeConfig{Name: "n1"})
	name := lb.ServiceName{Namespace: "default", Name: "web"}
	address := netip.MustParseAddr("192.0.2.2")
	var c changes
	s.apply([]object{
		{key: objectKey{kindService, "default", "web"}, service: &service{name: name, rest: &serviceMore{Service: lb.Service{ExternalIPs: []netip.Addr{address}}}}},
		{key: objectKey{kindService, "default", "other"}, service: &service{name: lb.ServiceName{Namespace: "default", Name: "other"}}},
	}, nil, &c)
	for _, now := range []*node{{addresses: []netip.Addr{address}}, {}, nil} {
		var c changes
		before := len(s.taken(s.services[name]))
		s.apply([]object{{key: objectKey{kindNode, "", "n2"}, node: now}}, nil, &c)
		if after := len(s.taken(s.services[name])); (before != after) != c.services[name] || c.services[lb.ServiceName{Namespace: "default", Name: "other"}] {
			t.Errorf("%+v: %d addresses are taken, before %d, marked are %v", now, after, before, c.services)
		}
	}
}
