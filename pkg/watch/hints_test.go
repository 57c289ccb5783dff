// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A hint for the zone without a name is a hint all the same: its endpoint is for somebody else.
func TestEveryHintIsKeptTheOneWithoutANameToo(t *testing.T) {
	for _, names := range [][]string{nil, {""}, {"a"}, {"", "a"}, {"a", "b"}} {
		endpoint := discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Hints: &discoveryv1.EndpointHints{}}
		for _, name := range names {
			endpoint.Hints.ForZones = append(endpoint.Hints.ForZones, discoveryv1.ForZone{Name: name})
			endpoint.Hints.ForNodes = append(endpoint.Hints.ForNodes, discoveryv1.ForNode{Name: name})
		}
		o, err := convert(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "s", Namespace: "default", Labels: map[string]string{labelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{endpoint},
		})
		if err != nil {
			t.Fatal(err)
		}
		at := o.slice.endpoints[0].At.Value()
		if zones, nodes := split(at.ZoneHints), split(at.NodeHints); !slices.Equal(zones, names) || !slices.Equal(nodes, names) {
			t.Errorf("hints %q: zones %q, nodes %q", names, zones, nodes)
		}
	}
}
