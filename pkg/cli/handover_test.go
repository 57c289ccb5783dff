// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/kubeproxy"
)

func TestTheHandOverSaysItsNextStep(t *testing.T) {
	nft := kubeproxy.Rules{NFTables: []string{"ip", "ip6"}, NAT: true}
	open := protocolCounts{TCP: 3, UDP: 1}
	for _, c := range []struct {
		name  string
		state handoverState
		want  string // among the texts and commands of the first step
	}{
		{"nothing is here", handoverState{}, "Nothing to hand over"},
		{"kube-proxy alone", handoverState{KubeProxy: kubeProxyState{found: nft}}, "kubectl apply -k manifests/overlays/handover"},
		{"both run", handoverState{Installed: true, KubeProxy: kubeProxyState{Running: "process 7", found: nft}}, "delete daemonset kube-proxy"},
		{"a trial", handoverState{Installed: true, Proxy: "nearlb", KubeProxy: kubeProxyState{Running: "process 7", found: nft}}, "this is a trial"},
		{"its connections are open", handoverState{Installed: true, KubeProxy: kubeProxyState{found: nft, Connections: open}}, "3 connections"},
		{"its rules are left", handoverState{Installed: true, KubeProxy: kubeProxyState{found: nft, Connections: protocolCounts{UDP: 1}}}, "nft delete table ip kube-proxy"},
		{"its UDP clients are left", handoverState{Installed: true, KubeProxy: kubeProxyState{found: nft, Sockets: 1}}, "nearlb handover --end-udp"},
		{"IPVS", handoverState{Installed: true, KubeProxy: kubeProxyState{found: kubeproxy.Rules{IPVS: true}}}, "nftables mode first"},
		{"done", handoverState{Installed: true}, "Done"},
		{"draining to nobody", handoverState{Installed: true, Draining: true}, "Start kube-proxy"},
		{"draining", handoverState{Installed: true, Draining: true, KubeProxy: kubeProxyState{found: nft}, Nearlb: open}, "4 connections"},
		{"drained", handoverState{Installed: true, Draining: true, KubeProxy: kubeProxyState{found: nft}}, "nearlb cleanup"},
		{"drained, and pods ask for names", handoverState{Installed: true, Draining: true, names: true, KubeProxy: kubeProxyState{found: nft}}, "169.254.20.10"},
	} {
		steps := nextSteps(c.state)
		if text := steps[0].Text + " " + strings.Join(steps[0].Commands, "; "); !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
		if c.state.KubeProxy.found.Any() && steps[0].Brief == "" {
			t.Errorf("%s: nothing for nearlb check", c.name)
		}
	}
}

// While a node drains nobody answers at --dns-address, whether kube-proxy is there or not.
func TestANodeThatDrainsIsToldOfPodsThatAskForNames(t *testing.T) {
	for _, kubeProxy := range []kubeProxyState{{}, {found: kubeproxy.Rules{NFTables: []string{"ip"}, NAT: true}}} {
		for _, names := range []bool{true, false} {
			told := 0
			for _, step := range nextSteps(handoverState{Installed: true, Draining: true, names: names, KubeProxy: kubeProxy}) {
				told += strings.Count(step.Text, "169.254.20.10")
			}
			if told == 1 != names {
				t.Errorf("kube-proxy is there: %v, names are answered: %v: told %d times", kubeProxy.found.Any(), names, told)
			}
		}
	}
}

// An empty variable of a script is no request to leave all as it is.
func TestTheHandOverGoesToNearlbOrKubeProxy(t *testing.T) {
	for _, to := range []string{"nobody", ""} {
		var out, errOut strings.Builder
		if status := run(t.Context(), []string{"handover", "--to=" + to}, nil, &out, &errOut); status != command.ExitUsage || !strings.Contains(errOut.String(), "want nearlb or kube-proxy") {
			t.Errorf("--to %q: status %d: %s", to, status, errOut.String())
		}
	}
}

// kube-proxy that just starts has rules of one family before those of the other: new connections of the other would be refused.
func TestNothingGoesToKubeProxyBeforeItTakesWhatIsServed(t *testing.T) {
	v4 := kubeproxy.Frontend{Protocol: "TCP", Address: netip.MustParseAddrPort("10.96.0.1:443")}
	v6 := kubeproxy.Frontend{Protocol: "TCP", Address: netip.MustParseAddrPort("[fd96::1]:443")}
	frontends := map[kubeproxy.Frontend]bool{v4: true, v6: true}
	if err := nobodyTakes(func(kubeproxy.Frontend) bool { return true }, frontends); err != nil {
		t.Error(err)
	}
	err := nobodyTakes(func(f kubeproxy.Frontend) bool { return f == v4 }, frontends)
	if err == nil || !strings.Contains(err.Error(), "no rules for TCP [fd96::1]:443") {
		t.Errorf("without rules of IPv6: %v", err)
	}
}
