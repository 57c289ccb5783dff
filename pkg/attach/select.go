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
	peerOutside  bool         // its other end is in another network namespace
	addresses    []netip.Addr // without link-local ones
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
// pod's veth a gateway address, so that an address alone says nothing once the node's are known.
func (s selection) nodeHas(addresses []netip.Addr) bool {
	if len(s.node) == 0 {
		return len(addresses) > 0
	}
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(s.node, a) })
}
