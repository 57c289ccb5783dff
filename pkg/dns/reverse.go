// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"slices"
	"strings"

	wire "github.com/miekg/dns"
)

// reverse answers a name of a reverse zone. A name above an address exists, too (RFC 8020).
func (a *answer) reverse() {
	prefix, ok := prefixOf(a.name)
	if !ok {
		return
	}
	if !prefix.IsSingleIP() {
		a.exists = a.view.clusterIPs.below(prefix) || a.view.endpoints.below(prefix)
		return
	}
	for _, name := range a.reverseNames(prefix.Addr()) {
		a.exists = true
		if a.qtype == wire.TypePTR {
			a.records = append(a.records, &wire.PTR{Hdr: header(a.name, wire.TypePTR, a.options.TTL), Ptr: name})
		}
	}
}

// reverseNames are the names that an address has: the Service whose ClusterIP it is, else its endpoints' in every Service.
func (a *answer) reverseNames(ip netip.Addr) (names []string) {
	if len(a.options.Zones) == 0 {
		return nil
	}
	zone := a.options.Zones[0]
	if owners := a.view.owners(&a.view.clusterIPs, ip); len(owners) > 0 {
		return []string{serviceName(owners[0].service.Name, "", zone)}
	}
	for _, owner := range a.view.owners(&a.view.endpoints, ip) {
		for _, c := range owner.backends(a.view.options.Node, has(ip)) {
			if name := serviceName(owner.service.Name, c.host(), zone); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// The trees of reverse names (RFC 1035 3.5, RFC 3596 2.5).
const (
	reverse4 = ".in-addr.arpa."
	reverse6 = ".ip6.arpa."
)

// prefixOf reads the prefix that the labels of a reverse name stand for: bytes in decimal or half bytes in hexadecimal, the last first.
func prefixOf(name string) (netip.Prefix, bool) {
	name = strings.ToLower(name)
	text, four := strings.CutSuffix(name, reverse4)
	if !four {
		var six bool
		if text, six = strings.CutSuffix(name, reverse6); !six {
			return netip.Prefix{}, false
		}
	}
	labels := strings.Split(text, ".")
	slices.Reverse(labels)
	if four {
		return prefix4(labels)
	}
	return prefix6(labels)
}

func prefix4(labels []string) (netip.Prefix, bool) {
	if len(labels) > 4 {
		return netip.Prefix{}, false
	}
	full := append(slices.Clone(labels), "0", "0", "0", "0")[:4]
	ip, err := netip.ParseAddr(strings.Join(full, "."))
	return netip.PrefixFrom(ip, 8*len(labels)), err == nil && ip.Is4()
}

func prefix6(labels []string) (netip.Prefix, bool) {
	if len(labels) > 32 {
		return netip.Prefix{}, false
	}
	var bytes [16]byte
	for i, label := range labels {
		digit := strings.Index("0123456789abcdef", label)
		if len(label) != 1 || digit < 0 {
			return netip.Prefix{}, false
		}
		bytes[i/2] |= byte(digit << (4 * (1 - i%2)))
	}
	return netip.PrefixFrom(netip.AddrFrom16(bytes), 4*len(labels)), true
}
