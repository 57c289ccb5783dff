// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

// bigCluster gives a source everything a first list would: Services of ten endpoints each, on nodes of three zones.
func bigCluster(services int) (c *cluster, lists map[kind][]any) {
	c = Kubernetes(nil, NodeConfig{Name: "n1"}, slog.New(slog.DiscardHandler)).(*cluster)
	c.ev, lists = &counter{}, map[kind][]any{kindServiceCIDR: {}}
	for i := range 500 {
		lists[kindNode] = append(lists[kindNode], apiNode(fmt.Sprintf("n%d", i), string("abc"[i%3])))
	}
	for i := range services {
		name := fmt.Sprintf("web-%d", i)
		slice := apiSlice(name+"-a", name)
		for j := range 10 {
			e := apiSlice("", "", fmt.Sprintf("10.%d.%d.%d", i/256%256, i%256, j)).Endpoints[0]
			*e.NodeName = fmt.Sprintf("n%d", (i+j)%500)
			slice.Endpoints = append(slice.Endpoints, e)
		}
		lists[kindSlice] = append(lists[kindSlice], slice)
		lists[kindService] = append(lists[kindService], apiService(name, func(s *corev1.Service) {
			s.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", i/256%256, i%256)
		}))
	}
	return c, lists
}

func (c *cluster) list(lists map[kind][]any) {
	for k, list := range lists {
		_ = (&sink{cluster: c, kind: k}).Replace(list, "")
	}
}

// BenchmarkFirstList takes 10,000 Services and hands them out once.
func BenchmarkFirstList(b *testing.B) {
	_, lists := bigCluster(10000)
	for b.Loop() {
		c, _ := bigCluster(0)
		c.list(lists)
		for _, name := range c.Services() {
			c.Input(name)
		}
	}
}

// BenchmarkSliceEvent is one changed slice in a cluster of 10,000 Services, and its Service's new input.
func BenchmarkSliceEvent(b *testing.B) {
	c, lists := bigCluster(10000)
	c.list(lists)
	s := &sink{cluster: c, kind: kindSlice}
	slice := apiSlice("web-7-a", "web-7", "10.0.7.0", "10.0.7.1")
	name := lb.ServiceName{Namespace: "default", Name: "web-7"}
	for ready := true; b.Loop(); ready = !ready {
		slice.Endpoints[0].Conditions.Ready = new(ready)
		_ = s.Update(slice)
		c.Input(name)
	}
}

// BenchmarkNodeEvent is a Node that changes its zone in such a cluster.
func BenchmarkNodeEvent(b *testing.B) {
	c, lists := bigCluster(10000)
	c.list(lists)
	s := &sink{cluster: c, kind: kindNode}
	for i := 0; b.Loop(); i++ {
		_ = s.Update(apiNode("n7", string("ab"[i%2])))
	}
}
