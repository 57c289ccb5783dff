// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// frontends are all doors of the Service on this node, each key once, without their sides; and what of the Service
// cannot be served as written.
//
// Families: with cluster IPs, the Service is served in their families only, whatever other addresses it has
// (spec.clusterIPs; kube-proxy does the same). Without any, which the API server never leaves so, every family is.
func frontends(in lb.Input, node lb.Node) ([]lb.Frontend, []lb.Problem) {
	svc := in.Service
	d := doorway{service: svc.Name, affinity: max(svc.Affinity, 0), clusterIPs: addresses(svc.ClusterIPs), node: node}
	if len(d.clusterIPs) == 0 {
		d.problem("spec.clusterIP", "no cluster IP: the other frontends are served, clients inside the cluster have none")
	}
	external := d.externalIPs(in, node)
	balancers := d.ofServedFamily("status.loadBalancer.ingress", svc.LoadBalancerIPs)
	ranges := sourceRanges(svc.SourceRanges, balancers, node)
	for _, port := range d.usablePorts(svc) {
		d.open(lb.KindClusterIP, d.clusterIPs, port, port.Port, allowed{})
		if port.NodePort != 0 {
			d.open(lb.KindNodePort, slices.DeleteFunc(slices.Clone(node.NodePortIPs), d.unserved), port, port.NodePort, allowed{})
		}
		d.open(lb.KindExternalIP, external, port, port.Port, allowed{})
		d.open(lb.KindLoadBalancer, balancers, port, port.Port, ranges)
	}
	return d.eachKeyOnce(), d.problems
}

// doorway collects a Service's frontends and problems.
type doorway struct {
	service    lb.ServiceName
	affinity   time.Duration
	clusterIPs []netip.Addr
	node       lb.Node
	doors      []lb.Frontend
	problems   []lb.Problem
}

func (d *doorway) problem(field, format string, args ...any) {
	d.problems = append(d.problems, lb.Problem{Object: d.service.Object(), Field: field, Message: fmt.Sprintf(format, args...)})
}

func (d *doorway) open(kind lb.Kind, ips []netip.Addr, port lb.ServicePort, number uint16, ranges allowed) {
	for _, ip := range ips {
		d.doors = append(d.doors, lb.Frontend{
			Key:          lb.FrontendKey{Address: netip.AddrPortFrom(ip, number), Protocol: port.Protocol},
			Port:         lb.PortName{Service: d.service, Port: port.Name, Protocol: port.Protocol},
			Kind:         kind,
			OnHost:       d.onHost(kind, ip),
			Affinity:     d.affinity,
			SourceRanges: ranges.of(ip),
		})
	}
}

// onHost tells that an address which a Service may share with others is the node's own as well: k3s gives load balancers the
// addresses of nodes, and external IPs may be any.
func (d *doorway) onHost(kind lb.Kind, a netip.Addr) bool {
	return (kind == lb.KindExternalIP || kind == lb.KindLoadBalancer) && isNodes(a, d.node)
}

func isNodes(a netip.Addr, node lb.Node) bool {
	return slices.Contains(node.HostIPs, a) || slices.Contains(node.Addresses, a)
}

// unserved tells that the Service has cluster IPs, but none of the address's family.
func (d *doorway) unserved(a netip.Addr) bool { return !served(d.clusterIPs, a.Is4()) }

// served tells whether a Service with these cluster IPs is served in a family.
func served(clusterIPs []netip.Addr, v4 bool) bool {
	ofFamily := func(ip netip.Addr) bool { return ip.Is4() == v4 }
	return len(clusterIPs) == 0 || slices.ContainsFunc(clusterIPs, ofFamily)
}

func (d *doorway) ofServedFamily(field string, list []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addresses(list) {
		if d.unserved(a) {
			d.problem(field, "%v: the Service has no cluster IP of this family, so this address is not served", a)
			continue
		}
		out = append(out, a)
	}
	return out
}

// usablePorts are the Service's ports with a number and a known protocol. Of two with one name and protocol, which the
// API server refuses, the lower number stays.
func (d *doorway) usablePorts(svc lb.Service) []lb.ServicePort {
	ports := slices.Clone(svc.Ports)
	slices.SortFunc(ports, func(a, b lb.ServicePort) int {
		return cmp.Or(portKey(a).Compare(portKey(b)), cmp.Compare(a.Port, b.Port), cmp.Compare(a.NodePort, b.NodePort))
	})
	var out []lb.ServicePort
	for _, p := range ports {
		switch {
		case !usable(p):
			d.problem("spec.ports", "port %v has number %d: not served", portKey(p), p.Port)
		case len(out) > 0 && portKey(out[len(out)-1]) == portKey(p):
			d.problem("spec.ports", "port %v is there twice: %d is not served", portKey(p), p.Port)
		default:
			out = append(out, p)
		}
	}
	return out
}

func portKey(p lb.ServicePort) lb.PortKey { return lb.PortKey{Name: p.Name, Protocol: p.Protocol} }

func usable(p lb.ServicePort) bool {
	return p.Port != 0 && (p.Protocol == lb.TCP || p.Protocol == lb.UDP || p.Protocol == lb.SCTP)
}

// servicePorts is the set of ports that endpoints may join.
func servicePorts(svc lb.Service) map[lb.PortKey]bool {
	set := make(map[lb.PortKey]bool, len(svc.Ports))
	for _, p := range svc.Ports {
		if usable(p) {
			set[portKey(p)] = true
		}
	}
	return set
}

// eachKeyOnce settles which frontend has a key that several claim: by kind (lb.Kind.Precedence); of one kind, the lower port
// name wins.
func (d *doorway) eachKeyOnce() []lb.Frontend {
	slices.SortFunc(d.doors, func(a, b lb.Frontend) int {
		return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind.Precedence(), b.Kind.Precedence()), a.Port.Compare(b.Port))
	})
	out := d.doors[:0]
	for _, f := range d.doors {
		if len(out) == 0 || out[len(out)-1].Key != f.Key {
			out = append(out, f)
			continue
		}
		if winner := out[len(out)-1]; winner.Port != f.Port || winner.Kind == lb.KindClusterIP {
			d.problem(f.Kind.Field(), "%v of port %v is also %s of port %v and served as that",
				f.Key, f.Port.Key(), winner.Kind, winner.Port.Key())
		}
	}
	return out
}
