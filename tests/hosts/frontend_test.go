// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lab"
)

// frontend is a kind of address that a Service answers on.
type frontend string

const (
	clusterIP    frontend = "ClusterIP"
	nodePort     frontend = "NodePort"
	externalIP   frontend = "external IP"
	loadBalancer frontend = "load balancer IP"
)

// frontends are all kinds; those but the first are what the external traffic policy is for.
func frontends() []frontend { return []frontend{clusterIP, nodePort, externalIP, loadBalancer} }

// everywhere gives the Service addresses of every kind, of its number.
func (s *service) everywhere() *service {
	for _, six := range []bool{false, true} {
		s.ExternalIPs = append(s.ExternalIPs, s.of(externalIP, six).Addr())
		s.LoadBalancers = append(s.LoadBalancers, lab.LoadBalancer{IP: s.of(loadBalancer, six).Addr()})
	}
	for i := range s.Ports {
		s.Ports[i].NodePort = s.nodePort()
	}
	return s
}

func (s *service) nodePort() uint16 { return 30000 + uint16(s.number) }

// by is the Service as it is asked on another address; a NodePort on that node's.
func (s *service) by(kind frontend, on *lab.Node) *service {
	out := *s
	out.kind, out.on = kind, on
	return &out
}

// of is the Service's frontend of a kind other than ClusterIP.
func (s *service) of(kind frontend, six bool) netip.AddrPort {
	if kind == nodePort {
		return netip.AddrPortFrom(s.on.Address(six), s.nodePort())
	}
	format := map[frontend]map[bool]string{
		externalIP:   {false: "198.51.100.%d", true: "2001:db8:1::%x"},
		loadBalancer: {false: "203.0.113.%d", true: "2001:db8:2::%x"},
	}[kind][six]
	return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, s.number)), servicePort)
}

// attracted are the addresses that are not a node's own, which the router sends to a node.
func attracted() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{
		"10.96.0.0/24", "198.51.100.0/24", "203.0.113.0/24", "fd96::/64", "2001:db8:1::/64", "2001:db8:2::/64",
	} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}
