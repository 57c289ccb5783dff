// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

func single(family corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{family}
	}
}

// C18: a Service gets its second family and loses it again, while the first goes on.
func TestAServiceGetsItsSecondFamilyWhileTheFirstGoesOn(t *testing.T) {
	for _, first := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		t.Run(string(first), func(t *testing.T) {
			c := rig.Shared(t)
			unallocated(c)
			client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
			web := c.Service("web", single(first))
			firstWays, secondWays, second := rig.Ways4(), rig.Ways6(), corev1.IPv6Protocol
			if first == corev1.IPv6Protocol {
				firstWays, secondWays, second = secondWays, firstWays, corev1.IPv4Protocol
			}
			c.AwaitServers(client, web.OnClusterIP(), firstWays, one, two)
			load := c.StartLoad(web.OnClusterIP(), firstWays, client)
			web.Update(func(s *corev1.Service) {
				s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicyRequireDualStack), []corev1.IPFamily{first, second}
			})
			web.AwaitServers(client, one, two)
			at := web.OnClusterIP()
			load.Round()
			web.Update(func(s *corev1.Service) {
				single(first)(s)
				s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
			})
			c.AwaitSilence(client, at, secondWays)
			load.Round()
			load.End()
		})
	}
}

// Addresses of a range that is added to the cluster while it runs.
func TestARangeOfServiceAddressesIsAdded(t *testing.T) {
	c := rig.Shared(t)
	unallocated(c)
	ranges := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "added"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.97.0.0/24", "fd97::/112"}},
	}
	cidrs := c.API.NetworkingV1().ServiceCIDRs()
	if _, err := cidrs.Create(t.Context(), ranges, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Await("the range is ready", func() bool {
		o, err := cidrs.Get(t.Context(), ranges.Name, metav1.GetOptions{})
		return err == nil && len(o.Status.Conditions) > 0 && o.Status.Conditions[0].Status == metav1.ConditionTrue
	})
	client, one := c.Client(0, "client"), c.Server("web", "one", 2)
	web := c.Service("web", func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.97.0.10", []string{"10.97.0.10", "fd97::10"}
	})
	web.AwaitServers(client, one)
	at := web.OnClusterIP()
	web.Delete()
	c.AwaitSilence(client, at, rig.Ways()) // it is a Service range: nobody's addresses there are not routed elsewhere
}
