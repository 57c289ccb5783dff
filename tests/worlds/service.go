// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// anyService draws a Service that the API server would take, number i of its world.
func anyService(t *rapid.T, i int) *corev1.Service {
	s := Service(fmt.Sprintf("web%d", i), pick(t, "type", "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer))
	s.Namespace = pick(t, "namespace", "default", "shop")
	if seldom(t, "another proxy") {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": pick(t, "proxy", "", "mine")}
	}
	if seldom(t, "external name") {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		s.Spec.Ports = anyServicePorts(t, s, i)
		return s
	}
	anyClusterIPs(t, s, i)
	s.Spec.Ports = anyServicePorts(t, s, i)
	s.Spec.ExternalIPs = pick(t, "external IPs", nil, nil, []string{"198.51.100.7"}, []string{"2001:db8:7::7"}, []string{"198.51.100.7", "2001:db8:7::7"},
		[]string{"198.051.100.007", "198.51.100.7", "203.0.113.9"}, []string{"192.0.2.1", "2001:db8:2::1"})
	anyAffinity(t, s)
	if pick(t, "internal policy is set", true, false) {
		s.Spec.InternalTrafficPolicy = new(pick(t, "internal policy", corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal))
	}
	if accessible(s) {
		s.Spec.ExternalTrafficPolicy = pick(t, "external policy", "", corev1.ServiceExternalTrafficPolicyCluster,
			corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyLocal)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer || seldom(t, "status left behind") {
		s.Status.LoadBalancer.Ingress = anyIngress(t)
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		anyLoadBalancer(t, s, i)
	}
	return s
}

// Service is one of a type, without ports.
func Service(name string, kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: kind},
	}
}

// accessible tells whether externalTrafficPolicy may be set (its API documentation).
func accessible(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.Spec.ExternalIPs) > 0
}

// anyClusterIPs draws one or two families, or none: a headless Service.
func anyClusterIPs(t *rapid.T, s *corev1.Service, i int) {
	v4, v6 := fmt.Sprintf("10.96.0.%d", 10+i), fmt.Sprintf("2001:db8:96::%d", 10+i)
	const four, six = corev1.IPv4Protocol, corev1.IPv6Protocol
	drawn := pick(t, "cluster IPs", []string{v4}, []string{v6}, []string{v4, v6}, []string{v6, v4})
	if s.Spec.Type == corev1.ServiceTypeClusterIP && seldom(t, "headless") {
		drawn = []string{corev1.ClusterIPNone}
	}
	s.Spec.ClusterIP = drawn[0]
	if len(drawn) == 1 && pick(t, "written by hand", true, false) {
		return
	}
	s.Spec.ClusterIPs = drawn
	for _, ip := range drawn {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, map[string]corev1.IPFamily{v4: four, v6: six, corev1.ClusterIPNone: four}[ip])
	}
}

func anyServicePorts(t *rapid.T, s *corev1.Service, i int) []corev1.ServicePort {
	names := pick(t, "port names", []string{""}, []string{"http"}, []string{"dns"}, []string{"http", "dns"}, []string{"http", "dns", "admin"})
	var out []corev1.ServicePort
	for j, name := range names {
		p := corev1.ServicePort{Name: name, Protocol: anyProtocol(t), Port: int32(80 + j)}
		if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer && pick(t, "node port", true, false) {
			p.NodePort = int32(30000 + 10*i + j)
			if seldom(t, "node port is the port") {
				p.NodePort = p.Port
			}
		}
		out = append(out, p)
	}
	return out
}

// anyProtocol draws one, seldom by the default.
func anyProtocol(t *rapid.T) corev1.Protocol {
	return pick(t, "protocol", "", corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

func anyAffinity(t *rapid.T, s *corev1.Service) {
	s.Spec.SessionAffinity = pick(t, "affinity", "", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	if seconds := pick(t, "timeout", 0, 0, 1, 86400); seconds != 0 && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(seconds))}}
	}
}

func anyIngress(t *rapid.T) []corev1.LoadBalancerIngress {
	vip, proxy := new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeProxy)
	return subset(t, "ingress", []corev1.LoadBalancerIngress{
		{Hostname: "lb.example.com"},
		{IP: "203.0.113.9"},
		{IP: "203.0.113.10", IPMode: vip},
		{IP: "203.0.113.11", IPMode: proxy},
		{IP: "2001:db8:9::9", IPMode: vip, Hostname: "lb6.example.com"},
		{IP: "2001:db8:9::10", IPMode: proxy},
		{IP: "203.000.113.009"},
	})
}

// anyLoadBalancer draws what only this type may have.
func anyLoadBalancer(t *rapid.T, s *corev1.Service, i int) {
	s.Spec.LoadBalancerSourceRanges = pick(t, "source ranges", nil, nil, []string{"10.0.0.0/8"}, []string{" 10.0.0.0/8 ", "010.1.0.0/16"},
		[]string{"192.0.2.1/32", "2001:db8:1::/48"}, []string{"192.0.2.77/24", "10.1.2.3/8"}, []string{"2001:db8:2::/64"}, []string{"10.0.0.0/8", "0.0.0.0/0"},
		[]string{"::/0", "172.16.0.0/12"})
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && often(t, "health check") {
		s.Spec.HealthCheckNodePort = int32(31000 + i)
	}
}
