// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"
)

// parseAddr reads an IP address as kube-proxy does: leading zeros are allowed and mean nothing (010.0.0.1 is 10.0.0.1),
// and an IPv4 address written as IPv6 is IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" { // nearly all, and a third of the cost
		return addr.Unmap(), true
	}
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return addr.Unmap(), ok
}

// parsePrefix reads a CIDR with the same tolerance; bits after the prefix are cleared, white space around it is cut
// (spec.loadBalancerSourceRanges).
func parsePrefix(s string) (netip.Prefix, bool) {
	_, network, err := netutils.ParseCIDRSloppy(strings.TrimSpace(s))
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(network.IP)
	bits, _ := network.Mask.Size()
	if addr.Is4In6() { // then there are 96 bits at least, or the mask would have cut the ffff
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits), ok
}

// special says why no traffic can be sent to an address by way of a Service; "" if it can. The rules are those of the API
// server (ValidateNonSpecialIP), and multicast altogether.
func special(addr netip.Addr) string {
	switch {
	case addr.IsUnspecified():
		return "may not be unspecified"
	case addr.IsLoopback():
		return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case addr.IsLinkLocalUnicast():
		return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case addr.IsMulticast():
		return "may not be multicast"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "may not be broadcast"
	}
	return ""
}

// inOrder sorts prefixes and removes those that come twice.
func inOrder(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}
