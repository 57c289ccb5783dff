// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	utilnet "k8s.io/utils/net"

	"github.com/nearlb/nearlb/tests/worlds"
)

// This file and packet_test.go are a model of their own, written from the pseudo-code of Kubernetes' proxy rules, one
// packet at a time. They share no code with what decides.

// kind of a frontend, the one that has an address first coming first.
type kind int

const (
	clusterIP kind = iota
	loadBalancer
	externalIP
	nodePort
)

// target is what a client talks to.
type target struct {
	address  netip.AddrPort
	protocol corev1.Protocol
}

// frontend is one of a Service's.
type frontend struct {
	target
	kind    kind
	service *corev1.Service
	port    *corev1.ServicePort
}

func (f frontend) name() string { return f.service.Namespace + "/" + f.service.Name }

// model is a world as one node sees it.
type model struct {
	worlds.World
	zone      string
	addresses []netip.Addr // of the node, internal before external
	doors     map[target]frontend
}

func newModel(w worlds.World) *model {
	m := &model{World: w, doors: map[target]frontend{}}
	for _, n := range w.Nodes {
		if n.Name == worlds.Self {
			m.zone = n.Labels[corev1.LabelTopologyZone]
			for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
				for _, a := range n.Status.Addresses {
					if a.Type == kind {
						m.addresses = append(m.addresses, addr(a.Address))
					}
				}
			}
		}
	}
	for _, s := range w.Services {
		m.open(s)
	}
	return m
}

// own is the node's first address of a family; invalid: it has none.
func (m *model) own(v4 bool) netip.Addr {
	for _, a := range m.addresses {
		if a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}

// nodePortAddresses are those that answer NodePorts, the lowest first.
func (m *model) nodePortAddresses() (out []netip.Addr) {
	if slices.Equal(m.NodePortAddresses, []string{"primary"}) {
		for _, v4 := range []bool{true, false} {
			if own := m.own(v4); own.IsValid() {
				out = append(out, own)
			}
		}
		return out
	}
	for _, a := range m.addresses {
		wanted, matched := false, false
		for _, text := range m.NodePortAddresses {
			prefix := netip.MustParsePrefix(text).Masked()
			wanted = wanted || prefix.Addr().Is4() == a.Is4()
			matched = matched || prefix.Contains(a)
		}
		if matched || !wanted {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// served tells whether the Service has frontends at all.
func served(s *corev1.Service) bool {
	_, other := s.Labels["service.kubernetes.io/service-proxy-name"]
	return !other && s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone
}

func clusterIPs(s *corev1.Service) []netip.Addr {
	if len(s.Spec.ClusterIPs) == 0 {
		return []netip.Addr{addr(s.Spec.ClusterIP)}
	}
	return addrs(s.Spec.ClusterIPs)
}

func vips(s *corev1.Service) (out []netip.Addr) {
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			out = append(out, addr(in.IP))
		}
	}
	return out
}

func (m *model) open(s *corev1.Service) {
	if !served(s) {
		return
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		m.claim(s, p, clusterIP, clusterIPs(s), p.Port)
		m.claim(s, p, loadBalancer, vips(s), p.Port)
		m.claim(s, p, externalIP, addrs(s.Spec.ExternalIPs), p.Port)
		if p.NodePort != 0 {
			m.claim(s, p, nodePort, m.nodePortAddresses(), p.NodePort)
		}
	}
}

// claim gives each target to the lower kind, then the lower name of Service and port.
func (m *model) claim(s *corev1.Service, p *corev1.ServicePort, k kind, ips []netip.Addr, number int32) {
	for _, ip := range ips {
		if !slices.ContainsFunc(clusterIPs(s), func(own netip.Addr) bool { return own.Is4() == ip.Is4() }) {
			continue
		}
		f := frontend{target{netip.AddrPortFrom(ip, uint16(number)), protocolOf(p.Protocol)}, k, s, p}
		if old, ok := m.doors[f.target]; !ok || compareClaims(f, old) < 0 {
			m.doors[f.target] = f
		}
	}
}

func compareClaims(a, b frontend) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), strings.Compare(a.service.Namespace, b.service.Namespace),
		strings.Compare(a.service.Name, b.service.Name), strings.Compare(a.port.Name, b.port.Name))
}

