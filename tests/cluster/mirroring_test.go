// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// gateway is a server outside of the cluster, as of the fixture: an object store on two hosts.
func gateway(c *rig.Cluster, ports []uint16, addresses ...string) *lab.Outside {
	c.T.Helper()
	return c.OutsideHost("gateway-"+addresses[0], func(o *lab.Outside) error {
		for _, text := range addresses {
			a := netip.MustParseAddr(text)
			if err := errors.Join(o.Own(a), o.Attract(a)); err != nil {
				return err
			}
			for _, port := range ports {
				if _, err := o.Serve(port, a); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// rgw is the Service of the fixture, as it is but for its namespace.
func rgw(c *rig.Cluster) *rig.Service {
	c.T.Helper()
	text, err := os.ReadFile("../testdata/objects/rgw.yaml")
	if err != nil {
		c.T.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---")
	var o corev1.Service
	if err := yaml.UnmarshalStrict([]byte(first), &o); err != nil || o.Name != "rgw" {
		c.T.Fatalf("read the fixture's Service: %q, %v", o.Name, err)
	}
	return c.Service(o.Name, func(s *corev1.Service) { s.Spec = o.Spec })
}

// byHand are Endpoints as somebody writes them.
func byHand(c *rig.Cluster, name string, subsets ...corev1.EndpointSubset) {
	c.T.Helper()
	o := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}, Subsets: subsets}
	if _, err := c.API.CoreV1().Endpoints(c.Namespace).Create(c.T.Context(), o, metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
}

func updateByHand(c *rig.Cluster, name string, change func(*corev1.Endpoints)) {
	c.T.Helper()
	endpoints := c.API.CoreV1().Endpoints(c.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := endpoints.Get(c.T.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(o)
		_, err = endpoints.Update(c.T.Context(), o, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		c.T.Fatal(err)
	}
}

func subset(port corev1.EndpointPort, addresses ...string) corev1.EndpointSubset {
	s := corev1.EndpointSubset{Ports: []corev1.EndpointPort{port}}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: a})
	}
	return s
}

// C1, A14: the Service without selector, with Endpoints by hand, which the controller mirrors into slices: two hosts that are no
// pods, on port 22 whatever targetPort says. NodePort 9000 is below the usual range. The slices follow the Endpoints through
// their life; Endpoints that are excluded from mirroring are no Endpoints here.
func TestEndpointsWrittenByHandAreMirroredAndServed(t *testing.T) {
	c := rig.Shared(t)
	client, off := c.Client(0, "client"), c.Outside()
	hosts := []*lab.Outside{gateway(c, []uint16{22}, "1.1.1.1"), gateway(c, []uint16{22}, "1.1.1.2")}
	one, two := hosts[0].Name, hosts[1].Name
	s := rgw(c)
	ssh := corev1.EndpointPort{Name: "rgw", Port: 22, Protocol: corev1.ProtocolTCP}
	byHand(c, "rgw", subset(ssh, "1.1.1.1", "1.1.1.2"))
	tcp := []rig.Way{{Network: "tcp"}}
	inside, onNode := rig.AtAddresses(s.ClusterIP(false), netip.Addr{}, 9000), rig.AtHost(c.Node(0), 9000)
	reached := func(want ...string) {
		t.Helper()
		c.AwaitNames(client, inside, tcp, want...)
		c.AwaitNames(c.Node(1), inside, tcp, want...)
		c.AwaitNames(off, onNode, tcp, want...)
	}
	reached(one, two)
	updateByHand(c, "rgw", func(e *corev1.Endpoints) { e.Subsets = []corev1.EndpointSubset{subset(ssh, "1.1.1.2")} })
	reached(two)
	updateByHand(c, "rgw", func(e *corev1.Endpoints) { e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"} })
	c.AwaitRefused(client, inside, tcp)
	updateByHand(c, "rgw", func(e *corev1.Endpoints) { e.Labels = nil })
	reached(two)
	if err := c.API.CoreV1().Endpoints(c.Namespace).Delete(t.Context(), "rgw", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.AwaitRefused(client, inside, tcp)
	c.AwaitRefused(off, onNode, tcp)
}

// A14: two subsets become slices with different ports, of both families, for the same address too.
func TestSubsetsWithDifferentPortsAreMirrored(t *testing.T) {
	c := rig.Shared(t)
	client := c.Client(0, "client")
	gateway(c, []uint16{2222, 3333}, "1.1.1.3", "fd98::2:3")
	s := c.Service("web", withoutSelector)
	byHand(c, "web",
		subset(corev1.EndpointPort{Name: "tcp", Port: 2222, Protocol: corev1.ProtocolTCP}, "1.1.1.3", "fd98::2:3"),
		subset(corev1.EndpointPort{Name: "udp", Port: 3333, Protocol: corev1.ProtocolUDP}, "1.1.1.3", "fd98::2:3"))
	at := s.OnClusterIP()
	c.AwaitAnswer(client, at, rig.WaysTCP(), func(a lab.Answer) bool { return a.Local.Port() == 2222 })
	c.AwaitAnswer(client, at, []rig.Way{{Network: "udp"}, {Network: "udp", Six: true}}, func(a lab.Answer) bool { return a.Local.Port() == 3333 })
}

// A5, C9: v1 Endpoints of a Service with selector are nobody's business: with them gone, and with others written in their place,
// the tables stay as they are and traffic goes on. The end of the cluster shows that no agent ever asked for any.
func TestEndpointsAreNotRead(t *testing.T) {
	c := rig.Shared(t)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	web.AwaitServers(client, one, two)
	web.AwaitChoice(one, two)
	endpoints := c.API.CoreV1().Endpoints(c.Namespace)
	c.Await("the controller made Endpoints", func() bool {
		e, err := endpoints.Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && len(e.Subsets) > 0
	})
	before := web.Rows()
	load := c.StartLoad(web.OnClusterIP(), rig.Ways(), client)
	for range 3 {
		if err := endpoints.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Await("the controller made Endpoints again", func() bool {
			_, err := endpoints.Get(t.Context(), "web", metav1.GetOptions{})
			return err == nil
		})
		load.Round()
	}
	load.End()
	if after := web.Rows(); after != before {
		t.Errorf("tables before:\n%s\nafter:\n%s", before, after)
	}
}
