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
	kind         string // as `ip -details link` has it; "device" for hardware
	header       string // what is in front of the IP header, as the kernel names it: "ether", "none"
	loopback     bool
	idle         bool // down, or without a carrier
	master       int  // ifindex of the bridge or bond that it belongs to; 0: none
	veth         bool
	peerOutside  bool      // its other end is in another network namespace
	vlans        bool      // VLAN devices are on it
	addresses    []address // without link-local ones
	defaultRoute bool
}

// selection chooses the devices that get programs.
type selection struct {
	patterns []string       // of pod devices by name; empty: by the rule
	networks []string       // of network devices by name; empty: by the rule
	node     []netip.Addr   // addresses of this node; empty: not known
	kept     map[int]bool   // network devices of the last Sync, or of an earlier agent before the first
	left     map[int]string // kinds of the devices that an earlier agent left with programs
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

// pod decides by the patterns, where there are any. A device that a pattern of network devices names is none by the rule.
func (s selection) pod(d device) bool {
	if len(s.patterns) > 0 {
		return matches(s.patterns, d.name)
	}
	return d.veth && d.peerOutside && !d.defaultRoute && !s.nodeHas(d) && !matches(s.networks, d.name) && !s.waits(d)
}

// waits tells whether a network device stays one for now: it is down, or without a carrier, and its address and its routes
// may be gone and come back; or an earlier agent, which knew the node's addresses, left it.
func (s selection) waits(d device) bool {
	return d.idle && s.kept[d.ifindex] || len(s.node) == 0 && s.left[d.ifindex] == kindNetwork
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, _ := path.Match(pattern, name) // New checked the pattern
		return matched
	})
}

// nodeHas tells whether a device may be one of the node's own by its addresses. Some CNIs give the host's side of a pod's veth
// a gateway address, so that an address alone says nothing once the node's are known. While they are not, an address with its
// subnet counts, which most of those CNIs do not give, unless an earlier agent knew better.
func (s selection) nodeHas(d device) bool {
	unknown := len(s.node) == 0 && s.left[d.ifindex] != kindPod
	return s.holdsNode(d) || unknown && slices.ContainsFunc(d.addresses, func(a address) bool { return !a.IsSingleIP() })
}
