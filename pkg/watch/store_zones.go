// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

// labelsControlPlane are those of Nodes that run no clients to speak of, as the EndpointSlice controller counts for topology hints.
var labelsControlPlane = []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// processors are those that pods of a Node may use, in thousandths: none of a Node that is not ready, leaves, or is a control plane's.
func processors(in *corev1.Node) uint64 {
	for _, label := range labelsControlPlane {
		if _, is := in.Labels[label]; is {
			return 0
		}
	}
	for _, c := range in.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return 0
		}
	}
	if isLeaving(in) {
		return 0
	}
	cpu, told := in.Status.Allocatable[corev1.ResourceCPU]
	if !told {
		cpu = in.Status.Capacity[corev1.ResourceCPU]
	}
	if cpu.Value() > maxProcessors/1000 { // whose thousandths may be no number
		return maxProcessors
	}
	return uint64(max(cpu.MilliValue(), 0))
}

// maxProcessors is a million for one Node, in thousandths: more is a mistake, and sums of it shall stay numbers.
const maxProcessors = 1_000_000_000

// countProcessors counts a Node's in its zone, or takes them away.
func (s *store) countProcessors(before, after *node, c *changes) {
	old, now := deref(before), deref(after)
	if old.processors == now.processors && (old.zone == now.zone || now.processors == 0) {
		return
	}
	s.processors[now.zone] += now.processors // unsigned numbers may wrap between the two
	if s.processors[old.zone] -= old.processors; s.processors[old.zone] == 0 {
		delete(s.processors, old.zone)
	}
	c.zones = true
}

// touchOverflowing marks the Services whose decision depends on the processors of zones, if some have others and all are known.
func (s *store) touchOverflowing(c *changes) {
	if c.zones && s.allNodes {
		s.markOverflowing(c)
	}
}

func (s *store) markOverflowing(c *changes) {
	for name := range s.picky {
		if s.services[name].more().Overflow.Given {
			c.service(name)
		}
	}
}

// zonesNow are the zones with processors, sorted by name; none as long as some Nodes may not be known.
func (s *store) zonesNow() []lb.Zone {
	if !s.allNodes {
		return nil
	}
	zones := make([]lb.Zone, 0, len(s.processors))
	for name, n := range s.processors {
		if n > 0 {
			zones = append(zones, lb.Zone{Name: name, Processors: n})
		}
	}
	slices.SortFunc(zones, func(a, b lb.Zone) int { return cmp.Compare(a.Name, b.Name) })
	return zones
}

// knowAllNodes notes whether all Nodes are known as they are, not some of them or their metadata alone.
func (s *store) knowAllNodes(all bool, c *changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.allNodes == all {
		return
	}
	s.allNodes = all
	s.markOverflowing(c)
}

// noProcessors says why an overflow has no effect: the Nodes are known, and none says what it has.
func noProcessors(name lb.ServiceName) lb.Problem {
	return lb.Problem{
		Object: objectKey{kindService, name.Namespace, name.Name}.String(), Field: "metadata.annotations[" + annotationOverflow + "]",
		Message: "has no effect: no Node that runs pods says its processors (status.allocatable.cpu)",
	}
}
