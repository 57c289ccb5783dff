// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The marks of a slice that matter (service-semantics.md 1.0, 1.2).
const (
	labelServiceName  = discoveryv1.LabelServiceName
	labelHeadless     = corev1.IsHeadlessService
	annotationTrigger = corev1.EndpointsLastChangeTriggerTime
)

// slice is an EndpointSlice after the converter. The Service it belongs to is the one its label names, in its own
// namespace; owner references say nothing (requirement A13).
type slice struct {
	name      string
	owner     lb.ServiceName // Name is empty when the label is missing
	ports     []slicePort
	endpoints []endpoint
	problems  []lb.Problem
	trigger   time.Time    // zero if the annotation is absent or no time
	nodes     []string     // names of Nodes that can fill in a zone or region here, sorted
	nodeless  []netip.Addr // addresses of endpoints without a node, which a Node may claim (requirement B16)
}

type slicePort struct {
	key    lb.PortKey
	number uint16
}

// endpoint is an address of a slice, for all of its ports.
type endpoint struct {
	address                     netip.Addr
	ready, serving, terminating bool
	node, zone, region          string
	nodeHints, zoneHints        []string
}

// convertSlice validates a slice as the API server does and reduces it to what decides. What is wrong in one endpoint costs
// that endpoint and is a problem; what is wrong elsewhere refuses the slice.
func convertSlice(in *discoveryv1.EndpointSlice) (object, *ObjectError) {
	o := object{key: objectKey{kindSlice, in.Namespace, in.Name}}
	if err := refused(o.key, validateSlice(in)); err != nil {
		return o, err
	}
	if _, headless := in.Labels[labelHeadless]; headless {
		return o, nil
	}
	out := &slice{
		name:    in.Name,
		owner:   lb.ServiceName{Namespace: in.Namespace, Name: in.Labels[labelServiceName]},
		trigger: triggerTime(in.Annotations[annotationTrigger]),
	}
	o.slice = out
	if out.owner.Name == "" {
		out.problem(o.key, field.Required(field.NewPath("metadata", "labels").Key(labelServiceName), "no Service owns this slice"))
	}
	if in.AddressType == discoveryv1.AddressTypeFQDN {
		out.problems = append(out.problems, lb.Problem{Object: o.key.String(), Field: "addressType",
			Message: "FQDN endpoints cannot be load balanced"})
		return o, nil
	}
	out.addPorts(o.key, in.Ports)
	for i := range in.Endpoints {
		out.addEndpoint(o.key, in.AddressType, &in.Endpoints[i], field.NewPath("endpoints").Index(i))
	}
	out.index()
	return o, nil
}

func (s *slice) problem(key objectKey, e *field.Error) {
	s.problems = append(s.problems, problem(key, e))
}

// addPorts leaves out ports without a number: "all ports" is a meaning that nobody implements, kube-proxy included.
func (s *slice) addPorts(key objectKey, ports []discoveryv1.EndpointPort) {
	for i, p := range ports {
		if deref(p.Port) == 0 {
			s.problem(key, field.Required(field.NewPath("ports").Index(i).Child("port"), "a port without a number is not served"))
			continue
		}
		protocol, _ := lb.ParseProtocol(string(protocolOf(p))) // validated
		s.ports = append(s.ports, slicePort{lb.PortKey{Name: deref(p.Name), Protocol: protocol}, uint16(*p.Port)})
	}
}

// protocolOf is the port's protocol with the API server's default.
func protocolOf(p discoveryv1.EndpointPort) corev1.Protocol {
	return cmp.Or(deref(p.Protocol), corev1.ProtocolTCP)
}

// addEndpoint takes addresses[0] only, as the API says all are the same endpoint and kube-proxy reads no other.
func (s *slice) addEndpoint(key objectKey, family discoveryv1.AddressType, in *discoveryv1.Endpoint, path *field.Path) {
	if errs := validateEndpoint(in, family, path); len(errs) > 0 {
		s.problem(key, errs[0])
		return
	}
	address, _ := parseAddr(in.Addresses[0])
	e := endpoint{
		address:     address,
		ready:       in.Conditions.Ready == nil || *in.Conditions.Ready,
		serving:     in.Conditions.Serving == nil || *in.Conditions.Serving,
		terminating: deref(in.Conditions.Terminating),
		node:        cmp.Or(deref(in.NodeName), in.DeprecatedTopology[corev1.LabelHostname]),
		zone:        s.zone(key, in, path),
		region:      in.DeprecatedTopology[corev1.LabelTopologyRegion],
	}
	if in.Hints != nil {
		e.nodeHints = hintNames(in.Hints.ForNodes, func(h discoveryv1.ForNode) string { return h.Name })
		e.zoneHints = hintNames(in.Hints.ForZones, func(h discoveryv1.ForZone) string { return h.Name })
	}
	s.endpoints = append(s.endpoints, e)
}

// zone is the endpoint's own, else that of the topology map (requirement A11). One that cannot be the value of a Node's
// label is as good as unknown.
func (s *slice) zone(key objectKey, in *discoveryv1.Endpoint, path *field.Path) string {
	zone := cmp.Or(deref(in.Zone), in.DeprecatedTopology[corev1.LabelTopologyZone])
	if errs := validateLabelValue(path.Child("zone"), zone); len(errs) > 0 {
		s.problem(key, errs[0])
		return ""
	}
	return zone
}

func hintNames[T any](hints []T, name func(T) string) []string {
	var out []string
	for _, hint := range hints {
		out = append(out, name(hint))
	}
	slices.Sort(out)
	return out
}

// index notes which changes of Nodes concern the slice.
func (s *slice) index() {
	for _, e := range s.endpoints {
		switch {
		case e.node == "":
			s.nodeless = append(s.nodeless, e.address)
		case e.zone == "" || e.region == "":
			s.nodes = append(s.nodes, e.node)
		}
	}
	slices.Sort(s.nodes)
	s.nodes = slices.Clip(slices.Compact(s.nodes))
}

// triggerTime reads the annotation in the API's format (RFC 3339 with fractions).
func triggerTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
