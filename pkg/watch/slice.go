// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	handle "unique" // the package has a function of that name

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
	endpoints []lb.SliceEndpoint
	problems  []lb.Problem
	weight    lb.Weight
	pods      []podAt // of its endpoints; the store keeps those of this node alone
	trigger   int64   // nanoseconds since 1970; 0 if the annotation is absent or no time
}

type slicePort struct {
	key    lb.PortKey
	number uint16
}

// hintEnd ends names in a place. No name contains it.
const hintEnd = "\x00"

// convertSlice reduces a slice to what decides. What is wrong with one port or endpoint costs that one, and is a problem.
func convertSlice(in *discoveryv1.EndpointSlice) (object, *ObjectError) {
	return convertSliceOf(in, false)
}

// convertSliceOf checks endpoints by all rules of the API server, if strict.
func convertSliceOf(in *discoveryv1.EndpointSlice, strict bool) (object, *ObjectError) {
	o := object{key: objectKey{kindSlice, in.Namespace, in.Name}}
	if err := checkName(o.key, maxSubdomain, true); err != nil {
		return o, err
	}
	if _, headless := in.Labels[labelHeadless]; headless {
		return o, nil
	}
	out := &slice{
		name:    in.Name,
		owner:   lb.ServiceName{Namespace: shared(in.Namespace), Name: in.Labels[labelServiceName]},
		trigger: triggerTime(in.Annotations[annotationTrigger]),
	}
	o.slice = out
	c := sliceConverter{slice: out, key: o.key, family: in.AddressType, strict: strict}
	if owner := out.owner.Name; owner == "" || !isName(owner, maxLabel) {
		c.problem(field.Required(field.NewPath("metadata", "labels").Key(labelServiceName), "no Service owns this slice"))
		out.owner.Name = ""
	}
	w, err := weight(in)
	out.weight = w
	if err != nil {
		c.problem(err)
	}
	for _, wrong := range unknownAnnotations(in.Annotations, ofSlices, "an EndpointSlice") {
		c.problem(wrong)
	}
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		out.problems = append(out.problems, lb.Problem{Object: o.key.String(), Field: "addressType",
			Message: "FQDN endpoints cannot be load balanced"})
		return o, nil
	default:
		out.problems = append(out.problems, o.key.problem("addressType", string(in.AddressType), "is not known here: these endpoints are not served"))
		return o, nil
	}
	c.addPorts(in.Ports)
	out.endpoints = make([]lb.SliceEndpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		c.add(i, &in.Endpoints[i])
	}
	return o, nil
}

// shared is a text that many objects have, kept once.
func shared(text string) string { return handle.Make(text).Value() }

// sliceConverter fills in a slice.
type sliceConverter struct {
	*slice
	key    objectKey
	family discoveryv1.AddressType
	strict bool
}

func (c *sliceConverter) problem(e *field.Error) { c.problems = append(c.problems, problem(c.key, e)) }

// wrong notes a problem with a value in ports[i] or endpoints[i].
func (c *sliceConverter) wrong(list string, i int, child string, value any, rule string) {
	c.problems = append(c.problems, c.key.problem(fmt.Sprintf("%s[%d].%s", list, i, child), value, rule))
}

// addPorts leaves out ports without a number: "all ports" is a meaning that nobody implements, kube-proxy included.
func (c *sliceConverter) addPorts(ports []discoveryv1.EndpointPort) {
	c.ports = make([]slicePort, 0, len(ports))
	for i, p := range ports {
		name, number := deref(p.Name), deref(p.Port)
		protocol, err := lb.ParseProtocol(string(protocolOf(p)))
		key := lb.PortKey{Name: name, Protocol: protocol}
		switch {
		case number == 0:
			c.problem(field.Required(field.NewPath("ports").Index(i).Child("port"), "a port without a number is not served"))
		case number < 0 || number > 65535:
			c.wrong("ports", i, "port", number, "must be between 1 and 65535; this port is not served")
		case err != nil:
			c.wrong("ports", i, "protocol", string(protocolOf(p)), "is not known here; this port is not served")
		case name != "" && !isName(name, maxLabel):
			c.wrong("ports", i, "name", name, "is no name of a port; this port is not served")
		case slices.ContainsFunc(c.ports, func(other slicePort) bool { return other.key == key }):
			c.wrong("ports", i, "name", name, "another port of this slice has the same name and protocol; this one is not served")
		default:
			key.Name = shared(name)
			c.ports = append(c.ports, slicePort{key, uint16(number)})
		}
	}
}

// protocolOf is the port's protocol with the API server's default.
func protocolOf(p discoveryv1.EndpointPort) corev1.Protocol {
	return cmp.Or(deref(p.Protocol), corev1.ProtocolTCP)
}

