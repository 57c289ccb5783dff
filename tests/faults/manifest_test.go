// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nearlb/nearlb/pkg/lab"
)

// manifest is a Service written by hand, with endpoints that no pod need have: what a lab.Service cannot say.
type manifest struct {
	name         string
	number       int // of its addresses
	ports        int // TCP
	ready, quiet []place
	balanced     bool     // has load balancer addresses
	ranges       []string // who may come to those
	external     int      // external IPs of each family
}

// place is an endpoint.
type place struct {
	addresses [2]netip.Addr // IPv4, IPv6
	node      string
}

func at(p *lab.Pod) place { return place{[2]netip.Addr{p.V4, p.V6}, p.Node.Name} }

// nobody is an endpoint of a number that does not exist.
func nobody(number int, node string) place {
	return place{[2]netip.Addr{
		netip.AddrFrom4([4]byte{10, 245, byte(number >> 8), byte(number)}),
		netip.MustParseAddr(fmt.Sprintf("fd25::%x", number)),
	}, node}
}

func nobodies(from, count int, node func(i int) string) (all []place) {
	for i := range count {
		all = append(all, nobody(from+i, node(i)))
	}
	return all
}

// text is the Service with its slices.
func (m manifest) text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\n", m.name)
	fmt.Fprintf(&out, "spec:\n  type: %s\n  clusterIPs: [%q, %q]\n  ipFamilies: [IPv4, IPv6]\n", map[bool]string{true: "LoadBalancer", false: "ClusterIP"}[m.balanced],
		fmt.Sprintf("10.96.0.%d", m.number), fmt.Sprintf("fd96::%x", m.number))
	fmt.Fprintf(&out, "  clusterIP: 10.96.0.%d\n  ports: [%s]\n", m.number, m.portList(servicePort, 1))
	if len(m.ranges) > 0 {
		fmt.Fprintf(&out, "  loadBalancerSourceRanges: [\"%s\"]\n", strings.Join(m.ranges, `", "`))
	}
	if m.external > 0 {
		fmt.Fprintf(&out, "  externalIPs: [%s]\n", strings.Join(m.externals(), ", "))
	}
	if m.balanced {
		fmt.Fprintf(&out, "status: {loadBalancer: {ingress: [{ip: 203.0.113.%d}, {ip: \"2001:db8:2::%x\"}]}}\n", m.number, m.number)
	}
	for i, family := range []string{"IPv4", "IPv6"} {
		m.slice(&out, family, i)
	}
	return out.String()
}

// portList has names p0, p1, ...
func (m manifest) portList(first, step int) string {
	var all []string
	for i := range m.ports {
		all = append(all, fmt.Sprintf("{name: p%d, port: %d}", i, first+i*step))
	}
	return strings.Join(all, ", ")
}

func (m manifest) externals() (all []string) {
	for i := range m.external {
		all = append(all, fmt.Sprintf("198.51.%d.%d", m.number, i+1), fmt.Sprintf("%q", fmt.Sprintf("2001:db8:1:%x::%x", m.number, i+1)))
	}
	return all
}

func (m manifest) slice(out *strings.Builder, family string, index int) {
	fmt.Fprintf(out, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %s}}\n",
		m.name, strings.ToLower(family), m.name)
	fmt.Fprintf(out, "addressType: %s\nports: [%s]\nendpoints:\n", family, m.portList(targetPort, 0))
	for _, p := range append(append([]place{}, m.ready...), m.quiet...) {
		ready := len(m.quiet) == 0
		for _, r := range m.ready {
			ready = ready || r == p
		}
		fmt.Fprintf(out, "- {addresses: [%q], nodeName: %q, conditions: {ready: %t, serving: %t}}\n", p.addresses[index], p.node, ready, ready)
	}
}
