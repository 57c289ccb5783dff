// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/dns"
)

// What clusters are made of. Few names, so that they meet.
var (
	namespaces   = []string{"prod", "test", "idle"} // nothing is in idle
	serviceNames = []string{"web", "db", "svc", "pod", "x"}
	hostnames    = []string{"db-0", "db-1", "web"}
	portNames    = []string{"http", "dns", "tcp"}
	zones        = map[string]*string{ // of an address that a slice has twice, CoreDNS knows one zone
		"10.244.1.1": new("a"), "10.244.1.2": new("a"), "10.244.1.3": new("B"), "10.244.2.1": new("eu.west"),
		"fd00:244::1": new("B"), "fd00:244::2": new("B"), "fd00:244:1::": new("a"),
	}
	addresses = map[discoveryv1.AddressType][]string{
		discoveryv1.AddressTypeIPv4: {"10.244.1.1", "10.244.1.2", "10.244.1.3", "10.244.2.1", "10.96.0.10"},
		discoveryv1.AddressTypeIPv6: {"fd00:244::1", "fd00:244::2", "fd00:244:1::", "fd00::1:2:3:4:5"},
		discoveryv1.AddressTypeFQDN: {"www.example.com", "missing.example.com"},
	}
	ownAddresses = []string{"10.244.1.1", "192.0.2.53", "2001:db8::53"}
	targets      = append([]string{"web.prod.svc.cluster.local", "db.test.svc.cluster.local", "x.prod.svc.cluster.local", "nobody.prod.svc.cluster.local",
		"db-0.db.prod.svc.cluster.local", "cluster.local", "idle.svc.cluster.local", "10-244-1-1.prod.pod.cluster.local"}, outsideNames...)
	protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
)

func pick[T any](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

// once in n draws is true.
func once(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == n }

// some draws up to a number of different ones.
func some[T any](t *rapid.T, label string, most int, from ...T) []T {
	return rapid.Permutation(from).Draw(t, label)[:rapid.IntRange(0, min(most, len(from))).Draw(t, label+" number")]
}

func anySetup(t *rapid.T) setup {
	s := setup{podNames: rapid.Bool().Draw(t, "pod names"), upstream: rapid.Bool().Draw(t, "upstream")}
	s.Zones = []string{"cluster.local"}
	if rapid.Bool().Draw(t, "reverse") {
		s.ReverseZones = []string{"in-addr.arpa", "ip6.arpa"}
	}
	s.Pods = pick(t, "pods", dns.PodsDisabled, dns.PodsInsecure, dns.PodsVerified)
	s.TTL = pick(t, "ttl", uint32(5), 0, 30, 3600)
	s.Zonal, s.IgnoreEmpty = rapid.Bool().Draw(t, "zonal"), rapid.Bool().Draw(t, "ignore empty")
	for _, a := range some(t, "own", 2, ownAddresses...) {
		s.OwnAddresses = append(s.OwnAddresses, netip.MustParseAddr(a))
	}
	return s
}

// anyCluster draws objects that an API server would take.
func anyCluster(t *rapid.T) (all []runtime.Object) {
	for _, name := range namespaces {
		all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for n, namespace := range namespaces[:2] {
		for i, name := range serviceNames {
			if once(t, 4, "no Service") {
				continue
			}
			s := anyService(t, namespace, name, 16*n+i)
			all = append(all, s)
			for j := range rapid.IntRange(0, 3).Draw(t, "slices") {
				slice := anySlice(t, namespace, name, j)
				if s.Spec.Type == corev1.ServiceTypeExternalName { // CoreDNS cannot be an endpoint of one: it has no name server then
					slice.Endpoints = slices.DeleteFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, ownAddresses[0]) })
				}
				all = append(all, slice)
			}
		}
		if once(t, 3, "slice of nothing") {
			all = append(all, anySlice(t, namespace, "nothing", 0))
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "pods") {
			all = append(all, anyPod(t, namespace, fmt.Sprintf("pod-%d", i)))
		}
	}
	return rapid.Permutation(all).Draw(t, "order")
}

