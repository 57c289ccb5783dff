// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// CVE-2020-8554: 198.51.100.7 is nobody's, .8 is on a device here, .1 is a Node's and on a device, 10.96.0.1 another Service's.
func TestExternalIPsAreServedAsThePolicySays(t *testing.T) {
	svc := public()
	svc.Ports, svc.LoadBalancerIPs = svc.Ports[:1], nil
	svc.ExternalIPs = ips("198.51.100.7", "198.51.100.8", "192.0.2.1", "10.96.0.1")
	in := lb.Input{Service: svc, Taken: lb.Taken{ips("192.0.2.1")[0]: "the address of Node n1", ips("10.96.0.1")[0]: "in 10.96.0.0/16, a range of ClusterIPs"}}
	node := n1()
	node.NodePortIPs, node.HostIPs = nil, ips("198.51.100.8", "192.0.2.1")
	for policy, want := range map[lb.ExternalIPPolicy]struct{ served, problems string }{
		"":                    {"10.96.0.1 192.0.2.1 198.51.100.7 198.51.100.8", "10.96.0.1 192.0.2.1"},
		lb.ExternalIPsAllowed: {"10.96.0.1 192.0.2.1 198.51.100.7 198.51.100.8", "10.96.0.1 192.0.2.1"},
		lb.ExternalIPsLocal:   {"198.51.100.8", "10.96.0.1: 192.0.2.1: 198.51.100.7:"},
		lb.ExternalIPsDenied:  {"", "10.96.0.1: 192.0.2.1: 198.51.100.7: 198.51.100.8:"},
	} {
		node.ExternalIPs = policy
		d := decide.Decide(in, node)
		var served, problems []string
		for _, f := range d.Frontends {
			if f.Kind == lb.KindExternalIP {
				served = append(served, f.Key.Address.Addr().String())
			}
		}
		for _, p := range d.Problems {
			address, _, _ := strings.Cut(p.Message, " ")
			problems = append(problems, address)
			if p.Field != "spec.externalIPs" || p.Object != "Service default/web" {
				t.Errorf("problem %+v", p)
			}
		}
		equal(t, string(policy)+" serves", strings.Join(served, " "), want.served)
		equal(t, string(policy)+" has problems with", strings.Join(problems, " "), want.problems)
	}
}

// Where this node's pods ask for names (--dns-address), nobody answers them by spec.externalIPs.
func TestNoPolicyServesExternalIPsWhereNamesAreAskedFor(t *testing.T) {
	svc := public()
	svc.Ports, svc.LoadBalancerIPs, svc.ExternalIPs = svc.Ports[:1], nil, ips("169.254.20.10", "198.51.100.7")
	node := n1()
	node.HostIPs = ips("169.254.20.10", "198.51.100.7")
	for _, policy := range []lb.ExternalIPPolicy{"", lb.ExternalIPsAllowed, lb.ExternalIPsLocal} {
		node.ExternalIPs = policy
		d := decide.Decide(lb.Input{Service: svc, Reserved: ips("169.254.20.10", "fd00:20::10")}, node)
		for _, f := range d.Frontends {
			if f.Key.Address.Addr() == ips("169.254.20.10")[0] {
				t.Errorf("%s: %v is served", policy, f.Key)
			}
		}
		if len(d.Problems) != 1 || !strings.HasPrefix(d.Problems[0].Message, "169.254.20.10: not served, ") {
			t.Errorf("%s: problems %v", policy, d.Problems)
		}
	}
}
