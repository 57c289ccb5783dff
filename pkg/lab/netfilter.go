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
	_, err := ns.nft(rules, "-f", "-")
	return err
}

// NetfilterState is what nft lists of an object of the namespace: "counter", its family, table and name.
func (ns *Namespace) NetfilterState(object ...string) (string, error) {
	return ns.nft("", append([]string{"list"}, object...)...)
}

func (ns *Namespace) nft(input string, args ...string) (said string, err error) {
	return said, ns.Do(func() error {
		command := exec.Command("nft", args...)
		command.Stdin = strings.NewReader(input)
		out, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft %s in %s: %w: %s", strings.Join(args, " "), ns.Name, err, out)
		}
		said = string(out)
		return nil
	})
}
