// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// setNode changes a Node and marks the Services with endpoints whose node, zone or region may come from it. The own Node
// is not forgotten with its object.
func (s *store) setNode(name string, now *node, c *changes) {
	old := s.nodes[name]
	if name == s.cfg.Name {
		s.ownGone = old != nil && now == nil
	}
	if reflect.DeepEqual(old, now) || now == nil && name == s.cfg.Name {
		return
	}
	replace(s.nodes, name, now)
	s.trouble(objectKey{kindNode, "", name}, now != nil && len(now.problems) > 0)
	if old != nil {
		s.removeHolder(name, old.addresses)
	}
	if now != nil {
		s.addHolder(name, now.addresses)
	}
	c.noteNode(name, old, now)
	c.node = c.node || s.cfg.AllNodes && !slices.Equal(old.all(), now.all())
	s.countProcessors(old, now, c)
	if name == s.cfg.Name {
		before := s.self
		s.self = s.selfNow()
		s.tellPlace()
		for _, name := range slices.Collect(maps.Keys(s.picky)) {
			s.notePicky(name)
		}
		c.place = c.place || before.Zone != s.self.Zone || before.Region != s.self.Region
		c.addresses = c.addresses || !slices.Equal(before.Addresses, s.self.Addresses)
		c.node = c.node || old == nil || old.leaving != now.leaving
	}
}

// touchOwn marks the Services whose decision depends on what changed of the own Node or of the ranges of ClusterIPs: all compare
// endpoints' zones with its own, and NodePorts, external and load balancer IPs depend on its addresses and on the ranges (of the host's addresses,
// those in the ranges are Services').
func (s *store) touchOwn(c *changes) {
	if c.node = c.node || c.place || c.addresses; !c.place && !c.addresses {
		return
	}
	for name, svc := range s.services {
		if c.place || len(svc.more().ExternalIPs)+len(svc.more().LoadBalancerIPs) > 0 || svc.hasNodePort() {
			c.service(name)
		}
	}
}

func (s *store) addHolder(name string, addresses []netip.Addr) {
	for _, addr := range addresses {
		at, _ := slices.BinarySearch(s.holders[addr], name)
		s.holders[addr] = slices.Insert(s.holders[addr], at, name)
	}
}

func (s *store) removeHolder(name string, addresses []netip.Addr) {
	for _, addr := range addresses {
		left := slices.DeleteFunc(s.holders[addr], func(other string) bool { return other == name })
		if len(left) == 0 {
			delete(s.holders, addr)
			continue
		}
		s.holders[addr] = left
	}
}

// noteNode notes what a change of a Node means for the slices: touchSlices looks at them once for all Nodes of an update, as
// an index of all endpoints by node is large and a first list has thousands of Nodes.
func (c *changes) noteNode(name string, old, now *node) {
	before, after := deref(old), deref(now)
	if c.moved == nil {
		c.moved, c.placed = map[netip.Addr]bool{}, map[string]bool{}
	}
	c.noteLabels(name, before.labels, after.labels)
	moved := slices.Concat(without(before.addresses, after.addresses), without(after.addresses, before.addresses))
	if before.zone != after.zone || before.region != after.region {
		c.placed[name] = true
		moved = append(moved, after.addresses...)
	}
	for _, addr := range moved {
		c.moved[addr] = true
	}
}

// touchSlices marks the Services of slices that the noted Nodes concern.
func (s *store) touchSlices(c *changes) {
	if len(c.placed)+len(c.moved) == 0 {
		return
	}
	for _, slice := range s.slices {
		if slices.ContainsFunc(slice.endpoints, c.concerns) {
			s.touch(slice.owner, c)
		}
	}
}

// concerns tells whether an endpoint has its node, zone or region from one of the noted Nodes.
func (c *changes) concerns(e lb.SliceEndpoint) bool {
	at := e.At.Value()
	if at.Node == "" {
		return c.moved[e.Addr()]
	}
	return (at.Zone == "" || at.Region == "") && c.placed[at.Node]
}

func without(a, b []netip.Addr) (out []netip.Addr) {
	for _, addr := range a {
		if !slices.Contains(b, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// locate fills in what an endpoint does not say of itself: its node, by the address (requirement B16); zone and region, by
// the node (requirement A11).
func (s *store) locate(at lb.Place, addr netip.Addr) lb.Place {
	if at.Node == "" {
		at.Node = s.nodeOf(addr)
	}
	if at.Node == "" || at.Zone != "" && at.Region != "" {
		return at
	}
	var n node
	if known := s.nodes[at.Node]; known != nil {
		n = *known
	}
	if at.Node == s.cfg.Name && s.cfg.Zone != "" {
		n.zone = s.cfg.Zone
	}
	at.Zone, at.Region = cmp.Or(at.Zone, n.zone), cmp.Or(at.Region, n.region)
	at.Region = cmp.Or(at.Region, s.regions[at.Zone])
	return at
}

// nodeOf is the Node that has an address, where endpoints are served on their node.
func (s *store) nodeOf(addr netip.Addr) string {
	if s.cfg.KeepNodeless {
		return ""
	}
	return s.holderOf(addr)
}

// holderOf is the Node that has an address. Two that claim the same one are a mistake; the first by name is taken.
func (s *store) holderOf(addr netip.Addr) string {
	if len(s.cfg.IPs) > 0 && slices.Contains(s.cfg.IPs, addr) {
		return s.cfg.Name
	}
	for _, name := range s.holders[addr] {
		if name != s.cfg.Name || len(s.cfg.IPs) == 0 {
			return name
		}
	}
	return ""
}

// all are the Node's addresses; nil: there is no such Node.
func (n *node) all() []netip.Addr {
	if n == nil {
		return nil
	}
	return n.addresses
}

// Nodes are the addresses of those that are known, each of one Node alone. The own one's are those of its flags, if these have some.
func (s *store) Nodes() map[string][]netip.Addr {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[string][]netip.Addr, len(s.nodes))
	for name, n := range s.nodes {
		all[name] = n.addresses
		if other := func(a netip.Addr) bool { return s.holderOf(a) != name }; slices.ContainsFunc(n.addresses, other) {
			all[name] = slices.DeleteFunc(slices.Clone(n.addresses), other)
		}
	}
	all[s.cfg.Name] = s.self.Addresses
	return all
}

// Node is the own node, as far as it is known.
func (s *store) Node() lb.Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.self
}

func (s *store) selfNow() lb.Node {
	out := lb.Node{Name: s.cfg.Name, Zone: s.cfg.Zone, Labels: s.ownLabels(), ExternalIPs: s.cfg.ExternalIPs}
	if own := s.nodes[s.cfg.Name]; own != nil {
		out.Region = own.region
		out.Addresses = slices.Clone(own.addresses)
		if out.Zone == "" {
			out.Zone = own.zone
		}
	}
	if len(s.cfg.IPs) > 0 {
		out.Addresses = slices.Clone(s.cfg.IPs)
	}
	out.NodePortIPs = s.cfg.NodePortIPs(out.Addresses, nil)
	return out
}
