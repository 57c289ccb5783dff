// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"net/netip"
	"path"
	"slices"
)

// device is what the choice looks at.
type device struct {
	name         string
	ifindex      int
	veth         bool
	peerOutside  bool           // its other end is in another network namespace
	addresses    []netip.Prefix // without link-local ones
	defaultRoute bool
}

// selection chooses pod devices.
type selection struct {
	patterns []string     // by name; empty: by the rule
	node     []netip.Addr // addresses of this node; empty: not known
}

// pods picks the pod devices, in the order given.
func (s selection) pods(devices []device) []device {
	var chosen []device
	for _, d := range devices {
		if s.pod(d) {
			chosen = append(chosen, d)
		}
	}
	return chosen
}

func (s selection) pod(d device) bool {
	if len(s.patterns) > 0 {
		return slices.ContainsFunc(s.patterns, func(pattern string) bool {
			matched, _ := path.Match(pattern, d.name) // New checked the pattern
			return matched
		})
	}
	return d.veth && d.peerOutside && !d.defaultRoute && !s.nodeHas(d.addresses)
}

// nodeHas tells whether a device with these addresses may be one of the node's own. Some CNIs give the host's side of a
// pod's veth a gateway address, so that an address alone says nothing once the node's are known. While they are not, an
// address with its subnet counts, which those CNIs do not give.
func (s selection) nodeHas(addresses []netip.Prefix) bool {
	return slices.ContainsFunc(addresses, func(a netip.Prefix) bool {
		return slices.Contains(s.node, a.Addr()) || len(s.node) == 0 && !a.IsSingleIP()
	})
}
