// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearlb/nearlb/pkg/lb"
)

// service is a Service after the converter, kept small: of 10,000 nearly all have nothing in serviceMore.
type service struct {
	name         lb.ServiceName
	uid          types.UID
	kind         lb.ServiceType
	selectorless bool
	clusterIPs   []netip.Addr
	ports        []lb.ServicePort
	rest         *serviceMore // nil: plain
}

// serviceMore is what few Services have.
type serviceMore struct {
	lb.Service                  // Name, Type, ClusterIPs and Ports are in service
	problems    []lb.Problem    // of the object
	annotations []lb.Problem    // those of problems that nearlb's annotations have, for an Event
	annotated   []lb.Annotation // nearlb's annotations, by name
	proxy       *string         // the label service-proxy-name; nil: none
}

// plain is what a Service is that asks for nothing special.
var plain = serviceMore{Service: lb.Service{Internal: lb.PolicyCluster, External: lb.PolicyCluster}}

// more is never nil; it must not be changed.
func (s *service) more() *serviceMore {
	if s.rest == nil {
		return &plain
	}
	return s.rest
}

// full is the Service as the decision needs it.
func (s *service) full() lb.Service {
	out := s.more().Service
	out.Name, out.Type, out.ClusterIPs, out.Ports = s.name, s.kind, s.clusterIPs, s.ports
	return out
}

// hasNodePort tells whether the Service answers on addresses of the node.
func (s *service) hasNodePort() bool {
	return slices.ContainsFunc(s.ports, func(p lb.ServicePort) bool { return p.NodePort != 0 })
}

func sameService(a, b *service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.name == b.name && a.uid == b.uid && a.kind == b.kind && a.selectorless == b.selectorless && slices.Equal(a.clusterIPs, b.clusterIPs) &&
		slices.Equal(a.ports, b.ports) && (a.rest == b.rest || reflect.DeepEqual(a.rest, b.rest))
}

// serviceConverter makes a service.
type serviceConverter struct {
	*service
	serviceMore
	key objectKey
	in  *corev1.Service
}

// convertService reduces a Service to what decides. The object has no effect when kube-proxy would skip it: headless, ExternalName; of
// one that another proxy is to serve the store knows. What of it cannot be served, as a value that only a newer Kubernetes knows, has the
// field's default or is left out, and is a problem.
func convertService(in *corev1.Service) (object, *ObjectError) {
	o := object{key: objectKey{kindService, in.Namespace, in.Name}}
	if err := checkName(o.key, maxLabel, true); err != nil {
		return o, err
	}
	if !hasFrontends(in) {
		_, errs := nameSelection(in)
		for _, err := range errs {
			o.wrong = append(o.wrong, problem(o.key, err))
		}
		return o, nil
	}
	c := serviceConverter{key: o.key, in: in, serviceMore: plain, service: &service{
		name: lb.ServiceName{Namespace: shared(in.Namespace), Name: in.Name}, uid: in.UID, selectorless: len(in.Spec.Selector) == 0}}
	c.kind = known(&c, "spec.type", in.Spec.Type, []lb.ServiceType{lb.TypeClusterIP, lb.TypeNodePort, lb.TypeLoadBalancer})
	c.addresses()
	c.addPorts()
	c.policies()
	c.affinity()
	c.unallocated()
	for _, err := range readAnnotations(&c.serviceMore, in) {
		c.annotations = append(c.annotations, problem(o.key, err))
	}
	c.problems = append(c.problems, c.annotations...)
	c.annotated = annotationsOf(in, c.annotations)
	if name, given := in.Labels[labelProxyName]; given {
		c.proxy = &name
	}
	if !reflect.DeepEqual(c.serviceMore, plain) {
		c.rest = new(c.serviceMore)
	}
	o.service = c.service
	return o, nil
}

func (c *serviceConverter) wrong(field string, value any, rule string) {
	c.problems = append(c.problems, c.key.problem(field, value, rule))
}

// known is one of the values, the first for an empty text. For one that is unknown it is the first as well, with a problem.
func known[V, T ~string](c *serviceConverter, field string, text V, values []T) T {
	if text == "" {
		return values[0]
	}
	for _, value := range values {
		if string(value) == string(text) {
			return value
		}
	}
	c.wrong(field, string(text), "is not known here; "+string(values[0])+" is in its place")
	return values[0]
}

