// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The kubelet's own port, which a LoadBalancer Service may not expose.
const kubeletPort = 10250

// The longest session affinity of the API: a day.
const maxAffinitySeconds = 86400

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

// validateService is what the API server checks of a Service with its defaults (ValidateService), as far as it can be
// checked without its allocators: node ports have no range here (requirement C3).
func validateService(svc *corev1.Service) field.ErrorList {
	spec, path := &svc.Spec, field.NewPath("spec")
	errs := validateMeta(&svc.ObjectMeta, true, apivalidation.NameIsDNSLabel)
	errs = append(errs, oneOf(path.Child("type"), spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)...)
	if spec.Type == corev1.ServiceTypeExternalName {
		return append(errs, validateExternalName(spec, path)...)
	}
	errs = append(errs, validateServicePorts(spec, path.Child("ports"))...)
	errs = append(errs, metavalidation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	errs = append(errs, validateAffinity(spec, path)...)
	errs = append(errs, validateClusterIPs(spec, path)...)
	errs = append(errs, validateExternalIPs(spec.ExternalIPs, path.Child("externalIPs"))...)
	errs = append(errs, validatePolicies(spec, path)...)
	errs = append(errs, validateLoadBalancer(spec, path)...)
	return append(errs, validateIngress(svc.Status.LoadBalancer.Ingress, field.NewPath("status", "loadBalancer", "ingress"))...)
}

func validateExternalName(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	if spec.ClusterIP != "" {
		errs = append(errs, field.Forbidden(path.Child("clusterIP"), "must be empty for ExternalName services"))
	}
	name := strings.TrimSuffix(spec.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(path.Child("externalName"), ""))
	}
	return append(errs, invalid(path.Child("externalName"), spec.ExternalName, validation.IsDNS1123Subdomain(name))...)
}

func validateServicePorts(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone {
		return field.ErrorList{field.Required(path, "")}
	}
	type portKey struct {
		field    string
		protocol corev1.Protocol
		value    string
	}
	seen := map[portKey]bool{}
	for i, p := range spec.Ports {
		path := path.Index(i)
		errs = append(errs, validateServicePort(spec, p, path)...)
		for _, key := range []portKey{{"name", "", p.Name}, {"port", p.Protocol, fmt.Sprint(p.Port)}, {"nodePort", p.Protocol, fmt.Sprint(p.NodePort)}} {
			if seen[key] {
				errs = append(errs, field.Duplicate(path.Child(key.field), key.value))
			}
			seen[key] = key.value != "" && (key.field != "nodePort" || p.NodePort != 0)
		}
	}
	return errs
}

func validateServicePort(spec *corev1.ServiceSpec, p corev1.ServicePort, path *field.Path) (errs field.ErrorList) {
	switch {
	case p.Name != "":
		errs = append(errs, invalid(path.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
	case len(spec.Ports) > 1:
		errs = append(errs, field.Required(path.Child("name"), "every port has a name when there are several"))
	}
	errs = append(errs, validateProtocol(path.Child("protocol"), p.Protocol)...)
	errs = append(errs, invalid(path.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
	errs = append(errs, validateTargetPort(path.Child("targetPort"), p.TargetPort)...)
	if p.NodePort != 0 {
		errs = append(errs, invalid(path.Child("nodePort"), p.NodePort, validation.IsValidPortNum(int(p.NodePort)))...)
		if spec.Type == corev1.ServiceTypeClusterIP {
			errs = append(errs, field.Forbidden(path.Child("nodePort"), "may not be used when type is ClusterIP"))
		}
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && p.Port == kubeletPort {
		errs = append(errs, field.Invalid(path.Child("port"), p.Port, "may not be exposed by a load balancer: the kubelet uses it"))
	}
	return append(errs, validateAppProtocol(path.Child("appProtocol"), p.AppProtocol)...)
}

// validateTargetPort reads no more of the field than the API server's rule: slices have the ports that count. The zero
// value is the default, the port itself.
func validateTargetPort(path *field.Path, port intstr.IntOrString) field.ErrorList {
	switch {
	case port == intstr.IntOrString{}:
		return nil
	case port.Type == intstr.Int:
		return invalid(path, port.IntVal, validation.IsValidPortNum(int(port.IntVal)))
	}
	return invalid(path, port.StrVal, validation.IsValidPortName(port.StrVal))
}

func validateAffinity(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		seconds := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds
		errs = append(errs, invalid(path.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds,
			validation.IsInRange(int(seconds), 1, maxAffinitySeconds))...)
	}
	return errs
}

func validateExternalIPs(ips []string, path *field.Path) (errs field.ErrorList) {
	for i, ip := range ips {
		errs = append(errs, validateServiceIP(path.Index(i), ip)...)
	}
	return errs
}

func validateServiceIP(path *field.Path, ip string) field.ErrorList {
	addr, ok := parseAddr(ip)
	if !ok {
		return field.ErrorList{field.Invalid(path, ip, "must be a valid IP address")}
	}
	if why := special(addr); why != "" {
		return field.ErrorList{field.Invalid(path, ip, why)}
	}
	return nil
}

func validatePolicies(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("internalTrafficPolicy"), *spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	external := path.Child("externalTrafficPolicy")
	switch {
	case externallyAccessible(spec):
		errs = append(errs, oneOf(external, spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	case spec.ExternalTrafficPolicy != "":
		errs = append(errs, field.Invalid(external, string(spec.ExternalTrafficPolicy), "may only be set for externally-accessible services"))
	}
	if spec.TrafficDistribution != nil {
		errs = append(errs, oneOf(path.Child("trafficDistribution"), *spec.TrafficDistribution, corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)...)
	}
	return errs
}

// validateLoadBalancer checks the fields that only a LoadBalancer Service may have.
func validateLoadBalancer(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	for _, only := range []struct {
		name string
		set  bool
	}{
		{"loadBalancerSourceRanges", len(spec.LoadBalancerSourceRanges) > 0},
		{"loadBalancerClass", spec.LoadBalancerClass != nil},
		{"allocateLoadBalancerNodePorts", spec.AllocateLoadBalancerNodePorts != nil},
	} {
		if only.set && !balancer {
			errs = append(errs, field.Forbidden(path.Child(only.name), "may only be used when type is LoadBalancer"))
		}
	}
	for i, s := range spec.LoadBalancerSourceRanges {
		if _, ok := parsePrefix(s); !ok {
			errs = append(errs, field.Invalid(path.Child("loadBalancerSourceRanges").Index(i), s, "must be a valid CIDR"))
		}
	}
	if health := spec.HealthCheckNodePort; health != 0 {
		errs = append(errs, invalid(path.Child("healthCheckNodePort"), health, validation.IsValidPortNum(int(health)))...)
		if !balancer || spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			errs = append(errs, field.Invalid(path.Child("healthCheckNodePort"), health,
				"may only be set when type is LoadBalancer and externalTrafficPolicy is Local"))
		}
	}
	return errs
}

func validateIngress(ingress []corev1.LoadBalancerIngress, path *field.Path) (errs field.ErrorList) {
	for i, in := range ingress {
		path := path.Index(i)
		if _, ok := parseAddr(in.IP); in.IP != "" && !ok {
			errs = append(errs, field.Invalid(path.Child("ip"), in.IP, "must be a valid IP address"))
		}
		if in.IPMode == nil {
			continue
		}
		if in.IP == "" {
			errs = append(errs, field.Forbidden(path.Child("ipMode"), "may not be specified when ip is not set"))
		}
		errs = append(errs, oneOf(path.Child("ipMode"), *in.IPMode, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)...)
	}
	return errs
}
