// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/lb"
)

func overflowing(name string) *corev1.Service {
	return apiService(name, func(s *corev1.Service) {
		s.Annotations = map[string]string{annotationOverflow: "20%", annotationDistribution: string(lb.PreferSameZone)}
	})
}

// sized is a Node with processors, which may be text such as "3500m".
func sized(name, zone, processors string) *corev1.Node {
	n := apiNode(name, zone)
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse(processors)}
	return n
}

func apply(t *testing.T, s *store, objects ...runtime.Object) {
	t.Helper()
	for _, o := range objects {
		converted, refusal := convert(o)
		if refusal != nil {
			t.Fatal(refusal)
		}
		s.apply([]object{converted}, nil, &changes{})
	}
}

// zonesOf is what the Service's decision knows of zones.
func zonesOf(t *testing.T, s Source, name string) string {
	return fmt.Sprint(input(t, s, "default", name).Zones)
}

// An overflow is decided by the processors of all Nodes, from the start and as they come, change and go; other Services hear nothing of it.
func TestAnOverflowFollowsTheProcessorsOfZones(t *testing.T) {
	n2 := sized("n2", "b", "3500m")
	withAPI(t, nil, func(a *api) {
		a.told("")
		same(t, "zones", zonesOf(t, a.source, "web"), "[{a 4000} {b 3500}]")
		same(t, "of a plain Service", zonesOf(t, a.source, "plain"), "[]")
		a.setNode(sized("n2", "b", "8"))
		a.told("web")
		same(t, "zones, with a larger Node", zonesOf(t, a.source, "web"), "[{a 4000} {b 8000}]")
		n2.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse("8")}
		n2.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		a.setNode(n2)
		a.told("web")
		same(t, "zones, where one is not heard of", zonesOf(t, a.source, "web"), "[{a 4000}]")
		n2.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}}
		a.setNode(n2)
		a.told("")
	}, overflowing("web"), apiService("plain"), sized("n1", "a", "4"), n2)
}

// As long as not all Nodes are known a zone would seem to have all clients: the overflow waits for them.
func TestAnOverflowThatComesLaterWaitsForTheNodes(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		a.setService(overflowing("web"))
		synctest.Wait()
		same(t, "zones", zonesOf(t, a.source, "web"), "[{a 4000} {b 2000}]")
	}, apiService("plain"), sized("n1", "a", "4"), sized("n2", "b", "2"))
	s := newStore(NodeConfig{Name: "n1"})
	s.allNodes = false
	apply(t, s, overflowing("web"), sized("n1", "a", "4"))
	same(t, "zones, with one Node of two", zonesOf(t, loaded{s}, "web"), "[]")
	same(t, "problems", len(input(t, loaded{s}, "default", "web").Problems), 0)
}

// Which Nodes have clients, and how many of them.
func TestProcessorsOfANode(t *testing.T) {
	ready := func(is corev1.ConditionStatus) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
		}
	}
	for _, row := range []struct {
		name       string
		processors string
		change     func(*corev1.Node)
		want       uint64
	}{
		{"plain", "4", nil, 4000},
		{"ready", "1500m", ready(corev1.ConditionTrue), 1500},
		{"not ready", "4", ready(corev1.ConditionFalse), 0},
		{"silent", "4", ready(corev1.ConditionUnknown), 0},
		{"a control plane", "4", func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, 0},
		{"leaving", "4", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: taintToBeDeleted}} }, 0},
		{"says what it has alone", "4", func(n *corev1.Node) { n.Status.Capacity, n.Status.Allocatable = n.Status.Allocatable, nil }, 4000},
		{"says nothing", "4", func(n *corev1.Node) { n.Status.Allocatable = nil }, 0},
		{"less than none", "-4", nil, 0},
		{"more than there can be", "9223372036854775807", nil, maxProcessors},
	} {
		n := sized("n2", "b", row.processors)
		if row.change != nil {
			row.change(n)
		}
		same(t, row.name, processors(n), row.want)
	}
}

func TestNodesThatSayNothingOfProcessorsAreAProblem(t *testing.T) {
	s := newStore(NodeConfig{Name: "n1"})
	apply(t, s, overflowing("web"), apiNode("n1", "a"))
	in := input(t, loaded{s}, "default", "web")
	same(t, "problems", fmt.Sprint(in.Problems), fmt.Sprint([]lb.Problem{noProcessors(in.Service.Name)}))
}
