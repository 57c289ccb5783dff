// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	utilnet "k8s.io/utils/net"

	"github.com/nearlb/nearlb/tests/worlds"
)

// difference is one that is meant: what kube-proxy has to be told so that it answers as nearlb does, and a slice that shows it.
// Those that need a history (a slice whose label changes its Service) or packets (masquerading, hairpin) cannot be seen here.
type difference struct {
	name    string
	apply   func(world) world
	example []discoveryv1.Endpoint
}

var differences = []difference{
	{
		// docs/differences.md: "an endpoint without nodeName whose address a Node has: on no node | on that node".
		// So default/kubernetes, whose endpoints have no nodeName, obeys traffic policies and topology.
		"an endpoint without a node whose address a Node has is on that Node", placed,
		[]discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	},
	{
		// docs/differences.md: "the same address in several slices with different conditions: whichever comes last | the best condition, in any order".
		"of copies of an endpoint the best counts, whatever the order", settled,
		[]discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, NodeName: new(worlds.Self), Conditions: draining()},
			{Addresses: []string{"10.1.0.1"}, NodeName: new(worlds.Self), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	},
	{
		// docs/differences.md: "a hint for the zone without a name: for nodes without a zone | for no node".
		"no node is in the zone without a name", named,
		[]discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, NodeName: new(worlds.Self), Hints: forZone("")},
			{Addresses: []string{"10.1.0.2"}, NodeName: new(worlds.Self), Hints: forZone("a")},
		},
	},
}

func (w world) withDifferences() world {
	for _, d := range differences {
		w = d.apply(w)
	}
	return w
}

func TestEveryDifferenceIsThereStill(t *testing.T) {
	for _, d := range differences {
		t.Run(d.name, func(t *testing.T) {
			w := exampleWorld(d.example)
			got, err := askNearlb(w)
			if err != nil {
				t.Fatal(err)
			}
			if cmp.Equal(askKubeProxy(w), got) {
				t.Error("kube-proxy and nearlb give the same answers: this is no difference any more")
			}
			if diff := cmp.Diff(askKubeProxy(d.apply(w)), got); diff != "" {
				t.Errorf("kube-proxy (-) and nearlb (+) differ in another way:\n%s", diff)
			}
		})
	}
}

func exampleWorld(endpoints []discoveryv1.Endpoint) world {
	service := worlds.Service("web", corev1.ServiceTypeClusterIP)
	service.Spec.ClusterIP, service.Spec.Ports = "10.96.0.10", []corev1.ServicePort{{Port: 80}}
	service.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	service.Spec.ExternalIPs = []string{"198.51.100.7"}
	slice := worlds.Slice("web-1", service)
	slice.AddressType, slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Port: new(int32(8080))}}
	slice.Endpoints = endpoints
	own := worlds.Node(worlds.Self)
	own.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	return world{worlds.World{Services: []*corev1.Service{service}, Slices: []*discoveryv1.EndpointSlice{slice}, Nodes: []*corev1.Node{own}}}
}

func draining() discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)}
}

func forZone(name string) *discoveryv1.EndpointHints {
	return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
}

// placed gives a nodeName to endpoints that have none and whose address is a Node's; of several Nodes the first by name.
func placed(w world) world {
	holders := map[string]string{}
	for _, n := range w.Nodes {
		for _, a := range n.Status.Addresses {
			if holder, ok := holders[a.Address]; a.Type != corev1.NodeHostName && (!ok || n.Name < holder) {
				holders[a.Address] = n.Name
			}
		}
	}
	return w.withEndpoints(func(e *discoveryv1.Endpoint) {
		if holder, ok := holders[spelled(e.Addresses[0])]; ok && e.NodeName == nil {
			e.NodeName = &holder
		}
	})
}

// named puts another zone into hints that have no name: one that no node is in.
func named(w world) world {
	return w.withEndpoints(func(e *discoveryv1.Endpoint) {
		if e.Hints == nil {
			return
		}
		for i := range e.Hints.ForZones {
			if e.Hints.ForZones[i].Name == "" {
				e.Hints.ForZones[i].Name = "nowhere"
			}
		}
	})
}

// withEndpoints is the world with every endpoint changed.
func (w world) withEndpoints(change func(*discoveryv1.Endpoint)) world {
	old := w.Slices
	w.Slices = nil
	for _, s := range old {
		s = s.DeepCopy()
		for i := range s.Endpoints {
			change(&s.Endpoints[i])
		}
		w.Slices = append(w.Slices, s)
	}
	return w
}

func spelled(address string) string {
	if ip := utilnet.ParseIPSloppy(address); ip != nil {
		return ip.String()
	}
	return address
}

func hintNames(h *discoveryv1.EndpointHints) (nodes, zones []string) {
	if h == nil {
		return nil, nil
	}
	for _, n := range h.ForNodes {
		nodes = append(nodes, n.Name)
	}
	for _, z := range h.ForZones {
		zones = append(zones, z.Name)
	}
	slices.Sort(nodes)
	slices.Sort(zones)
	return nodes, zones
}
