// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The label keys that name a level of nearness; the others are labels like any.
const (
	labelHostname  = "kubernetes.io/hostname"
	labelZone      = "topology.kubernetes.io/zone"
	labelRegion    = "topology.kubernetes.io/region"
	labelOldZone   = "failure-domain.beta.kubernetes.io/zone"
	labelOldRegion = "failure-domain.beta.kubernetes.io/region"
)

// byKeys chooses among usable endpoints by labels of Nodes, as Service topology of Kubernetes 1.17 did
// (requirements B1 to B13): the first key that this node has, and for which a usable endpoint has the same value, decides. *
// matches every endpoint. When no key matches there is no endpoint for this node.
func (p *pool) byKeys(usable func(*candidate) bool, keys []string, node lb.Node) (choice, func(*candidate) bool) {
	for _, key := range keys {
		if key == lb.AnyTopology {
			c := choice{key: key}
			if len(keys) > 1 {
				c.note = lb.NoteNoKeyMatched
			}
			return c, nil
		}
		own, found := placeOf(node.Labels, key, node.Zone, node.Region)
		if !found {
			continue
		}
		same := func(c *candidate) bool {
			value, found := placeOf(c.Labels, key, c.Zone, c.Region)
			return found && value == own
		}
		if slices.ContainsFunc(p.winners, func(c *candidate) bool { return usable(c) && same(c) }) {
			return choiceOf(key), same
		}
	}
	none := func(*candidate) bool { return false }
	return choice{reason: lb.ReasonNoTopologyMatch, tier: lb.TierCluster, out: lb.ReasonNoTopologyMatch}, none
}

// placeOf is the value of a label of a Node. Zone and region are known of endpoints without their Node too, from their slice.
func placeOf(labels lb.Labels, key, zone, region string) (value string, found bool) {
	if value, found = labels.Get(key); found {
		return value, true
	}
	switch key {
	case labelZone:
		return zone, zone != ""
	case labelRegion:
		return region, region != ""
	}
	return "", false
}

// choiceOf names what a key stands for.
func choiceOf(key string) choice {
	switch key {
	case labelHostname:
		return choice{key: key, reason: lb.ReasonSameNode, tier: lb.TierNode, out: lb.ReasonOtherNode}
	case labelZone, labelOldZone:
		return choice{key: key, reason: lb.ReasonSameZone, tier: lb.TierZone, out: lb.ReasonOtherZone}
	case labelRegion, labelOldRegion:
		return choice{key: key, reason: lb.ReasonSameRegion, tier: lb.TierRegion, out: lb.ReasonOtherRegion}
	}
	return choice{key: key, reason: lb.ReasonSameLabel, tier: lb.TierCluster, out: lb.ReasonOtherLabel}
}

// byPlace chooses among ready endpoints by the node and the zone that they are in, whatever hints say; all, which is nil, when
// none is near. It is what hints of the distribution's name would do, of a controller that gives them to every endpoint.
func (p *pool) byPlace(d lb.Distribution, node lb.Node) (choice, func(*candidate) bool) {
	onNode := func(c *candidate) bool { return isLocal(c, node.Name) }
	inZone := func(c *candidate) bool { return c.Zone == node.Zone }
	switch {
	case d == lb.PreferSameNode && p.anyReady(onNode):
		return choice{reason: lb.ReasonSameNode, tier: lb.TierNode, out: lb.ReasonOtherNode}, onNode
	case node.Zone == "":
		return choice{note: lb.NoteNodeWithoutZone}, nil
	case p.anyReady(inZone):
		return choice{reason: lb.ReasonSameZone, tier: lb.TierZone, out: lb.ReasonOtherZone}, inZone
	}
	return choice{note: lb.NoteNoEndpointInZone}, nil
}