// addresses reads all lists of addresses. An address that is none, or that a Service may not have, is left out.
func (c *serviceConverter) addresses() {
	spec := &c.in.Spec
	listed := spec.ClusterIPs
	if len(listed) == 0 && spec.ClusterIP != "" {
		listed = []string{spec.ClusterIP}
	}
	for i, s := range listed {
		addr, ok := c.address("spec.clusterIPs[%d]", i, s)
		switch {
		case !ok:
		case slices.ContainsFunc(c.clusterIPs, func(other netip.Addr) bool { return other.Is4() == addr.Is4() }):
			c.wrong(fmt.Sprintf("spec.clusterIPs[%d]", i), s, "is the second of its family; it is not served")
		default:
			c.clusterIPs = append(c.clusterIPs, addr)
		}
	}
	c.clusterIPs = slices.Clip(c.clusterIPs)
	for i, s := range spec.ExternalIPs {
		if addr, ok := c.address("spec.externalIPs[%d]", i, s); ok {
			c.ExternalIPs = append(c.ExternalIPs, addr)
		}
	}
	c.ExternalIPs = unique(c.ExternalIPs)
	c.balancer()
}

// address reads the one at a place of a list.
func (c *serviceConverter) address(field string, i int, s string) (netip.Addr, bool) {
	addr, ok := parseAddr(s)
	why := "must be a valid IP address"
	if ok {
		why = special(addr)
	}
	if why != "" {
		c.wrong(fmt.Sprintf(field, i), s, why)
	}
	return addr, why == ""
}

// balancer reads what a load balancer is told, and what it told. Addresses are those that it leaves in the packets it sends on
// (ipMode VIP, the default); of other modes kube-proxy serves none either.
func (c *serviceConverter) balancer() {
	for i, in := range c.in.Status.LoadBalancer.Ingress {
		if in.IP == "" {
			continue
		}
		if mode := deref(in.IPMode); mode != "" && mode != corev1.LoadBalancerIPModeVIP {
			if mode != corev1.LoadBalancerIPModeProxy {
				c.wrong(fmt.Sprintf("status.loadBalancer.ingress[%d].ipMode", i), string(mode), "is not known here; this address is not served")
			}
			continue
		}
		if addr, ok := c.address("status.loadBalancer.ingress[%d].ip", i, in.IP); ok {
			c.LoadBalancerIPs = append(c.LoadBalancerIPs, addr)
		}
	}
	c.LoadBalancerIPs = unique(c.LoadBalancerIPs)
	for i, s := range c.in.Spec.LoadBalancerSourceRanges {
		prefix, ok := parsePrefix(s)
		if !ok {
			c.wrong(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), s, "must be a valid CIDR; it admits nobody")
			c.SourceRanges = append(c.SourceRanges, nobody[:]...)
			continue
		}
		c.SourceRanges = append(c.SourceRanges, prefix)
	}
	c.SourceRanges = inOrder(c.SourceRanges)
}

// nobody are ranges without a client: without any range of a family all clients of the family are admitted.
var nobody = [...]netip.Prefix{netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("::/128")}

// addPorts leaves out ports that cannot be served, and those that another one of the Service cannot be told apart from.
func (c *serviceConverter) addPorts() {
	c.ports = make([]lb.ServicePort, 0, len(c.in.Spec.Ports))
	for i, in := range c.in.Spec.Ports {
		protocol, err := lb.ParseProtocol(string(in.Protocol))
		if in.Protocol == "" {
			protocol, err = lb.TCP, nil
		}
		p := lb.ServicePort{Name: in.Name, Protocol: protocol, Port: uint16(in.Port)}
		switch field, rule := "", ""; {
		case err != nil:
			c.wrongPort(i, "protocol", string(in.Protocol), "is not known here; this port is not served")
		case in.Port < 1 || in.Port > 65535:
			c.wrongPort(i, "port", in.Port, "must be between 1 and 65535; this port is not served")
		case in.Name != "" && !isName(in.Name, maxLabel):
			c.wrongPort(i, "name", in.Name, "is no name of a port; this port is not served")
		default:
			if field, rule = c.twice(p); field != "" {
				c.wrongPort(i, field, in.Name, rule)
				continue
			}
			p.Name, p.NodePort = shared(in.Name), c.nodePort(i, p.Protocol, in.NodePort)
			c.ports = append(c.ports, p)
		}
	}
}

