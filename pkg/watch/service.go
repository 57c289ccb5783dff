// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// service is a Service after the converter.
type service struct {
	lb.Service
	uid          types.UID
	problems     []lb.Problem
	annotations  []lb.Problem // those of problems that nearlb's annotations have, for an Event
	selectorless bool
	proxy        *string // the label service-proxy-name; nil: none
}

// convertService validates a Service as the API server does, with its defaults, and reduces it to what decides. The
// object has no effect when kube-proxy would skip it: headless, ExternalName, given to another proxy by label.
func convertService(in *corev1.Service) (object, *ObjectError) {
	o := object{key: objectKey{kindService, in.Namespace, in.Name}}
	svc := in.DeepCopy()
	defaultService(svc)
	if err := refused(o.key, validateService(svc)); err != nil {
		return o, err
	}
	if !hasFrontends(svc) {
		return o, nil
	}
	out := &service{uid: svc.UID, selectorless: len(svc.Spec.Selector) == 0, Service: lb.Service{
		Name:         lb.ServiceName{Namespace: svc.Namespace, Name: svc.Name},
		Type:         lb.ServiceType(svc.Spec.Type),
		ClusterIPs:   addrs(svc.Spec.ClusterIPs),
		ExternalIPs:  unique(addrs(svc.Spec.ExternalIPs)),
		Ports:        servicePorts(svc.Spec.Ports),
		Internal:     lb.TrafficPolicy(*svc.Spec.InternalTrafficPolicy),
		External:     lb.PolicyCluster,
		SourceRanges: sourceRanges(svc.Spec.LoadBalancerSourceRanges),
	}}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.External = lb.PolicyLocal
	}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.Affinity = time.Duration(*svc.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds) * time.Second
	}
	out.HealthCheckPort = uint16(svc.Spec.HealthCheckNodePort)
	out.LoadBalancerIPs, out.problems = loadBalancerIPs(o.key, svc.Status.LoadBalancer.Ingress)
	out.problems = append(out.problems, unallocated(o.key, svc)...)
	for _, err := range readAnnotations(out, svc) {
		out.annotations = append(out.annotations, problem(o.key, err))
	}
	out.problems = append(out.problems, out.annotations...)
	if name, given := svc.Labels[labelProxyName]; given {
		out.proxy = &name
	}
	o.service = out
	return o, nil
}

// defaultService fills in what the API server would (SetDefaults_Service and the registry's normalisation).
func defaultService(svc *corev1.Service) {
	spec := &svc.Spec
	setDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if externallyAccessible(spec) {
		setDefault(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	for i := range spec.Ports {
		setDefault(&spec.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	defaultAffinity(spec)
}

func defaultAffinity(spec *corev1.ServiceSpec) {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		spec.SessionAffinityConfig = nil
		return
	}
	if spec.SessionAffinityConfig == nil {
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
	}
	if spec.SessionAffinityConfig.ClientIP == nil {
		spec.SessionAffinityConfig.ClientIP = &corev1.ClientIPConfig{}
	}
	if spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil {
		spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = new(corev1.DefaultClientIPServiceAffinitySeconds)
	}
}

func setDefault[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func externallyAccessible(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer || spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0
}

// hasFrontends is the filter kube-proxy asks the API server for, and what it skips itself (service-semantics.md 1.0,
// 1.1). Which proxy a Service is for, the store looks at.
func hasFrontends(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

func servicePorts(in []corev1.ServicePort) []lb.ServicePort {
	out := make([]lb.ServicePort, 0, len(in))
	for _, p := range in {
		protocol, _ := lb.ParseProtocol(string(p.Protocol)) // validated
		out = append(out, lb.ServicePort{Name: p.Name, Protocol: protocol, Port: uint16(p.Port), NodePort: uint16(p.NodePort)})
	}
	return out
}

// loadBalancerIPs are the addresses a load balancer leaves in the packets it sends on (ipMode VIP, the default).
func loadBalancerIPs(key objectKey, ingress []corev1.LoadBalancerIngress) (out []netip.Addr, problems []lb.Problem) {
	for i, in := range ingress {
		if in.IP == "" || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		addr, _ := parseAddr(in.IP) // validated
		if why := special(addr); why != "" {
			path := field.NewPath("status", "loadBalancer", "ingress").Index(i).Child("ip")
			problems = append(problems, problem(key, field.Invalid(path, in.IP, why)))
			continue
		}
		out = append(out, addr)
	}
	return unique(out), problems
}

// unallocated names the node ports that the API server would have allocated and this object has not. A missing ClusterIP is
// for decide to see.
func unallocated(key objectKey, svc *corev1.Service) (problems []lb.Problem) {
	for i, p := range svc.Spec.Ports {
		if svc.Spec.Type == corev1.ServiceTypeNodePort && p.NodePort == 0 {
			problems = append(problems, lb.Problem{Object: key.String(), Field: fmt.Sprintf("spec.ports[%d].nodePort", i),
				Message: "no port given: the API server would have allocated one; there is no NodePort frontend"})
		}
	}
	return problems
}

// sourceRanges masks and sorts; any /0 of a family makes all ranges of that family meaningless, which decide sees to.
func sourceRanges(in []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		if prefix, ok := parsePrefix(s); ok {
			out = append(out, prefix)
		}
	}
	return inOrder(out)
}

// addrs reads addresses that were validated.
func addrs(in []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range in {
		if addr, ok := parseAddr(s); ok {
			out = append(out, addr)
		}
	}
	return out
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
