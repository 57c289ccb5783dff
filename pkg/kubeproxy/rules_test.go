// SPDX-License-Identifier: Apache-2.0

package kubeproxy_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/tests/privileged"
)

// shell runs commands in the calling thread's network namespace.
func shell(t *testing.T, commands string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", commands).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", commands, err, out)
	}
}

func look(t *testing.T) kubeproxy.Rules {
	t.Helper()
	rules, err := kubeproxy.Look()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// Each of kube-proxy's modes is found, and the commands that are given for it take away what was found and nothing else.
func TestKubeProxysRulesAreFoundAndRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		make, other string // rules of kube-proxy, and how somebody else's are listed
		tool, want  string
	}{
		"nftables": {"nft add table ip kube-proxy; nft add table ip6 kube-proxy; nft add chain ip kube-proxy nat-output '{type nat hook output priority -100;}'; nft add table inet mine",
			"nft list tables", "nft", "nftables table ip kube-proxy, nftables table ip6 kube-proxy"},
		"iptables": {"iptables -t nat -N KUBE-SERVICES; iptables -t nat -A PREROUTING -j KUBE-SERVICES; iptables -t nat -A POSTROUTING -j MASQUERADE; ip6tables -t nat -N KUBE-SERVICES",
			"iptables -t nat -S", "iptables", "iptables chain KUBE-SERVICES in ip nat, iptables chain KUBE-SERVICES in ip6 nat"},
		"legacy iptables": {"iptables-legacy -w -t nat -N KUBE-SERVICES; iptables-legacy -w -t nat -A PREROUTING -j KUBE-SERVICES; iptables-legacy -w -t nat -A POSTROUTING -j MASQUERADE",
			"iptables-legacy -w -t nat -S", "iptables-legacy", "legacy iptables chain KUBE-SERVICES in ip nat"},
	} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				if _, err := exec.LookPath(c.tool); err != nil {
					t.Logf("left out: there is no program %s here", c.tool)
					return
				}
				if rules := look(t); rules.Any() || rules.NAT {
					t.Fatalf("an empty namespace has %+v", rules)
				}
				shell(t, c.make)
				rules := look(t)
				if got := strings.Join(rules.Marks(), ", "); got != c.want || !rules.NAT || !rules.Any() {
					t.Errorf("found %q, want %q; %+v", got, c.want, rules)
				}
				for _, command := range rules.Remove() {
					shell(t, command)
				}
				if rules := look(t); rules.Any() {
					t.Errorf("still there: %s", rules.Marks())
				}
				if out, err := exec.Command("sh", "-c", c.other).Output(); err != nil || !strings.Contains(string(out), "mine") && !strings.Contains(string(out), "MASQUERADE") {
					t.Errorf("others' rules: %v: %s", err, out)
				}
			})
		})
	}
}

// NAT of others keeps kube-proxy's connections alive.
func TestNATOfOthersIsSeen(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		shell(t, "nft add table inet cni; nft add chain inet cni forward '{type filter hook forward priority 0;}'")
		if look(t).NAT {
			t.Error("a filter is taken for NAT")
		}
		shell(t, "nft add chain inet cni postrouting '{type nat hook postrouting priority 100;}'")
		if rules := look(t); !rules.NAT || rules.Any() {
			t.Errorf("found %+v", rules)
		}
	})
}

func TestTheDeviceOfIPVSIsFound(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		shell(t, "ip link add kube-ipvs0 type veth peer name other") // a kernel may have no dummy devices
		if rules := look(t); !rules.IPVS || !slices.Equal(rules.Marks(), []string{"device kube-ipvs0"}) {
			t.Errorf("found %+v", rules)
		}
	})
}
