// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

// PodSource is a Source that knows Pods of this node by name: those that slices name as endpoints on it (targetRef). Of other nodes'
// endpoints no name is kept, as a cluster may have 100,000 of them.
type PodSource interface {
	// PodAt is the Pod of this node that has an address; false where none is known, several are, or the address is the node's own.
	PodAt(netip.Addr) (lb.PodName, bool)
	// PodAddresses are those of a Pod of this node, in order; none where it is not known.
	PodAddresses(lb.PodName) []netip.Addr
}

// Looker is a Source that can be looked at by others than the one who programs what it says.
type Looker interface {
	Look(lb.ServiceName) (lb.Input, bool) // Input without Triggered
	Annotated() []lb.ServiceAnnotations   // Services that have some, by name
}

// podAt is an address of a Pod that a slice names.
type podAt struct {
	address [16]byte // IPv4 as ::ffff:a.b.c.d
	name    string
	node    string
}

// pod is the name of an endpoint's Pod, "" for none. One of another namespace is none: a Service has endpoints in its own.
func (c *sliceConverter) pod(in *discoveryv1.Endpoint) string {
	ref := in.TargetRef
	if ref == nil || ref.Kind != "Pod" || cmp.Or(ref.Namespace, c.owner.Namespace) != c.owner.Namespace || !isName(ref.Name, maxSubdomain) {
		return ""
	}
	return ref.Name
}

// podsOn keeps those of a node, and no memory of the others.
func (s *slice) podsOn(node string) {
	var here []podAt
	for _, p := range s.pods {
		if p.node == node {
			here = append(here, p)
		}
	}
	s.pods = here
}

// podsHere are the Pods of this node by address, with how many slices name each.
type podsHere map[netip.Addr]map[lb.PodName]int

// count adds to the number of slices that name the Pods of this one.
func (p podsHere) count(s *slice, n int) {
	for _, pod := range s.pods {
		address, name := netip.AddrFrom16(pod.address).Unmap(), lb.PodName{Namespace: s.owner.Namespace, Name: pod.name}
		if p[address] == nil {
			p[address] = map[lb.PodName]int{}
		}
		if p[address][name] += n; p[address][name] == 0 {
			delete(p[address], name)
		}
		if len(p[address]) == 0 {
			delete(p, address)
		}
	}
}

// PodAt is PodSource's.
func (s *store) PodAt(address netip.Addr) (name lb.PodName, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.pods[address]) != 1 || slices.Contains(s.self.Addresses, address) {
		return name, false
	}
	for name = range s.pods[address] {
	}
	return name, true
}

// PodAddresses is PodSource's.
func (s *store) PodAddresses(name lb.PodName) []netip.Addr {
	s.mu.RLock()
	defer s.mu.RUnlock()
	has := func(address netip.Addr) bool { return s.pods[address][name] == 0 }
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(s.pods), netip.Addr.Compare), has)
}
