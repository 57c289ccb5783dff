// SPDX-License-Identifier: Apache-2.0

package kubeproxy_test

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/tests/privileged"
)

// Of each family one that kube-proxy may serve.
var frontends = map[string]kubeproxy.Frontend{
	"ip":  {Protocol: "TCP", Address: netip.MustParseAddrPort("10.96.0.1:443")},
	"ip6": {Protocol: "TCP", Address: netip.MustParseAddrPort("[fd96::1]:443")},
}

// taken are the families of which kube-proxy takes new connections.
func taken(t *testing.T) string {
	t.Helper()
	serving, err := look(t).Serving()
	if err != nil {
		t.Fatal(err)
	}
	var families []string
	for _, family := range []string{"ip", "ip6"} {
		if serving.Takes(frontends[family]) {
			families = append(families, family)
		}
	}
	return strings.Join(families, " ")
}

// kube-proxy in mode iptables makes its chains one after the other, and then all rules of a family at once; `iptables -F` leaves the chains.
// What has no rule serves nobody.
func TestAChainOfKubeProxyServesNobodyBeforeItHasRules(t *testing.T) {
	for name, c := range map[string]struct{ tool, empty, rules, flush string }{
		"nftables": {"nft", "nft add table ip kube-proxy; nft add table ip6 kube-proxy; nft add chain ip kube-proxy services",
			"nft add rule FAMILY kube-proxy services accept", "nft flush chain FAMILY kube-proxy services"},
		"iptables": {"iptables", `for p in iptables ip6tables; do $p -t nat -N KUBE-SERVICES; $p -t nat -A PREROUTING -j KUBE-SERVICES; $p -t nat -N KUBE-NODEPORTS
			$p -t nat -A KUBE-NODEPORTS -j RETURN; done`, "PROGRAM -t nat -A KUBE-SERVICES -j KUBE-NODEPORTS", "PROGRAM -t nat -F KUBE-SERVICES"},
		"legacy iptables": {"iptables-legacy", `for p in iptables-legacy ip6tables-legacy; do $p -w -t nat -N KUBE-AFTER; $p -w -t nat -N KUBE-SERVICES; $p -w -t nat -N KUBE-ZONE
			$p -w -t nat -A PREROUTING -j KUBE-SERVICES; $p -w -t nat -A KUBE-AFTER -j RETURN; $p -w -t nat -A KUBE-ZONE -j RETURN; done`,
			"PROGRAM-legacy -w -t nat -A KUBE-SERVICES -p tcp -m tcp --dport 443 -j KUBE-ZONE", "PROGRAM-legacy -w -t nat -F KUBE-SERVICES"},
	} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				if _, err := exec.LookPath(c.tool); err != nil {
					t.Logf("left out: there is no program %s here", c.tool)
					return
				}
				of := func(command, family string) string {
					return strings.NewReplacer("FAMILY", family, "PROGRAM", map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family]).Replace(command)
				}
				shell(t, strings.ReplaceAll(c.empty, "add chain ip kube-proxy services", "add chain ip kube-proxy services; nft add chain ip6 kube-proxy services"))
				if got := taken(t); got != "" || !look(t).Any() {
					t.Errorf("without rules it takes %q of %v", got, look(t).Marks())
				}
				shell(t, of(c.rules, "ip6"))
				if got := taken(t); got != "ip6" {
					t.Errorf("with rules of IPv6 it takes %q", got)
				}
				shell(t, of(c.rules, "ip"))
				if got := taken(t); got != "ip ip6" {
					t.Errorf("with rules of both it takes %q", got)
				}
				shell(t, of(c.flush, "ip6"))
				if got := taken(t); got != "ip" {
					t.Errorf("without those of IPv6 it takes %q", got)
				}
			})
		})
	}
}

// Where the kernel has no IPVS, its device is one that was left.
func TestADeviceOfIPVSThatWasLeftServesNobody(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Skip("this kernel has IPVS")
	}
	privileged.Namespace(t, func(*os.File) {
		shell(t, "ip link add kube-ipvs0 type veth peer name other; ip address add 10.96.0.1/32 dev kube-ipvs0")
		if got := taken(t); got != "" {
			t.Errorf("it takes %q", got)
		}
	})
}

// The list is in the form of Linux' ip_vs_info_seq_show.
func TestVirtualServersOfIPVSTakeTheirFrontendsAlone(t *testing.T) {
	serving, err := kubeproxy.ServingBy(strings.NewReader(`IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr ` + `
  -> AC1F0002:192B      Masq    1      3          0         
UDP  [fd96:0000:0000:0000:0000:0000:0000:000a]:0035 rr persistent 10800 FFFFFFFF
FWM  00000007 wlc ` + `
`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"TCP 10.96.0.1:443": true, "UDP 10.96.0.1:443": false, "TCP 10.96.0.1:80": false, "TCP 10.96.0.2:443": false,
		"UDP [fd96::a]:53": true, "TCP [fd96::a]:53": false, "TCP 172.31.0.2:6443": false, "TCP 127.0.0.1:30080": true,
	} {
		protocol, address, _ := strings.Cut(text, " ")
		if got := serving.Takes(kubeproxy.Frontend{Protocol: protocol, Address: netip.MustParseAddrPort(address)}); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	if _, err := kubeproxy.ServingBy(strings.NewReader("TCP  0A600001 rr\n")); err == nil {
		t.Error("a virtual server without a port is read")
	}
}
