// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// Session affinity holds from the next connection on, and ends with the next one; through the ClusterIP for a pod, through a
// NodePort and a load balancer's address for a client outside.
func TestSessionAffinityIsToggledLive(t *testing.T) {
	c := rig.Shared(t)
	client, off := c.Client(1, "client"), c.Outside()
	one, two, three := c.Server("web", "one", 0), c.Server("web", "two", 1), c.Server("web", "three", 2)
	v4, v6 := c.VIP(c.Node(0))
	web := c.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer; nodePorts(s, 9120) })
	web.UpdateStatus(func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: v4.String()}, {IP: v6.String()}}
	})
	places := []struct {
		from rig.Host
		at   rig.At
	}{
		{client, web.OnClusterIP()}, {off, rig.AtHost(c.Node(0), 9120)}, {off, rig.AtAddresses(v4, v6, rig.ServicePort)},
	}
	for range 2 {
		for _, p := range places {
			c.AwaitServers(p.from, p.at, rig.Ways(), one, two, three)
		}
		web.Update(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
		for _, p := range places {
			c.AwaitSameServer(p.from, p.at, rig.Ways())
		}
		web.Update(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityNone })
	}
}
