// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// A Service with the label is another proxy's, whatever its value.
func TestAServiceIsHandedToAnotherProxyAndBack(t *testing.T) {
	c := rig.Shared(t)
	unallocated(c)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	web.AwaitServers(client, one, two)
	for _, value := range []string{"another", ""} {
		web.Update(func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": value}
		})
		c.AwaitSilence(client, web.OnClusterIP(), rig.Ways())
		web.Update(func(s *corev1.Service) { s.Labels = nil })
		web.AwaitServers(client, one, two)
	}
}

// handMade writes a slice of pods for a Service, as somebody does who is no controller.
func handMade(c *rig.Cluster, name string, of *rig.Service, six bool, ports []discoveryv1.EndpointPort, pods ...*rig.Pod) *discoveryv1.EndpointSlice {
	c.T.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: of.Name, discoveryv1.LabelManagedBy: "somebody"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       ports,
	}
	if six {
		s.AddressType = discoveryv1.AddressTypeIPv6
		s.Name += "-6"
	}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.Address(six).String()}})
	}
	out, err := c.API.DiscoveryV1().EndpointSlices(c.Namespace).Create(c.T.Context(), s, metav1.CreateOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	return out
}

func slicePort(name string, protocol corev1.Protocol, port int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: ptr.To(port)}
}

func bothPorts(port int32) []discoveryv1.EndpointPort {
	return []discoveryv1.EndpointPort{slicePort("tcp", corev1.ProtocolTCP, port), slicePort("udp", corev1.ProtocolUDP, port)}
}

func withoutSelector(s *corev1.Service) { s.Spec.Selector = nil }

// The label of headless Services is on slices: endpoints of one that gets it go out of service, and come back without it.
func TestASliceThatIsLabelledHeadlessGoesOutOfService(t *testing.T) {
	c := rig.Shared(t)
	client, one := c.Client(0, "client"), c.Server("", "one", 2)
	web := c.Service("web", withoutSelector)
	var made []*discoveryv1.EndpointSlice
	for _, six := range []bool{false, true} {
		made = append(made, handMade(c, "made", web, six, bothPorts(rig.TargetPort), one))
	}
	web.AwaitServers(client, one)
	label := func(set bool) {
		for i, o := range made {
			delete(o.Labels, corev1.IsHeadlessService)
			if set {
				o.Labels[corev1.IsHeadlessService] = ""
			}
			var err error
			if made[i], err = c.API.DiscoveryV1().EndpointSlices(c.Namespace).Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	label(true)
	c.AwaitRefused(client, web.OnClusterIP(), rig.Ways())
	label(false)
	web.AwaitServers(client, one)
}

// A1, A15: two slices with different ports, then two with different endpoints, add up.
func TestSlicesOfOneServiceAddUp(t *testing.T) {
	c := rig.Shared(t)
	client, one := c.Client(0, "client"), c.Server("", "one", 2)
	two := c.NewPod(rig.PodOptions{Name: "two", Node: 1, Serve: []uint16{9090}})
	web := c.Service("web", withoutSelector)
	for _, six := range []bool{false, true} {
		handMade(c, "tcp", web, six, bothPorts(8080)[:1], one)
		handMade(c, "udp", web, six, bothPorts(9090)[1:], two)
	}
	c.AwaitServers(client, web.OnClusterIP(), rig.WaysTCP(), one)
	c.AwaitServers(client, web.OnClusterIP(), []rig.Way{{Network: "udp"}, {Network: "udp", Six: true}}, two)
	for _, six := range []bool{false, true} {
		handMade(c, "more", web, six, bothPorts(9090)[:1], two)
	}
	c.AwaitServers(client, web.OnClusterIP(), rig.WaysTCP(), one, two)
}
