// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

// label is the value of a Node's label. The configuration may say another zone for the own Node.
func (s *store) label(name, key string) (string, bool) {
	if key == corev1.LabelTopologyZone && name == s.cfg.Name && s.cfg.Zone != "" {
		return s.cfg.Zone, true
	}
	if known := s.nodes[name]; known != nil {
		return known.labels.get(key)
	}
	return "", false
}

// labelsOf are those labels of a Node that are asked for.
func (s *store) labelsOf(name string, keys []string) lb.Labels {
	found := make(map[string]string, len(keys))
	for _, key := range keys {
		if value, ok := s.label(name, key); ok {
			found[key] = value
		}
	}
	return lb.NewLabels(found)
}

// ownLabels are all labels of the own Node.
func (s *store) ownLabels() lb.Labels {
	var out lb.Labels
	if own := s.nodes[s.cfg.Name]; own != nil {
		out = own.labels.all()
	}
	if s.cfg.Zone == "" {
		return out
	}
	out = slices.DeleteFunc(out, func(l lb.Label) bool { return l.Key == corev1.LabelTopologyZone })
	out = append(out, lb.Label{Key: corev1.LabelTopologyZone, Value: s.cfg.Zone})
	slices.SortFunc(out, lb.Label.Compare)
	return out
}

// noteLabels notes which labels of a Node are others now.
func (c *changes) noteLabels(name string, old, now nodeLabels) {
	keys := now.differences(old)
	if len(keys) == 0 {
		return
	}
	if c.relabelled == nil {
		c.relabelled = map[string][]string{}
	}
	c.relabelled[name] = append(c.relabelled[name], keys...)
}

// touchKeyed marks the Services whose topology keys name a label that changed, of the own Node or of one that an endpoint is on.
// Services with topology keys are few, and Nodes seldom get other labels: their endpoints are looked through.
func (s *store) touchKeyed(c *changes) {
	if len(c.relabelled) == 0 {
		return
	}
	for name, service := range s.services {
		keys := service.more().TopologyKeys
		concerned := func(node string) bool { return overlap(c.relabelled[node], keys) }
		if len(keys) > 0 && (concerned(s.cfg.Name) || s.anyNode(name, concerned)) {
			c.service(name)
		}
	}
}

// anyNode asks about the Nodes of a Service's endpoints.
func (s *store) anyNode(name lb.ServiceName, wanted func(string) bool) bool {
	for _, slice := range s.owned[name] {
		for _, e := range slice.endpoints {
			if node := s.locate(e.At.Value(), e.Addr()).Node; node != "" && wanted(node) {
				return true
			}
		}
	}
	return false
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(one string) bool { return slices.Contains(b, one) })
}
