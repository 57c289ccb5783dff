// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// canonical gives one spelling to each address: ::ffff:10.0.0.1 is 10.0.0.1, and no address has a zone.
func canonical(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func canonicalPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(canonical(a.Addr()), a.Port())
}

// canonicalPrefix is the prefix in its address's family, masked; the second result tells that it is one at all.
func canonicalPrefix(p netip.Prefix) (netip.Prefix, bool) {
	if !p.IsValid() {
		return netip.Prefix{}, false
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// addresses are the valid ones of the list in canonical spelling, sorted, each once.
func addresses(list []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if a.IsValid() {
			out = append(out, canonical(a))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// canonicalNode spells the node's addresses like everything else. The order of Addresses means something and stays.
func canonicalNode(n lb.Node) lb.Node {
	own := make([]netip.Addr, 0, len(n.Addresses))
	for _, a := range n.Addresses {
		if a.IsValid() {
			own = append(own, canonical(a))
		}
	}
	n.Addresses = own
	n.NodePortIPs, n.HostIPs = addresses(n.NodePortIPs), addresses(n.HostIPs)
	return n
}