// endpoint is one of a service port, in one family.
type endpoint struct {
	address                     netip.AddrPort
	local                       bool
	ready, serving, terminating bool
	nodes, zones                []string // hints
}

func (e endpoint) draining() bool { return e.serving && e.terminating }

// endpoints are those of the frontend's port and family.
func (m *model) endpoints(f frontend) (out []endpoint) {
	family := discoveryv1.AddressTypeIPv6
	if f.address.Addr().Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	for _, s := range m.Slices {
		_, headless := s.Labels[corev1.IsHeadlessService]
		if headless || s.Namespace != f.service.Namespace || s.Labels[discoveryv1.LabelServiceName] != f.service.Name || s.AddressType != family {
			continue
		}
		for _, p := range s.Ports {
			if or(p.Name, "") == f.port.Name && protocolOf(or(p.Protocol, "")) == f.protocol && or(p.Port, 0) != 0 {
				for _, e := range s.Endpoints {
					out = append(out, newEndpoint(e, uint16(*p.Port)))
				}
			}
		}
	}
	return out
}

func newEndpoint(in discoveryv1.Endpoint, port uint16) endpoint {
	e := endpoint{
		address: netip.AddrPortFrom(addr(in.Addresses[0]), port),
		local:   or(in.NodeName, "") == worlds.Self,
		ready:   or(in.Conditions.Ready, true), serving: or(in.Conditions.Serving, true), terminating: or(in.Conditions.Terminating, false),
	}
	if in.Hints == nil {
		return e
	}
	for _, h := range in.Hints.ForNodes {
		e.nodes = append(e.nodes, h.Name)
	}
	for _, h := range in.Hints.ForZones {
		e.zones = append(e.zones, h.Name)
	}
	return e
}

// lists are C and L, and whether any endpoint could serve anywhere.
func (m *model) lists(all []endpoint) (cluster, local []endpoint, hasAny bool) {
	ready := filter(all, func(e endpoint) bool { return e.ready })
	cluster = m.nearest(ready)
	if len(cluster) == 0 {
		cluster = filter(all, endpoint.draining)
	}
	local = filter(ready, func(e endpoint) bool { return e.local })
	if len(local) == 0 {
		local = filter(all, func(e endpoint) bool { return e.local && e.draining() })
	}
	return cluster, local, slices.ContainsFunc(all, func(e endpoint) bool { return e.ready || e.draining() })
}

// nearest obeys hints if every ready endpoint has one and some are for this node, else likewise for its zone.
func (m *model) nearest(ready []endpoint) []endpoint {
	if !slices.ContainsFunc(ready, func(e endpoint) bool { return len(e.nodes) == 0 }) {
		if near := filter(ready, func(e endpoint) bool { return slices.Contains(e.nodes, worlds.Self) }); len(near) > 0 {
			return near
		}
	}
	if m.zone != "" && !slices.ContainsFunc(ready, func(e endpoint) bool { return len(e.zones) == 0 }) {
		if near := filter(ready, func(e endpoint) bool { return slices.Contains(e.zones, m.zone) }); len(near) > 0 {
			return near
		}
	}
	return ready
}

func filter(all []endpoint, keep func(endpoint) bool) (out []endpoint) {
	for _, e := range all {
		if keep(e) {
			out = append(out, e)
		}
	}
	return out
}

func addr(text string) netip.Addr {
	out, _ := netip.AddrFromSlice(utilnet.ParseIPSloppy(text))
	return out.Unmap()
}

func addrs(list []string) (out []netip.Addr) {
	for _, text := range list {
		out = append(out, addr(text))
	}
	return out
}

func protocolOf(p corev1.Protocol) corev1.Protocol { return cmp.Or(p, corev1.ProtocolTCP) }

func or[T any](set *T, otherwise T) T {
	if set == nil {
		return otherwise
	}
	return *set
}
