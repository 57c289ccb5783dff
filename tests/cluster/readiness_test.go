// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// A7: publishNotReadyAddresses makes the controller call every endpoint ready, those that terminate included.
func TestPublishNotReadyAddressesIsToggledLive(t *testing.T) {
	c := rig.Shared(t)
	client := c.Client(0, "client")
	unready := c.NewPod(rig.PodOptions{App: "web", Name: "unready", Node: 2, NotReady: true})
	leaving := c.NewPod(rig.PodOptions{App: "web", Name: "leaving", Node: 1, NotReady: true})
	leaving.Terminate()
	web := c.Service("web", nil)
	for range 2 {
		c.AwaitRefused(client, web.OnClusterIP(), rig.Ways())
		c.AwaitRefused(c.Node(1), web.OnClusterIP(), rig.Ways())
		web.Update(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })
		web.AwaitServers(client, unready, leaving)
		web.AwaitServers(c.Node(1), unready, leaving)
		web.Update(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = false })
	}
}

// A Service without any pod refuses; so does one whose pods were evicted, or are not ready.
func TestWithoutAnyReadyPodConnectionsAreRefused(t *testing.T) {
	c := rig.Shared(t)
	client, off := c.Client(0, "client"), c.Outside()
	web := c.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort; nodePorts(s, 9130) })
	onNode := rig.AtHost(c.Node(0), 9130)
	refused := func() {
		t.Helper()
		c.AwaitRefused(client, web.OnClusterIP(), rig.Ways())
		c.AwaitRefused(c.Node(1), web.OnClusterIP(), rig.Ways())
		c.AwaitRefused(off, onNode, rig.Ways())
	}
	refused()
	one := c.Server("web", "one", 2)
	web.AwaitServers(client, one)
	c.AwaitServers(off, onNode, rig.Ways(), one)
	one.SetReady(false)
	refused()
	one.SetReady(true)
	web.AwaitServers(client, one)
	one.UpdateStatus(func(s *corev1.PodStatus) { // with the condition, as a kubelet does: the controller does not look at a pod for its phase alone
		s.Phase, s.Reason = corev1.PodFailed, "Evicted"
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodFailed", LastTransitionTime: metav1.Now()}}
	})
	refused()
	web.AwaitServers(client, c.Server("web", "two", 1))
}

// A8, A9: with traffic policy Cluster the endpoints that terminate serve when there are no ready ones, and only then, from
// everywhere and to everybody.
func TestTerminatingEndpointsServeWhenNoneIsReady(t *testing.T) {
	c := rig.Shared(t)
	client, off := c.Client(0, "client"), c.Outside()
	one, two := c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort; nodePorts(s, 9131) })
	reach := func(want ...*rig.Pod) {
		t.Helper()
		for _, from := range []rig.Host{client, c.Node(1), c.Node(2)} {
			web.AwaitServers(from, want...)
		}
		for n := range 3 {
			c.AwaitServers(off, rig.AtHost(c.Node(n), 9131), rig.Ways(), want...)
		}
	}
	reach(one, two)
	one.Terminate()
	reach(two)
	two.Terminate()
	reach(one, two)
	one.SetReady(false) // it does not serve any more
	reach(two)
	two.SetReady(false)
	c.AwaitRefused(client, web.OnClusterIP(), rig.Ways())
	c.AwaitRefused(off, rig.AtHost(c.Node(1), 9131), rig.Ways())
}

// With traffic policy Local it is those of the node; where there are none packets are dropped, and health checks fail.
func TestLocalTerminatingEndpointsServeWhenNoLocalOneIsReady(t *testing.T) {
	c := rig.Shared(t)
	c.MayDrop("drop_no_local_endpoints")
	here, there, off := c.Client(0, "here"), c.Client(1, "there"), c.Outside()
	one, two := c.Server("web", "one", 0), c.Server("web", "two", 2)
	local := corev1.ServiceInternalTrafficPolicyLocal
	web := c.Service("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, &local, corev1.ServiceExternalTrafficPolicyLocal
		nodePorts(s, 9132)
	})
	health := uint16(web.Get().Spec.HealthCheckNodePort)
	healthy := func(node int, want int) {
		t.Helper()
		for _, six := range []bool{false, true} {
			c.AwaitStatus(off, netip.AddrPortFrom(c.Node(node).Address(six), health), want)
		}
	}
	onNode := func(n int) rig.At { return rig.AtHost(c.Node(n), 9132) }
	reach := func() {
		t.Helper()
		web.AwaitServers(here, one)
		web.AwaitServers(c.Node(0), one)
		c.AwaitServers(off, onNode(0), rig.Ways(), one)
		c.AwaitServers(off, onNode(2), rig.Ways(), two)
	}
	reach()
	healthy(0, 200)
	c.AwaitSilence(there, web.OnClusterIP(), rig.WaysTCP())
	c.AwaitSilence(off, onNode(1), rig.WaysTCP())
	healthy(1, 503)
	one.Terminate()
	reach()
	healthy(0, 503)
	healthy(2, 200)
	one.SetReady(false)
	c.AwaitSilence(here, web.OnClusterIP(), rig.WaysTCP())
	c.AwaitSilence(off, onNode(0), rig.WaysTCP())
}
