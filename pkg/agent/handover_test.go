// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/maps"
)

func TestTheProgramsAskForWhatTheRulesCanHave(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules kubeproxy.Rules
		want  maps.Yield
	}{
		{"no rule", kubeproxy.Rules{}, maps.YieldNothing},
		{"a CNI's masquerade", kubeproxy.Rules{NAT: true}, maps.YieldOld},
		{"kube-proxy's rules", kubeproxy.Rules{NFTables: []string{"ip"}, NAT: true}, maps.YieldOld | maps.YieldNew},
		{"rules that may not be read", kubeproxy.Rules{Hidden: []string{"ip"}, NAT: true}, maps.YieldOld | maps.YieldNew},
	} {
		if got := yieldTo(c.rules); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// Where the host translates connections, status and check say that connection tracking cannot be asked, and what follows.
func TestPortsThatAMasqueradeMayHaveTooAreTold(t *testing.T) {
	unknown, ports := errors.New("no connection tracking"), maps.DefaultSNATPorts()
	for name, rules := range map[string]kubeproxy.Rules{"a CNI's": {NAT: true}, "kube-proxy's": {NFTables: []string{"ip6"}, NAT: true}} {
		err := SharedPorts(rules, unknown, ports)
		if !errors.Is(err, unknown) || !strings.Contains(err.Error(), "61000-65535") || !strings.Contains(err.Error(), "1024-60999") {
			t.Errorf("%s rules: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"no rules": SharedPorts(kubeproxy.Rules{}, unknown, ports), "known": SharedPorts(kubeproxy.Rules{NAT: true}, nil, ports),
		"no SNAT": SharedPorts(kubeproxy.Rules{NAT: true}, unknown, maps.PortRange{}),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An agent that takes kube-proxy's place says when it cannot see its connections; a trial, which never can, takes none.
func TestConnectionsThatCannotBeToldApartAreTroubleInKubeProxysPlaceOnly(t *testing.T) {
	rules, unknown := kubeproxy.Rules{NFTables: []string{"ip"}, NAT: true}, errors.New("no connection tracking")
	if err := blindness(rules, unknown, ""); !errors.Is(err, unknown) {
		t.Errorf("in its place: %v", err)
	}
	for name, err := range map[string]error{
		"trial": blindness(rules, unknown, "nearlb"), "no rules": blindness(kubeproxy.Rules{NAT: true}, unknown, ""), "known": blindness(rules, nil, ""),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
