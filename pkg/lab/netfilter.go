// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os/exec"
	"strings"
)

// clusterRules are what CNIs and kube-proxy install on nodes: pods that speak to the world outside do so with the node's
// address, and packets of no connection that the node knows are dropped.
const clusterRules = `
table inet cluster {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
		ip6 saddr fd24::/16 ip6 daddr != fd24::/16 masquerade
	}
	chain forward {
		type filter hook forward priority filter;
		ct state invalid drop
	}
	chain input {
		type filter hook input priority filter;
		ct state invalid drop
	}
}
`

// Netfilter loads nftables rules into the namespace (nft -f).
func (ns *Namespace) Netfilter(rules string) error {
	return ns.Do(func() error {
		command := exec.Command("nft", "-f", "-")
		command.Stdin = strings.NewReader(rules)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("load nftables rules into %s: %w: %s", ns.Name, err, out)
		}
		return nil
	})
}
