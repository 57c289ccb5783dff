// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// B19: internalTrafficPolicy is toggled live, for pods and nodes as clients, for pods with and without the host's network.
func TestInternalTrafficPolicyIsToggledLive(t *testing.T) {
	c := rig.Shared(t)
	c.MayDrop("drop_no_local_endpoints")
	one, host := c.Server("web", "one", 0), c.NewPod(rig.PodOptions{App: "web", Name: "host", Node: 2, HostNetwork: true})
	first, second, third := c.Client(0, "first"), c.Client(1, "second"), c.Client(2, "third")
	web := c.Service("web", nil)
	everywhere := []rig.Host{first, second, third, c.Node(0), c.Node(1), c.Node(2)}
	set := func(p corev1.ServiceInternalTrafficPolicy) {
		t.Helper()
		web.Update(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &p })
	}
	for range 2 {
		for _, from := range everywhere {
			web.AwaitServers(from, one, host)
		}
		set(corev1.ServiceInternalTrafficPolicyLocal)
		for _, from := range []rig.Host{first, c.Node(0)} {
			web.AwaitServers(from, one)
		}
		for _, from := range []rig.Host{third, c.Node(2)} {
			web.AwaitServers(from, host)
		}
		c.AwaitSilence(second, web.OnClusterIP(), rig.WaysTCP())
		c.AwaitUnanswered(c.Node(1), web.OnClusterIP(), rig.Ways())
		set(corev1.ServiceInternalTrafficPolicyCluster)
	}
}

// externalTrafficPolicy is toggled live: with Local a node has its own pods alone, which see their clients as they are; clients
// in the cluster reach all pods nevertheless. The health check comes and goes with it.
func TestExternalTrafficPolicyIsToggledLive(t *testing.T) {
	c := rig.Shared(t)
	c.MayDrop("drop_no_local_endpoints")
	one, two := c.Server("web", "one", 0), c.Server("web", "two", 2)
	client, off := c.Client(0, "client"), c.Outside()
	web := c.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer; nodePorts(s, 9150) })
	onNode := func(n int) rig.At { return rig.AtHost(c.Node(n), 9150) }
	for range 2 {
		for n := range 3 {
			c.AwaitServers(off, onNode(n), rig.Ways(), one, two)
		}
		web.Update(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
		c.AwaitServers(off, onNode(0), rig.Ways(), one)
		c.AwaitServers(off, onNode(2), rig.Ways(), two)
		c.AwaitAnswer(off, onNode(0), rig.Ways(), func(a lab.Answer) bool { return a.Client.Addr() == off.Address(a.Client.Addr().Is6()) })
		c.AwaitSilence(off, onNode(1), rig.WaysTCP())
		c.AwaitServers(client, onNode(0), rig.Ways(), one, two)
		port := uint16(web.Get().Spec.HealthCheckNodePort)
		c.AwaitStatus(off, onNodePort(c, 0, port), 200)
		c.AwaitStatus(off, onNodePort(c, 1, port), 503)
		web.Update(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster })
		c.AwaitNoServer(off, onNodePort(c, 0, port))
	}
}

// Everything at once on one Service: a preference, an affinity and a policy that are set together.
func TestPreferenceAndPolicyGoTogether(t *testing.T) {
	c := rig.Shared(t)
	one, two, three := c.Server("web", "one", 0), c.Server("web", "two", 1), c.Server("web", "three", 2)
	off := c.Outside()
	web := c.Service("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferSameZone)
		nodePorts(s, 9151)
	})
	web.AwaitServers(c.Client(0, "a"), one, two)
	web.AwaitServers(c.Client(2, "b"), three)
	for n, want := range []*rig.Pod{one, two, three} {
		c.AwaitServers(off, rig.AtHost(c.Node(n), 9151), rig.Ways(), want)
	}
}

func onNodePort(c *rig.Cluster, node int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(c.Node(node).V4, port)
}
