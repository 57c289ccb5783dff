// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"net/netip"
	"slices"
)

// ethernet is what the kernel calls the header of most devices.
const ethernet = "ether"

// headerless are the kinds of devices whose packets start with the IP header: tun and wireguard, then tunnels of IP in IP
// and GRE, modems and PPP.
var headerless = []string{"none", "ipip", "tunnel6", "sit", "gre", "gre6", "rawip", "ppp"}

// tunnels lead to other nodes, with or without an address of their own.
var tunnels = []string{"vxlan", "geneve", "ipip", "ip6tnl", "gre", "ip6gre", "gretap", "ip6gretap", "sit", "wireguard", "tun", "xfrm", "vti", "vti6"}

// wired are the devices that lead to a network of hosts. Bridges do when one of these is in them: others have pods only.
var wired = []string{"device", "vlan", "bond", "team", "macvlan", "ipvlan"}

// layer3 tells whether packets of the device have no Ethernet header.
func (d device) layer3() bool { return slices.Contains(headerless, d.header) }

// network picks the network devices, in the order given: those over which clients off the node, and other nodes, are reached.
func (s selection) network(devices []device) []device {
	bridged := map[int]bool{} // bridges and bonds with a device that leads out
	for _, d := range devices {
		if slices.Contains(wired, d.kind) && !d.loopback {
			bridged[d.master] = true
		}
	}
	var chosen []device
	for _, d := range devices {
		if !d.loopback && !s.pod(d) && s.leadsOut(d, bridged[d.ifindex]) {
			chosen = append(chosen, d)
		}
	}
	return chosen
}

// outside are the devices by which hosts off the node may come, by ifindex: the network devices, and where these are named, those that would
// be found without that, too, but for bridges: pods may be behind one.
func (s selection) outside(devices []device) []int {
	found := s
	found.networks = nil
	all := []int{}
	for _, d := range s.network(devices) {
		all = append(all, d.ifindex)
	}
	for _, d := range found.network(devices) {
		if d.kind != "bridge" {
			all = append(all, d.ifindex)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// leadsOut is the rule. A device that waits keeps what it has.
func (s selection) leadsOut(d device, bridged bool) bool {
	if len(s.networks) > 0 {
		return matches(s.networks, d.name)
	}
	addressed := len(d.addresses) > 0
	switch {
	case d.header != ethernet && !d.layer3():
		return false
	case d.defaultRoute, s.holdsNode(d), s.waits(d):
		return true
	case slices.Contains(tunnels, d.kind):
		return addressed || !d.idle // the kernel's own tunl0, gre0 and so on are down
	}
	return addressed && (bridged || slices.Contains(wired, d.kind))
}

func (s selection) holdsNode(d device) bool {
	return slices.ContainsFunc(d.addresses, func(a address) bool { return slices.Contains(s.node, a.Addr()) })
}

// address is one of a device, with its prefix.
type address struct {
	netip.Prefix
	flags int // IFA_F_...
	scope int // RT_SCOPE_...
}
