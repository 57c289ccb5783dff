// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"
)

// Network is what the kernel says of a node's addresses.
type Network struct {
	Devices []NetworkDevice // network devices, by ifindex
	Outside []int           // ifindexes of devices by which hosts off the node may come, those that --net-devices leaves out too
	Local   []netip.Addr    // addresses of this host on any device, in order; without loopback and link-local ones
	Peers   []PodDevice     // pod devices that a packet can be handed past to the pod, by ifindex; nil without Options.Peers
	Others  []PodDevice     // pod devices that are none of these (patterns name them), by ifindex; nil without Options.Peers
}

// PodDevice is the host's side of what leads to a pod.
type PodDevice struct {
	Name    string
	Ifindex int
}

// NetworkDevice is a device that leads to clients off the node and to other nodes.
type NetworkDevice struct {
	Name      string
	Ifindex   int
	Addresses []netip.Addr // those that the kernel prefers as a source come first; without link-local ones
	// Lasting are those of them that are of a network and of global scope, and are not about to go: neither deprecated nor temporary. An address
	// of its own length is often another node's soon (a virtual one).
	Lasting []netip.Addr
}

// networkOf collects the addresses that can be used.
func networkOf(devices, chosen []device, outside []int) Network {
	n := Network{Devices: []NetworkDevice{}, Outside: outside, Local: []netip.Addr{}}
	for _, d := range chosen {
		n.Devices = append(n.Devices, NetworkDevice{d.name, d.ifindex, usable(d.addresses), lasting(d.addresses)})
	}
	slices.SortFunc(n.Devices, func(a, b NetworkDevice) int { return cmp.Compare(a.Ifindex, b.Ifindex) })
	for _, d := range devices {
		n.Local = append(n.Local, usable(d.addresses)...)
	}
	slices.SortFunc(n.Local, netip.Addr.Compare)
	n.Local = slices.Compact(n.Local)
	return n
}

// peersOf tells those of pods' devices that are veths, whose other side is in another namespace, from others.
func peersOf(pods []device) (peers, others []PodDevice) {
	peers, others = []PodDevice{}, []PodDevice{}
	for _, d := range pods {
		if d.veth && d.peerOutside {
			peers = append(peers, PodDevice{d.name, d.ifindex})
		} else {
			others = append(others, PodDevice{d.name, d.ifindex})
		}
	}
	byIfindex := func(a, b PodDevice) int { return cmp.Compare(a.Ifindex, b.Ifindex) }
	slices.SortFunc(peers, byIfindex)
	slices.SortFunc(others, byIfindex)
	return peers, others
}

// usable lists addresses in the order in which the kernel takes them for a source: of global scope first, then those that
// are neither deprecated, secondary nor temporary. Addresses that duplicate detection has not passed are nobody's yet.
func usable(all []address) []netip.Addr {
	const pending = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	known := slices.DeleteFunc(slices.Clone(all), func(a address) bool {
		return a.Addr().IsLoopback() || a.Addr().IsUnspecified() || a.flags&pending != 0 && a.flags&unix.IFA_F_OPTIMISTIC == 0
	})
	slices.SortStableFunc(known, func(a, b address) int {
		return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.flags&unix.IFA_F_DEPRECATED, b.flags&unix.IFA_F_DEPRECATED),
			cmp.Compare(a.flags&unix.IFA_F_SECONDARY, b.flags&unix.IFA_F_SECONDARY)) // IPv6 has the same bit for temporary ones
	})
	addresses := []netip.Addr{}
	for _, a := range known {
		addresses = append(addresses, a.Addr())
	}
	return addresses
}

// lasting lists those that NetworkDevice.Lasting is of.
func lasting(all []address) []netip.Addr {
	return usable(slices.DeleteFunc(slices.Clone(all), func(a address) bool {
		temporary := a.Addr().Is6() && a.flags&unix.IFA_F_TEMPORARY != 0 // IPv4 has the same bit for secondary ones, which are as good
		return a.IsSingleIP() || a.scope != unix.RT_SCOPE_UNIVERSE || a.flags&unix.IFA_F_DEPRECATED != 0 || temporary
	}))
}

// tellNetwork passes on what differs from the last time.
func (m *Manager) tellNetwork(n Network) {
	if m.options.Network == nil || m.network != nil && reflect.DeepEqual(*m.network, n) {
		return
	}
	m.network = &n
	m.options.Network(n)
}
