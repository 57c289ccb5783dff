// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// unallocated says that the test asks at addresses that no Service has any more: as kube-proxy does, their packets are dropped.
func unallocated(c *rig.Cluster) { c.MayDrop("drop_unallocated") }

func nodePorts(s *corev1.Service, port int32) {
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = port
	}
}

// One Service through all types and back, in service at each step where it is to be, and nowhere else.
func TestAServiceThatChangesItsTypeIsServedAsTheNewOne(t *testing.T) {
	c := rig.Shared(t)
	unallocated(c)
	client, off := c.Client(0, "client"), c.Outside()
	one, two := c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	old := web.OnClusterIP()
	web.AwaitServers(client, one, two)

	onNode := rig.AtHost(c.Node(0), 9110)
	web.Update(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort; nodePorts(s, 9110) })
	c.AwaitServers(off, onNode, rig.Ways(), one, two)
	web.AwaitServers(client, one, two)

	v4, v6 := c.VIP(c.Node(0))
	balanced := rig.AtAddresses(v4, v6, rig.ServicePort)
	web.Update(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
	web.UpdateStatus(func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: v4.String()}, {IP: v6.String()}}
	})
	for _, from := range []rig.Host{off, client, c.Node(0)} {
		c.AwaitServers(from, balanced, rig.Ways(), one, two)
	}
	c.AwaitServers(off, onNode, rig.Ways(), one, two)

	web.Update(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP; nodePorts(s, 0) })
	c.AwaitRefused(off, onNode, rig.Ways())
	c.AwaitUnanswered(client, balanced, rig.Ways())
	web.AwaitServers(client, one, two)

	web.Update(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
	})
	c.AwaitSilence(client, old, rig.Ways())

	web.Update(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeNodePort, ""
		s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		nodePorts(s, 9110)
	})
	web.AwaitServers(client, one, two)
	c.AwaitServers(off, onNode, rig.Ways(), one, two)
}

// Its ports are named anew, moved, added and taken away; a port that a Service does not have refuses.
func TestPortsOfAServiceAreChangedLive(t *testing.T) {
	c := rig.Shared(t)
	client := c.Client(0, "client")
	web := c.NewPod(rig.PodOptions{App: "web", Name: "one", Node: 2, Serve: []uint16{8080, 9090}})
	s := c.Service("web", nil)
	on := func(port uint16) rig.At { return rig.AtAddresses(s.ClusterIP(false), s.ClusterIP(true), port) }
	s.AwaitServers(client, web)

	s.Update(func(o *corev1.Service) { o.Spec.Ports[0].Name, o.Spec.Ports[1].Name = "web", "dns" })
	s.AwaitServers(client, web)

	s.Update(func(o *corev1.Service) { o.Spec.Ports[0].Port, o.Spec.Ports[1].Port = 81, 81 })
	c.AwaitServers(client, on(81), rig.Ways(), web)
	c.AwaitRefused(client, on(80), rig.Ways())

	s.Update(func(o *corev1.Service) {
		more := corev1.ServicePort{Name: "more", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(9090)}
		o.Spec.Ports = append(o.Spec.Ports, more)
	})
	c.AwaitServers(client, on(80), rig.WaysTCP(), web)
	c.AwaitServers(client, on(81), rig.Ways(), web)

	s.Update(func(o *corev1.Service) { o.Spec.Ports = o.Spec.Ports[1:] })
	c.AwaitRefused(client, on(81), rig.WaysTCP())
	c.AwaitServers(client, on(80), rig.WaysTCP(), web)
}

// A target port that is changed is asked for by the next connection.
func TestATargetPortIsChangedLive(t *testing.T) {
	c := rig.Shared(t)
	client := c.Client(0, "client")
	web := c.NewPod(rig.PodOptions{App: "web", Name: "one", Node: 2, Serve: []uint16{8080, 9090}})
	s := c.Service("web", nil)
	s.AwaitServers(client, web)
	for _, port := range []int32{9090, 8080} {
		s.Update(func(o *corev1.Service) {
			for i := range o.Spec.Ports {
				o.Spec.Ports[i].TargetPort = intstr.FromInt32(port)
			}
		})
		c.AwaitAnswer(client, s.OnClusterIP(), rig.Ways(), func(a lab.Answer) bool { return a.Local.Port() == uint16(port) })
	}
}

// A Service that is deleted and made again has other addresses, on which it is served at once.
func TestAServiceThatIsMadeAgainIsServed(t *testing.T) {
	c := rig.Shared(t)
	unallocated(c)
	client, one := c.Client(0, "client"), c.Server("web", "one", 2)
	for range 3 {
		web := c.Service("web", nil)
		web.AwaitServers(client, one)
		old := web.OnClusterIP()
		web.Delete()
		c.AwaitSilence(client, old, rig.Ways4())
	}
}

// Two Services with the same pods, one with the same number for TCP and UDP, and one port each.
func TestServicesShareTheirPods(t *testing.T) {
	c := rig.Shared(t)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
	both := c.Service("web", nil)
	same := func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{"app": "web"}
		s.Spec.Ports = s.Spec.Ports[:1]
	}
	tcp := c.Service("web-tcp", same)
	both.AwaitServers(client, one, two)
	c.AwaitServers(client, tcp.OnClusterIP(), rig.WaysTCP(), one, two)
	both.Delete()
	c.AwaitServers(client, tcp.OnClusterIP(), rig.WaysTCP(), one, two)
}

// The address of an external IP is on no node; the router brings it to one.
func TestAnExternalIPIsServedWhereItIsRoutedTo(t *testing.T) {
	c := rig.Shared(t)
	client, off := c.Client(1, "client"), c.Outside()
	one, two := c.Server("web", "one", 0), c.Server("web", "two", 2)
	v4, v6 := c.VIP(c.Node(0))
	c.Service("web", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{v4.String(), v6.String()} })
	for _, from := range []rig.Host{off, client, c.Node(2)} {
		c.AwaitServers(from, rig.AtAddresses(v4, v6, rig.ServicePort), rig.Ways(), one, two)
	}
}

// allocateLoadBalancerNodePorts false: an address of a load balancer without any NodePort. Source ranges come and go.
func TestALoadBalancerWithoutNodePortsAndWithSourceRanges(t *testing.T) {
	c := rig.Shared(t)
	c.MayDrop("drop_source_range")
	client, off, one := c.Client(0, "client"), c.Outside(), c.Server("web", "one", 2)
	v4, v6 := c.VIP(c.Node(0))
	at := rig.AtAddresses(v4, v6, rig.ServicePort)
	web := c.Service("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, ptr.To(false)
	})
	web.UpdateStatus(func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: v4.String()}, {IP: v6.String()}}
	})
	for _, p := range web.Get().Spec.Ports {
		if p.NodePort != 0 {
			t.Errorf("port %s has node port %d", p.Name, p.NodePort)
		}
	}
	c.AwaitServers(off, at, rig.Ways(), one)
	web.Update(func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{off.V4.String() + "/32", off.V6.String() + "/128"}
	})
	c.AwaitServers(off, at, rig.Ways(), one)
	c.AwaitSilence(client, at, rig.Ways())
	web.Update(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = nil })
	c.AwaitServers(client, at, rig.Ways(), one)
}
