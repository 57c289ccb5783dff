// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// places is a cluster with a client and a server on each node; n1 and n2 are in zone a, n3 in zone b.
type places struct {
	*rig.Cluster
	clients []*lab.Pod
	servers []*rig.Pod
	web     *rig.Service
}

func newPlaces(t *testing.T, distribution string) *places {
	p := &places{Cluster: rig.Shared(t)}
	for i := range 3 {
		p.clients = append(p.clients, p.Client(i, fmt.Sprintf("client-%d", i+1)))
		p.servers = append(p.servers, p.Server("web", fmt.Sprintf("web-%d", i+1), i))
	}
	p.web = p.Service("web", func(s *corev1.Service) {
		if distribution != "" {
			s.Spec.TrafficDistribution = &distribution
		}
	})
	return p
}

// reach compares who answers the client of each node.
func (p *places) reach(want ...[]*rig.Pod) {
	p.T.Helper()
	for i, servers := range want {
		p.web.AwaitServers(p.clients[i], servers...)
	}
}

type pods = []*rig.Pod

// The controller writes hints for zones. PreferClose is the older name of the same.
func TestPreferSameZoneKeepsTrafficInTheZone(t *testing.T) {
	for _, name := range []string{corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(t, name)
			one, two, three := p.servers[0], p.servers[1], p.servers[2]
			p.reach(pods{one, two}, pods{one, two}, pods{three})
			three.SetReady(false)
			p.reach(pods{one, two}, pods{one, two}, pods{one, two})
			three.SetReady(true)
			one.Terminate()
			p.reach(pods{two}, pods{two}, pods{three})
			p.web.Update(func(s *corev1.Service) { s.Spec.TrafficDistribution = nil })
			p.reach(pods{two, three}, pods{two, three}, pods{two, three})
		})
	}
}

func TestPreferSameNodeKeepsTrafficOnTheNodeThenInTheZone(t *testing.T) {
	p := newPlaces(t, corev1.ServiceTrafficDistributionPreferSameNode)
	one, two, three := p.servers[0], p.servers[1], p.servers[2]
	p.reach(pods{one}, pods{two}, pods{three})
	two.SetReady(false)
	p.reach(pods{one}, pods{one}, pods{three})
	three.Terminate()
	one.SetReady(false)
	two.SetReady(true)
	p.reach(pods{two}, pods{two}, pods{two})
	one.SetReady(true)
	p.reach(pods{one}, pods{two}, pods{one, two})
}

// A preference that is set on a Service that runs is in force for the next connection, and none is lost as it changes.
func TestATrafficDistributionIsChangedUnderLoad(t *testing.T) {
	p := newPlaces(t, "")
	one, two, three := p.servers[0], p.servers[1], p.servers[2]
	all := pods{one, two, three}
	p.reach(all, all, all)
	load := p.StartLoad(p.web.OnClusterIP(), rig.Ways(), p.clients[0], p.clients[2])
	for _, name := range []string{"PreferSameNode", "PreferSameZone", "PreferSameNode"} {
		p.web.Update(func(s *corev1.Service) { s.Spec.TrafficDistribution = ptr.To(name) })
		p.web.AwaitServers(p.clients[2], three)
		load.Round()
	}
	p.web.Update(func(s *corev1.Service) { s.Spec.TrafficDistribution = nil })
	p.reach(all, all, all)
	load.End()
}

// With the annotation the controller writes hints in proportion to the zones' CPUs, here two to one, if there are enough
// endpoints: two of three would be far from that.
func TestTopologyModeAutoSharesByTheZonesCPUs(t *testing.T) {
	p := newPlaces(t, "")
	one, two, three := p.servers[0], p.servers[1], p.servers[2]
	p.web.Update(func(s *corev1.Service) { s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"} })
	four, five, six := p.Server("web", "web-4", 0), p.Server("web", "web-5", 1), p.Server("web", "web-6", 2)
	near, far := pods{one, two, four, five}, pods{three, six}
	p.reach(near, near, far)
	p.web.Update(func(s *corev1.Service) { s.Annotations = nil })
	all := append(append(pods{}, near...), far...)
	p.reach(all, all, all)
}

// B15: the label of the client's own node.
func TestANodeThatMovesToAnotherZoneHasOtherNeighbours(t *testing.T) {
	p := newPlaces(t, corev1.ServiceTrafficDistributionPreferSameZone)
	p.servers[1].Terminate() // of the endpoints, the zone is what the controller saw last
	one, three := p.servers[0], p.servers[2]
	p.reach(pods{one}, pods{one}, pods{three})
	p.UpdateNode(p.Node(1), func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" })
	p.reach(pods{one}, pods{three}, pods{three})
	p.UpdateNode(p.Node(1), func(n *corev1.Node) { delete(n.Labels, corev1.LabelTopologyZone) })
	p.reach(pods{one}, pods{one, three}, pods{three})
}
