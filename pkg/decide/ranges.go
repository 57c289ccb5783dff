// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// allowed are the sources that may reach a Service's load balancer addresses; an empty family is unrestricted.
type allowed struct{ v4, v6 []netip.Prefix }

func (a allowed) of(ip netip.Addr) []netip.Prefix {
	if ip.Is4() {
		return a.v4
	}
	return a.v6
}

// sourceRanges reads spec.loadBalancerSourceRanges as kube-proxy does: each family has its own ranges, a family with a
// /0 or without any range is unrestricted. When a range has the node's own address, the load balancer addresses are
// sources too: a host network load balancer on this node sends from them.
func sourceRanges(ranges []netip.Prefix, balancers []netip.Addr, node lb.Node) allowed {
	var a allowed
	for _, p := range ranges {
		p, ok := canonicalPrefix(p)
		switch {
		case !ok:
		case p.Addr().Is4():
			a.v4 = append(a.v4, p)
		default:
			a.v6 = append(a.v6, p)
		}
	}
	a.v4 = completeRanges(a.v4, netip.Addr.Is4, balancers, node)
	a.v6 = completeRanges(a.v6, netip.Addr.Is6, balancers, node)
	return a
}

// completeRanges finishes the ranges of one family. The node's own address is the first that it has of the family.
func completeRanges(ranges []netip.Prefix, family func(netip.Addr) bool, balancers []netip.Addr, node lb.Node) []netip.Prefix {
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil
	}
	own := slices.IndexFunc(node.Addresses, family)
	inRange := func(p netip.Prefix) bool { return p.Contains(node.Addresses[own]) }
	if own >= 0 && slices.ContainsFunc(ranges, inRange) {
		for _, ip := range balancers {
			if family(ip) {
				ranges = append(ranges, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges)
}