func (c *serviceConverter) wrongPort(i int, child string, value any, rule string) {
	c.wrong(fmt.Sprintf("spec.ports[%d].%s", i, child), value, rule)
}

// twice says what a port has in common with one before that must be its own.
func (c *serviceConverter) twice(p lb.ServicePort) (field, rule string) {
	for _, other := range c.ports {
		switch {
		case other.Protocol != p.Protocol:
		case other.Name == p.Name:
			return "name", "another port has the same name and protocol; this one is not served"
		case other.Port == p.Port:
			return "port", "another port has the same number and protocol; this one is not served"
		}
	}
	return "", ""
}

// nodePort is 0 for none.
func (c *serviceConverter) nodePort(i int, protocol lb.Protocol, number int32) uint16 {
	same := func(p lb.ServicePort) bool { return p.Protocol == protocol && p.NodePort == uint16(number) }
	switch {
	case number == 0 || c.kind == lb.TypeClusterIP:
		return 0
	case number < 0 || number > 65535:
		c.wrongPort(i, "nodePort", number, "must be between 1 and 65535; there is no NodePort frontend")
		return 0
	case slices.ContainsFunc(c.ports, same):
		c.wrongPort(i, "nodePort", number, "another port has the same one; there is no NodePort frontend")
		return 0
	}
	return uint16(number)
}

// policies reads what tells clients and endpoints apart.
func (c *serviceConverter) policies() {
	both := []lb.TrafficPolicy{lb.PolicyCluster, lb.PolicyLocal}
	spec := &c.in.Spec
	c.Internal = known(c, "spec.internalTrafficPolicy", deref(spec.InternalTrafficPolicy), both)
	if c.kind != lb.TypeClusterIP || len(spec.ExternalIPs) > 0 {
		c.External = known(c, "spec.externalTrafficPolicy", spec.ExternalTrafficPolicy, both)
	}
	if port := spec.HealthCheckNodePort; port < 0 || port > 65535 {
		c.wrong("spec.healthCheckNodePort", port, "must be between 1 and 65535; health checks are not answered")
	} else {
		c.HealthCheckPort = uint16(port)
	}
	c.WantsHints = wantsHints(c.in)
	distributions := []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}
	if d := spec.TrafficDistribution; d != nil && !slices.Contains(distributions, *d) {
		c.wrong("spec.trafficDistribution", *d, "is not known here; endpoints are preferred by the hints that their slices have, if any")
	}
}

func (c *serviceConverter) affinity() {
	if known(c, "spec.sessionAffinity", c.in.Spec.SessionAffinity, []corev1.ServiceAffinity{corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP}) == corev1.ServiceAffinityNone {
		return
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if config := c.in.Spec.SessionAffinityConfig; config != nil && config.ClientIP != nil && config.ClientIP.TimeoutSeconds != nil {
		if given := *config.ClientIP.TimeoutSeconds; given < 1 || given > maxAffinitySeconds {
			c.wrong("spec.sessionAffinityConfig.clientIP.timeoutSeconds", given, fmt.Sprintf("must be between 1 and %d; %d is in its place", maxAffinitySeconds, seconds))
		} else {
			seconds = given
		}
	}
	c.Affinity = time.Duration(seconds) * time.Second
}

// unallocated names the node ports that the API server would have allocated and this object has not. A missing ClusterIP is
// for decide to see.
func (c *serviceConverter) unallocated() {
	for i, p := range c.in.Spec.Ports {
		if c.kind == lb.TypeNodePort && p.NodePort == 0 {
			c.problems = append(c.problems, lb.Problem{Object: c.key.String(), Field: fmt.Sprintf("spec.ports[%d].nodePort", i),
				Message: "no port given: the API server would have allocated one; there is no NodePort frontend"})
		}
	}
}

// hasFrontends is the filter kube-proxy asks the API server for, and what it skips itself (service-semantics.md 1.0,
// 1.1). Which proxy a Service is for, the store looks at.
func hasFrontends(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

// unique keeps the first of equal addresses, in order.
func unique(in []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, addr := range in {
		if !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}
