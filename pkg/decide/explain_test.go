// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

func reasons(d lb.Decision) string {
	var out []string
	for _, e := range d.Endpoints {
		sign := "-"
		if e.Selected {
			sign = "+"
		}
		out = append(out, fmt.Sprintf("%s%v %s", sign, e.Address.Addr(), e.Reason))
	}
	return strings.Join(out, ", ")
}

// C20: every endpoint of every slice has a reason.
func TestEveryEndpointSaysWhyItIsInOrOut(t *testing.T) {
	internalLocal, externalLocal := web(), public()
	internalLocal.Internal = lb.PolicyLocal
	externalLocal.External = lb.PolicyLocal
	bothLocal := externalLocal
	bothLocal.Internal = lb.PolicyLocal
	const states = `
		10.1.0.1 ready node=n2
		10.1.0.2 leaving node=n2
		10.1.0.3 dead node=n2
		10.1.0.4 unready node=n2
		10.1.0.5 published node=n2`
	for _, row := range []struct {
		name string
		svc  lb.Service
		text string
		want string
	}{
		{"states", web(), states,
			"+10.1.0.1 all, -10.1.0.2 is-terminating, -10.1.0.3 not-serving, -10.1.0.4 not-ready, +10.1.0.5 all"},
		{"hints for zones", web(), "10.1.0.1 ready forZone=a\n10.1.0.2 ready forZone=b",
			"+10.1.0.1 same-zone, -10.1.0.2 other-zone"},
		{"hints for nodes", web(), "10.1.0.1 ready forNode=n1\n10.1.0.2 ready forNode=n2",
			"+10.1.0.1 same-node, -10.1.0.2 other-node"},
		{"terminating fallback", web(), "10.1.0.1 leaving\n10.1.0.2 dead", "+10.1.0.1 terminating, -10.1.0.2 not-serving"},
		{"iTP Local", internalLocal, states + "\n10.1.0.6 ready node=n1\n10.1.0.7 leaving node=n1",
			"-10.1.0.1 other-node, -10.1.0.2 other-node, -10.1.0.3 not-serving, -10.1.0.4 not-ready, -10.1.0.5 other-node, " +
				"+10.1.0.6 local, -10.1.0.7 is-terminating"},
		{"iTP Local, local terminating", internalLocal, "10.1.0.1 leaving node=n1\n10.1.0.2 leaving node=n2",
			"+10.1.0.1 local-terminating, -10.1.0.2 other-node"},
		{"eTP Local: the cluster list explains", externalLocal, "10.1.0.1 ready node=n1 forZone=b\n10.1.0.2 ready node=n2 forZone=a\n10.1.0.3 ready node=n3 forZone=b",
			"+10.1.0.1 local, +10.1.0.2 same-zone, -10.1.0.3 other-zone"},
		{"iTP and eTP Local: the local list explains", bothLocal, "10.1.0.1 ready node=n1\n10.1.0.2 ready node=n2",
			"+10.1.0.1 local, +10.1.0.2 all"},
		{"copies: equal ones share the answer, others lose", web(), `
			10.1.0.1 ready slice=a
			10.1.0.1 ready slice=b
			10.1.0.1 leaving slice=c`, "+10.1.0.1 all, +10.1.0.1 all, -10.1.0.1 duplicate"},
		{"A1: no port of that name or protocol", web(), "10.1.0.1 ready port=other:1\n10.1.0.1 ready udp",
			"-10.1.0.1 no-service-port, -10.1.0.1 no-service-port"},
		{"A6: no frontend of the family", web(), "10.1.0.1 ready\n2001:db8::1 ready", "+10.1.0.1 all, -2001:db8::1 no-frontend-of-family"},
		{"a port number 0 means all ports, which nobody serves", web(), "10.1.0.1 ready port=http:0", "-10.1.0.1 no-address"},
	} {
		t.Run(row.name, func(t *testing.T) {
			equal(t, "reasons", reasons(decided(t, row.svc, n1(), row.text)), row.want)
		})
	}
}

// A6: endpoints that no frontend leads to take no place in the tables.
func TestBackendsAreThoseThatFrontendsLeadTo(t *testing.T) {
	d := decided(t, web(), n1(), "10.1.0.1 ready\n10.1.0.2 unready\n2001:db8::1 ready\n10.1.0.3 ready port=other:1")
	if len(d.Backends) != 2 || d.Backends[0].State != lb.Active || d.Backends[1].State != lb.Quiet {
		t.Errorf("backends %+v, want 10.1.0.1 active and 10.1.0.2 quiet", d.Backends)
	}
}

func TestReasonsCarryWhereTheEndpointIs(t *testing.T) {
	d := decided(t, web(), n1(), "10.1.0.1 ready node=n2 zone=b slice=web-x")
	want := lb.EndpointReason{
		Port:    lb.PortName{Service: web().Name, Port: "http", Protocol: lb.TCP},
		Address: netip.MustParseAddrPort("10.1.0.1:8080"), Slice: "web-x", Node: "n2", Zone: "b", Selected: true, Reason: lb.ReasonAll,
	}
	if d.Endpoints[0] != want {
		t.Errorf("got %+v\nwant %+v", d.Endpoints[0], want)
	}
}

// One bad endpoint does not cost the others.
func TestAnEndpointWithoutAddressIsSetAside(t *testing.T) {
	in := lb.Input{Service: web(), Endpoints: append(endpoints(t, "10.1.0.1 ready"),
		lb.Endpoint{Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Ready: true, Serving: true})}
	d := decide.Decide(in, n1())
	checkInvariants(t, d)
	equal(t, "side", show(d.Frontends[0].Internal), "balance all cluster: 10.1.0.1")
	equal(t, "reasons", reasons(d), "-invalid IP no-address, +10.1.0.1 all")
}
