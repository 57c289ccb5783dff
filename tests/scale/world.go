// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/nearlb/nearlb/tests/fakeapi"
)

// The objects' addresses. Those of the lab are in neither range.
var (
	firstVIP      = netip.MustParseAddr("10.96.1.0")
	firstEndpoint = netip.MustParseAddr("10.128.0.0")

	firstLoadBalancer = netip.MustParseAddr("198.18.0.0")
)

const (
	serviceCIDR = "10.96.0.0/12"
	servicePort = 80
	targetPort  = 8080

	firstNodePort = 20000 // of a churn
	namespaces    = 50
	otherNodes    = 100
	nearZone      = "near"
	farZone       = "far"
	nobody        = -1 // no endpoint on the own node is ready
)

// size is how many objects there are.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%s x %d", thousands(s.services), s.endpoints) }

// world is the objects of one API server, as one node sees them. Of most Services the endpoints exist as objects alone. Those
// that are watched have real ones: two on the own node, of which at most one is ready, and others elsewhere, which are ready.
// They are hinted for their nodes, so that a new connection goes to the near one if it is ready, else to one elsewhere.
type world struct {
	size
	api  *fakeapi.Server
	node string
	near [2]netip.Addr
	far  []netip.Addr

	watched []int       // numbers of Services, spread over all
	ready   map[int]int // by number of a watched Service: which near endpoint is ready, or nobody
	changes int         // of objects, so far

	variants map[int]*variant // by number, of Services that a churn changed
}

// watchedServices is how many Services have real endpoints.
const watchedServices = 20

func newWorld(s size, node string, addresses []netip.Addr, near [2]netip.Addr, far []netip.Addr) *world {
	w := &world{size: s, api: fakeapi.New(fakeapi.Options{}), node: node, near: near, far: far, ready: map[int]int{}, variants: map[int]*variant{}}
	for k := range watchedServices {
		number := k * (s.services - 1) / (watchedServices - 1)
		w.watched, w.ready[number] = append(w.watched, number), 0
	}
	w.api.Put(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceCIDR}}})
	w.api.Put(nodeObject(node, nearZone, addresses))
	for i := range otherNodes {
		w.api.Put(nodeObject(nodeName(i), farZone, []netip.Addr{netip.AddrFrom4([4]byte{172, 30, byte(i), 2})}))
	}
	return w
}

// fill makes all Services from one number on.
func (w *world) fill(from int) {
	for i := from; i < w.services; i++ {
		w.put(i)
	}
}

// put makes a Service and its endpoints.
func (w *world) put(number int) { w.api.Put(w.service(number), w.slice(number)) }

// remove takes a Service and its endpoints away.
func (w *world) remove(number int) { w.api.Delete(w.service(number), w.slice(number)) }

// setReady has one of the near endpoints of a watched Service be ready, or nobody, and tells the watches.
func (w *world) setReady(number, which int) {
	w.ready[number] = which
	w.api.Put(w.slice(number))
}

// answerer is the name of the server that a new connection is to reach.
func (w *world) answerer(number int) string {
	if w.ready[number] == nobody {
		return farServer
	}
	return nearServers[w.ready[number]]
}

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

func nodeObject(name, zone string, addresses []netip.Addr) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func vip(number int) netip.Addr { return plus(firstVIP, number) }

func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func named(number int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: fmt.Sprintf("namespace-%02d", number%namespaces), Name: fmt.Sprintf("service-%05d", number)}
}

// managed is what field managers leave on an object, as large as it usually is.
func managed(manager, fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields)}}
}

func (w *world) service(number int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: named(number)}
	s.Labels = map[string]string{"app": s.Name, "app.kubernetes.io/managed-by": "Helm"}
	s.ManagedFields = managed("helm", `{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:app.kubernetes.io/managed-by":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`)
	single, cluster, distribution := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceTrafficDistributionPreferSameNode
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: vip(number).String(), ClusterIPs: []string{vip(number).String()},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single, InternalTrafficPolicy: &cluster, TrafficDistribution: &distribution,
		Selector: map[string]string{"app": s.Name}, SessionAffinity: corev1.ServiceAffinityNone,
		Ports: []corev1.ServicePort{{Name: "http", Port: servicePort, Protocol: corev1.ProtocolTCP}},
	}
	if v := w.variants[number]; v != nil && v.kind != "" {
		s.Spec.Type = v.kind
		if v.kind != corev1.ServiceTypeClusterIP {
			s.Spec.Ports[0].NodePort = int32(firstNodePort + number)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
		if v.kind == corev1.ServiceTypeLoadBalancer {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: plus(firstLoadBalancer, number).String()}}
		}
	}
	return s
}

// slice is the Service's endpoints as they are now.
func (w *world) slice(number int) *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(targetPort), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{ObjectMeta: named(number), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": s.Name}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: types.UID(fmt.Sprintf("%036d", number))}}
	s.GenerateName = s.Name + "-"
	w.changes++
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: fmt.Sprintf("2026-01-01T00:00:%02dZ", w.changes%60)}
	s.ManagedFields = managed("kube-controller-manager", `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},"f:ownerReferences":{".":{},"k:{}":{}}},"f:ports":{}}`)
	s.Name += "-abcde"
	s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
	which, watched := w.ready[number]
	v, count := w.variants[number], w.endpoints
	if v == nil || watched {
		v = &variant{}
	}
	for e := range count + v.more {
		switch {
		case !watched:
			s.Endpoints = append(s.Endpoints, endpoint(w.address(number, e, v), nodeName((number+e)%otherNodes), farZone, true, number, e))
		case e < len(w.near):
			s.Endpoints = append(s.Endpoints, endpoint(w.near[e], w.node, nearZone, e == which, number, e))
		default:
			s.Endpoints = append(s.Endpoints, endpoint(w.far[e-len(w.near)], nodeName(e), farZone, true, number, e))
		}
	}
	return s
}

func endpoint(a netip.Addr, node, zone string, ready bool, number, which int) discoveryv1.Endpoint {
	serving, terminating := ready, false
	return discoveryv1.Endpoint{
		Addresses: []string{a.String()}, NodeName: &node, Zone: &zone,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}, ForNodes: []discoveryv1.ForNode{{Name: node}}},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: named(number).Namespace,
			Name: fmt.Sprintf("%s-7d4b9c6f5-%05d", named(number).Name, which), UID: types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", number, which))},
	}
}
