// SPDX-License-Identifier: Apache-2.0

package kubeproxy_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/tests/privileged"
)

// Whatever Look would see otherwise is news, whoever keeps the rules.
func TestRulesThatComeAreNews(t *testing.T) {
	for name, c := range map[string]struct{ tool, make string }{
		"nftables":             {"nft", "nft add table ip kube-proxy"},
		"iptables":             {"iptables", "iptables -t nat -N KUBE-SERVICES"},
		"legacy iptables":      {"iptables-legacy", "iptables-legacy -w -t nat -N KUBE-SERVICES"},
		"a legacy chain more":  {"iptables-legacy", "iptables-legacy -w -t nat -N KUBE-MORE"},
		"the device of IPVS":   {"ip", "ip link add kube-ipvs0 type veth peer name other"},
		"NAT of somebody else": {"nft", "nft add table inet cni; nft add chain inet cni postrouting '{type nat hook postrouting priority 100;}'"},
	} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				if _, err := exec.LookPath(c.tool); err != nil {
					t.Logf("left out: there is no program %s here", c.tool)
					return
				}
				if name == "a legacy chain more" {
					shell(t, "iptables-legacy -w -t nat -N OTHER")
				}
				news, err := kubeproxy.Listen()
				if err != nil {
					t.Fatal(err)
				}
				defer news.Close()
				news.PollOften()
				shell(t, c.make)
				if err := news.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
