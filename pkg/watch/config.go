// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
)

// primary is the word that stands for the node's first address of each family in NodeConfig.NodePortAddresses.
const primary = "primary"

// Validate says what is wrong with the configuration. Sources leave out what is.
func (c NodeConfig) Validate() error {
	if messages := validation.IsValidLabelValue(c.ProxyName); len(messages) > 0 {
		return fmt.Errorf("read service proxy name: %q: %s", c.ProxyName, messages[0])
	}
	if len(c.NodePortAddresses) == 1 && c.NodePortAddresses[0] == primary {
		return nil
	}
	for _, s := range c.NodePortAddresses {
		if _, ok := parsePrefix(s); !ok {
			return fmt.Errorf("read nodeport addresses: %q: must be a CIDR, or %q alone", s, primary)
		}
	}
	return nil
}

// NodePortIPs are the addresses that answer NodePorts, sorted: of those of the Node, and of those that the host has besides;
// for "primary" the Node's alone count. The rules are kube-proxy's (service-semantics.md 1.4): the CIDRs are taken by family,
// a family without any has all addresses.
func (c NodeConfig) NodePortIPs(node, host []netip.Addr) []netip.Addr {
	if len(c.NodePortAddresses) == 1 && c.NodePortAddresses[0] == primary {
		return sorted(firstOfFamilies(node))
	}
	addresses := slices.Concat(node, host)
	var prefixes []netip.Prefix
	for _, s := range c.NodePortAddresses {
		if prefix, ok := parsePrefix(s); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	var out []netip.Addr
	for _, addr := range addresses {
		sameFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() }
		contains := func(p netip.Prefix) bool { return p.Contains(addr) }
		if !slices.ContainsFunc(prefixes, sameFamily) || slices.ContainsFunc(prefixes, contains) {
			out = append(out, addr)
		}
	}
	return sorted(out)
}

// firstOfFamilies is the first address, and the first of the other family.
func firstOfFamilies(addresses []netip.Addr) (out []netip.Addr) {
	for _, addr := range addresses {
		if !slices.ContainsFunc(out, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }) {
			out = append(out, addr)
		}
	}
	return out
}

func sorted(addresses []netip.Addr) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}
