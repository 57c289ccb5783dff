// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// endpointDraw is how a world's endpoints are.
type endpointDraw struct {
	style  string
	copies bool
	count  int // endpoints so far
}

// anySlice draws slice number i, of a Service or left over.
func (d *endpointDraw) anySlice(t *rapid.T, i int, owner *corev1.Service) *discoveryv1.EndpointSlice {
	s := Slice(fmt.Sprintf("slice-%d", i), owner)
	s.AddressType = pick(t, "address type", discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	switch number(t, "label", 48) {
	case 23:
		s.Labels = nil
	case 22:
		s.Labels[discoveryv1.LabelServiceName] = "nobody"
	case 21:
		s.Labels[corev1.IsHeadlessService] = ""
	case 20:
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	s.Ports = anySlicePorts(t, owner)
	for range number(t, "endpoints", 6) {
		s.Endpoints = append(s.Endpoints, d.anyEndpoint(t, s.AddressType))
	}
	return s
}

// Slice is one of a Service, with nothing in it.
func Slice(name string, owner *corev1.Service) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: owner.Name,
		}},
	}
}

// anySlicePorts draws ports of the Service and some that only look like them.
func anySlicePorts(t *rapid.T, owner *corev1.Service) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for _, of := range owner.Spec.Ports {
		if !often(t, "slice has the port") {
			continue
		}
		p := discoveryv1.EndpointPort{Name: new(of.Name), Port: new(pick(t, "number", int32(8080), 8080, 9080))}
		protocol := of.Protocol
		if seldom(t, "other protocol") {
			protocol = anyProtocol(t)
		}
		if protocol != "" {
			p.Protocol = &protocol
		}
		if of.Name == "" && pick(t, "name left out", true, false) {
			p.Name = nil
		}
		switch number(t, "odd port", 24) {
		case 23:
			p.Port = nil
		case 22:
			p.Port = new(int32(0))
		case 21:
			p.Name = new("other-" + of.Name + "x")
		}
		out = append(out, p)
	}
	return out
}

func (d *endpointDraw) anyEndpoint(t *rapid.T, family discoveryv1.AddressType) discoveryv1.Endpoint {
	d.count++
	e := discoveryv1.Endpoint{
		Addresses:  []string{d.anyAddress(t, family)},
		Conditions: d.anyConditions(t),
		Hints:      d.anyHints(t),
	}
	if seldom(t, "second address") {
		e.Addresses = append(e.Addresses, d.anyAddress(t, family))
	}
	if node := pick(t, "node", "", Self, Self, "n2", "n3", "n4"); node != "" {
		e.NodeName = &node
	}
	if zone := pick(t, "zone", "", "", "a", "b"); zone != "" {
		e.Zone = &zone
	}
	return e
}

// anyAddress gives each endpoint an address of its own unless copies are wanted.
func (d *endpointDraw) anyAddress(t *rapid.T, family discoveryv1.AddressType) string {
	last := d.count
	if d.copies {
		last = 1 + number(t, "address", 4)
	}
	switch {
	case family == discoveryv1.AddressTypeFQDN:
		return "pod.example.com"
	case family == discoveryv1.AddressTypeIPv6:
		return pick(t, "spelling", fmt.Sprintf("2001:db8:1::%d", last), fmt.Sprintf("2001:DB8:1:0::%d", last))
	case d.copies && seldom(t, "on the host's network"):
		return fmt.Sprintf("192.0.2.%d", 1+number(t, "host", 3))
	case seldom(t, "legacy spelling"):
		return fmt.Sprintf("010.01.0.%03d", last)
	}
	return fmt.Sprintf("10.1.0.%d", last)
}

func (d *endpointDraw) anyConditions(t *rapid.T) discoveryv1.EndpointConditions {
	maybe := func(what string) *bool { return pick(t, what, nil, new(true), new(false)) }
	switch d.style {
	case "ready", "hinted":
		if often(t, "live") {
			return discoveryv1.EndpointConditions{Ready: new(true)}
		}
	case "leaving":
		return discoveryv1.EndpointConditions{Ready: new(false), Serving: maybe("serving"), Terminating: new(often(t, "terminating"))}
	}
	return discoveryv1.EndpointConditions{Ready: maybe("ready"), Serving: maybe("serving"), Terminating: maybe("terminating")}
}

func (d *endpointDraw) anyHints(t *rapid.T) *discoveryv1.EndpointHints {
	if d.style != "hinted" && pick(t, "no hints", true, false, false) {
		return nil
	}
	var out discoveryv1.EndpointHints
	if often(t, "zone hints") || d.style == "hinted" {
		for _, zone := range pick(t, "zones", []string{"a"}, []string{"a"}, []string{"b"}, []string{"a", "b"}, []string{"c"}, []string{""}, nil) {
			out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: zone})
		}
	}
	if pick(t, "node hints", true, false) {
		for _, node := range pick(t, "nodes", []string{Self}, []string{"n2"}, []string{"n3"}, []string{Self, "n3"}) {
			out.ForNodes = append(out.ForNodes, discoveryv1.ForNode{Name: node})
		}
	}
	return &out
}