func anyService(t *rapid.T, namespace, name string, number int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec.Ports = anyPorts(t)
	v4, v6 := fmt.Sprintf("10.96.0.%d", 10+number), fmt.Sprintf("fd00:96::%x", 10+number)
	families := pick(t, "families", []string{v4}, []string{v6}, []string{v4, v6}, []string{v6, v4})
	switch kind := pick(t, "kind", "ClusterIP", "NodePort", "LoadBalancer", "headless", "headless", "headless", "ExternalName"); kind {
	case "headless":
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		if once(t, 4, "no ports") {
			s.Spec.Ports = nil
		}
		if once(t, 4, "near first") {
			s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferClose)
		}
	case "ExternalName":
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, pick(t, "target", targets...)
		if once(t, 2, "no ports") {
			s.Spec.Ports = nil
		}
	default:
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceType(kind), families[0], families
		if len(s.Spec.Ports) == 0 {
			s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
		}
		if kind == "LoadBalancer" {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		}
	}
	for _, a := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(a); err == nil {
			family := corev1.IPv6Protocol
			if ip.Is4() {
				family = corev1.IPv4Protocol
			}
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
		}
	}
	return s
}

// anyPorts are those of a Service: with names where there are several, no two alike.
func anyPorts(t *rapid.T) (all []corev1.ServicePort) {
	names := some(t, "ports", 3, portNames...)
	if len(names) == 1 && once(t, 2, "no name") {
		names[0] = ""
	}
	for i, name := range names {
		all = append(all, corev1.ServicePort{Name: name, Port: int32(80 + i), Protocol: pick(t, "protocol", protocols...), TargetPort: intstr.FromInt32(8080)})
	}
	return all
}

func anySlice(t *rapid.T, namespace, service string, number int) *discoveryv1.EndpointSlice {
	kind := pick(t, "address type", discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	if service == "x" { // of names beside addresses either server answers with what comes first
		kind = discoveryv1.AddressTypeFQDN
	}
	s := &discoveryv1.EndpointSlice{AddressType: kind, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", service, number),
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	names := some(t, "slice ports", 2, append([]string{""}, portNames...)...)
	for i, name := range names {
		p := discoveryv1.EndpointPort{Name: new(name), Port: new(int32(8080 + i*number)), Protocol: new(pick(t, "protocol", protocols...))}
		if once(t, 8, "any port") {
			p.Port = nil
		}
		s.Ports = append(s.Ports, p)
	}
	for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		s.Endpoints = append(s.Endpoints, anyEndpoint(t, kind))
	}
	return s
}

func anyEndpoint(t *rapid.T, kind discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: some(t, "addresses", 1, addresses[kind]...)}
	if len(e.Addresses) == 0 {
		e.Addresses = addresses[kind][:1]
	}
	if once(t, 8, "two addresses") {
		e.Addresses = addresses[kind][:2]
	}
	e.Conditions.Ready = pick(t, "ready", nil, new(true), new(true), new(false))
	e.Conditions.Serving = pick(t, "serving", nil, new(true), new(false))
	if e.Conditions.Ready != nil && !*e.Conditions.Ready {
		e.Conditions.Terminating = pick(t, "terminating", nil, new(true), new(false))
	}
	if once(t, 3, "hostname") {
		e.Hostname = new(pick(t, "name", hostnames...))
	}
	e.Zone = zones[e.Addresses[0]]
	if once(t, 2, "pod") {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pick(t, "pod", "pod-0", "pod-1", longName)}
	}
	return e
}

// longName is a Pod's that is no label.
const longName = "a-pod-whose-name-has-more-than-the-sixty-three-letters-of-a-label"

func anyPod(t *rapid.T, namespace, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, kind := range some(t, "families", 2, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6) {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: pick(t, "address", addresses[kind]...)})
	}
	if len(p.Status.PodIPs) > 0 {
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
	p.Status.Phase = pick(t, "phase", corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed)
	if once(t, 5, "terminating") {
		p.DeletionTimestamp = new(metav1.Now())
	}
	return p
}