// add takes addresses[0] only, as the API says all are the same endpoint and kube-proxy reads no other.
func (c *sliceConverter) add(i int, in *discoveryv1.Endpoint) {
	if c.strict {
		if errs := validateEndpoint(in, c.family, field.NewPath("endpoints").Index(i)); len(errs) > 0 {
			c.problem(errs[0])
			return
		}
	}
	addr, ok := c.address(i, in)
	if !ok {
		return
	}
	at := lb.Place{
		Node:   c.text(i, "nodeName", deref(in.NodeName), in.DeprecatedTopology[corev1.LabelHostname], func(s string) bool { return isName(s, maxSubdomain) }),
		Zone:   c.text(i, "zone", deref(in.Zone), in.DeprecatedTopology[corev1.LabelTopologyZone], isLabelValue),
		Region: c.text(i, "deprecatedTopology", "", in.DeprecatedTopology[corev1.LabelTopologyRegion], isLabelValue),
	}
	if in.Hints != nil {
		at.NodeHints = c.hints(i, "hints.forNodes", nodeHints(in.Hints))
		at.ZoneHints = c.hints(i, "hints.forZones", zoneHints(in.Hints))
	}
	c.endpoints = append(c.endpoints, lb.SliceEndpoint{Address: addr.As16(), At: handle.Make(at), Is: conditionsOf(in)})
	if name := c.pod(in); name != "" {
		c.pods = append(c.pods, podAt{address: addr.As16(), name: name, node: at.Node})
	}
}

// conditionsOf are an endpoint's, with the API's defaults.
func conditionsOf(in *discoveryv1.Endpoint) (is lb.Conditions) {
	if in.Conditions.Ready == nil || *in.Conditions.Ready {
		is |= lb.IsReady
	}
	if in.Conditions.Serving == nil || *in.Conditions.Serving {
		is |= lb.IsServing
	}
	if deref(in.Conditions.Terminating) {
		is |= lb.IsTerminating
	}
	if podOf(in) != "" {
		is |= lb.HasTarget
	}
	return is
}

// podOf is the name of what an endpoint stands for, where it can be a label; "" none.
func podOf(in *discoveryv1.Endpoint) string {
	if in.TargetRef == nil || len(in.TargetRef.Name) > maxLabel {
		return ""
	}
	return in.TargetRef.Name
}

// address is the endpoint's, if it is one that traffic can be sent to.
func (c *sliceConverter) address(i int, in *discoveryv1.Endpoint) (netip.Addr, bool) {
	if len(in.Addresses) == 0 {
		c.problem(field.Required(field.NewPath("endpoints").Index(i).Child("addresses"), "must contain at least 1 address"))
		return netip.Addr{}, false
	}
	addr, ok := parseAddr(in.Addresses[0])
	why := ""
	switch {
	case !ok:
		why = "must be a valid IP address"
	case addr.Is4() != (c.family == discoveryv1.AddressTypeIPv4):
		why = "must be a valid " + string(c.family) + " address"
	default:
		why = special(addr)
	}
	if why != "" {
		c.wrong("endpoints", i, "addresses[0]", in.Addresses[0], why)
	}
	return addr, why == ""
}

// text is the field's value, else that of the topology map (requirement A11). One that cannot be such a name is as good as unknown.
func (c *sliceConverter) text(i int, child, value, topology string, may func(string) bool) string {
	value = cmp.Or(value, topology)
	if value != "" && !may(value) {
		c.wrong("endpoints", i, child, value, "is no such name; it is not known where this endpoint is")
		return ""
	}
	return value
}

// hints joins the names that can be such.
func (c *sliceConverter) hints(i int, child string, names []string) string {
	return joined(slices.DeleteFunc(names, func(name string) bool {
		is := name == "" || isName(name, maxSubdomain) || isLabelValue(name)
		if !is {
			c.wrong("endpoints", i, child, name, "is no such name; this hint is ignored")
		}
		return !is
	}))
}

// joined makes one text of names.
func joined(names []string) (text string) {
	for _, name := range names {
		text += name + hintEnd
	}
	return text
}

// split is the reverse of joined.
func split(hints string) []string {
	if hints == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(hints, hintEnd), hintEnd)
}

func nodeHints(in *discoveryv1.EndpointHints) []string {
	return hintNames(in.ForNodes, func(h discoveryv1.ForNode) string { return h.Name })
}

func zoneHints(in *discoveryv1.EndpointHints) []string {
	return hintNames(in.ForZones, func(h discoveryv1.ForZone) string { return h.Name })
}

// hintNames are sorted.
func hintNames[T any](hints []T, name func(T) string) []string {
	if len(hints) == 0 {
		return nil
	}
	out := make([]string, 0, len(hints))
	for _, hint := range hints {
		out = append(out, name(hint))
	}
	slices.Sort(out)
	return out
}

// triggerTime reads the annotation in the API's format (RFC 3339 with fractions).
func triggerTime(s string) int64 {
	if s == "" {
		return 0
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1970 || t.Year() > 2261 { // what nanoseconds in 64 bits can say
		return 0
	}
	return t.UnixNano()
}

func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
