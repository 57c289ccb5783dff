// SPDX-License-Identifier: Apache-2.0

package precedence

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// asks is a decision of a Service that asks for one frontend.
func asks(name string, kind lb.Kind, at string) lb.Decision {
	service := lb.ServiceName{Namespace: "default", Name: name}
	key := lb.FrontendKey{Address: netip.MustParseAddrPort(at), Protocol: lb.TCP}
	return lb.Decision{Service: service, Frontends: []lb.Frontend{{Key: key, Port: lb.PortName{Service: service, Protocol: lb.TCP}, Kind: kind}}}
}

func held(d lb.Decision) lb.Decision { d.Held = true; return d }

func onHost(d lb.Decision) lb.Decision { d.Frontends[0].OnHost = true; return d }

func TestOneServiceHasWhatSeveralAskFor(t *testing.T) {
	for _, row := range []struct {
		name     string
		all      []lb.Decision
		problems []string // "Service that has a problem, word of its message"
	}{
		{"nobody else asks", []lb.Decision{asks("a", lb.KindClusterIP, "10.96.0.1:80"), asks("b", lb.KindClusterIP, "10.96.0.1:81")}, nil},
		{"the kind decides before the name", []lb.Decision{asks("a", lb.KindNodePort, "192.0.2.1:80"), asks("b", lb.KindExternalIP, "192.0.2.1:80"), asks("c", lb.KindLoadBalancer, "192.0.2.1:80")},
			[]string{"a belongs to Service default/c (LoadBalancer)", "b belongs to Service default/c (LoadBalancer)"}},
		{"the name decides between equals", []lb.Decision{asks("b", lb.KindClusterIP, "[2001:db8::1]:80"), asks("a", lb.KindClusterIP, "[2001:db8::1]:80")},
			[]string{"b belongs to Service default/a (ClusterIP)"}},
		{"a Service that is gone comes last", []lb.Decision{held(asks("a", lb.KindClusterIP, "10.96.0.1:80")), asks("b", lb.KindExternalIP, "10.96.0.1:80")},
			[]string{"a belongs to Service default/b (ExternalIP)"}},
		{"an IPv4 address is one, however it is written", []lb.Decision{asks("a", lb.KindClusterIP, "10.96.0.1:80"), asks("b", lb.KindClusterIP, "[::ffff:10.96.0.1]:80")},
			[]string{"b belongs to Service default/a (ClusterIP)"}},
		{"an external IP is another's address", []lb.Decision{asks("a", lb.KindExternalIP, "10.96.0.1:81"), asks("b", lb.KindClusterIP, "10.96.0.1:80")},
			[]string{"a is ClusterIP of Service default/b"}},
		{"two external IPs share an address", []lb.Decision{asks("a", lb.KindExternalIP, "192.0.2.1:81"), asks("b", lb.KindExternalIP, "192.0.2.1:80")}, nil},
		{"a NodePort takes no address", []lb.Decision{asks("a", lb.KindExternalIP, "192.0.2.1:81"), asks("b", lb.KindNodePort, "192.0.2.1:80")}, nil},
		{"nor does an address of the node", []lb.Decision{asks("a", lb.KindExternalIP, "192.0.2.1:81"), onHost(asks("b", lb.KindLoadBalancer, "192.0.2.1:80"))}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			for range 2 {
				found := Problems(row.all)
				if len(found) != len(row.problems) {
					t.Fatalf("problems %+v, want %q", found, row.problems)
				}
				for i, p := range found {
					loser, message, _ := strings.Cut(row.problems[i], " ")
					if p.Object != "Service default/"+loser || p.Field == "" || !strings.Contains(p.Message, message) {
						t.Errorf("problem %+v, want %q", p, row.problems[i])
					}
				}
				slices.Reverse(row.all)
			}
		})
	}
}
