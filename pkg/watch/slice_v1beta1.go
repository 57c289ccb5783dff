// SPDX-License-Identifier: Apache-2.0

package watch

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
)

// fromV1beta1 is the same slice in discovery.k8s.io/v1. The topology map of an endpoint stays a map: it gives the node and
// the zone where the fields of their own are not set (requirement A3).
func fromV1beta1(in *discoveryv1beta1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  in.ObjectMeta,
		AddressType: discoveryv1.AddressType(in.AddressType),
	}
	for _, p := range in.Ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, AppProtocol: p.AppProtocol})
	}
	for _, e := range in.Endpoints {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: e.Addresses,
			Conditions: discoveryv1.EndpointConditions{
				Ready: e.Conditions.Ready, Serving: e.Conditions.Serving, Terminating: e.Conditions.Terminating,
			},
			Hostname:           e.Hostname,
			TargetRef:          e.TargetRef,
			DeprecatedTopology: e.Topology,
			NodeName:           e.NodeName,
			Hints:              hintsFromV1beta1(e.Hints),
		})
	}
	return out
}

func hintsFromV1beta1(in *discoveryv1beta1.EndpointHints) *discoveryv1.EndpointHints {
	if in == nil {
		return nil
	}
	out := &discoveryv1.EndpointHints{}
	for _, zone := range in.ForZones {
		out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: zone.Name})
	}
	for _, node := range in.ForNodes {
		out.ForNodes = append(out.ForNodes, discoveryv1.ForNode{Name: node.Name})
	}
	return out
}
