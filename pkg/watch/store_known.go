// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"

	"github.com/nearlb/nearlb/pkg/lb"
)

// family is the endpoints of one family of a Service.
type family struct {
	owner lb.ServiceName
	v4    bool
}

// place is the family that a slice gives ready endpoints; false if it gives none, or there is no slice.
func (s *slice) place() (family, bool) {
	if s == nil {
		return family{}, false
	}
	for _, e := range s.endpoints {
		if e.Is&lb.IsReady != 0 {
			return family{s.owner, e.Addr().Is4()}, len(s.ports) > 0
		}
	}
	return family{}, false
}

// has tells whether an object is known, and not only refused. The own Node may be in force and gone.
func (s *store) has(key objectKey) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch key.kind {
	case kindService:
		return s.services[lb.ServiceName{Namespace: key.namespace, Name: key.name}] != nil
	case kindNode:
		return s.nodes[key.name] != nil && !(s.ownGone && key.name == s.cfg.Name)
	}
	return false
}

// number counts the Services or Nodes of a resource that are known, the API server's own Service left out.
func (s *store) number(k kind) (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	own := 0
	if s.nodes[s.cfg.Name] != nil {
		own = 1
	}
	switch k {
	case kindNode:
		if s.ownGone {
			return 0
		}
		return own
	case kindOthers:
		return len(s.nodes) - own
	}
	for name := range s.services {
		n += countable(name.Namespace, name.Name)
	}
	return n
}

// bereft finds the families of Services that lose all their ready endpoints by a list. It returns the slices that had these
// endpoints, the number of such families, and the number of all families with ready endpoints.
func (s *store) bereft(puts []object, drops []objectKey) (lost map[objectKey]bool, missing, known int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	next := maps.Clone(s.slices)
	for _, o := range puts {
		replace(next, sliceName{o.key.namespace, o.key.name}, o.slice)
	}
	for _, key := range drops {
		delete(next, sliceName{key.namespace, key.name})
	}
	before, after := families(s.slices), families(next)
	for f := range before {
		one := countable(f.owner.Namespace, f.owner.Name)
		known += one
		if !after[f] {
			missing += one
		}
	}
	lost = map[objectKey]bool{}
	for _, key := range drops {
		if f, ready := s.slices[sliceName{key.namespace, key.name}].place(); ready && !after[f] {
			lost[key] = true
		}
	}
	return lost, missing, known
}

// families are those with ready endpoints.
func families(of map[sliceName]*slice) map[family]bool {
	out := map[family]bool{}
	for _, slice := range of {
		if f, ready := slice.place(); ready {
			out[f] = true
		}
	}
	return out
}

// siblings are the other slices of the same Service and family, if this one has ready endpoints.
func (s *store) siblings(of *slice) (keys []objectKey) {
	place, ready := of.place()
	if !ready {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, other := range s.owned[of.owner] {
		if there, ready := other.place(); ready && there == place && other.name != of.name {
			keys = append(keys, objectKey{kindSlice, of.owner.Namespace, other.name})
		}
	}
	return keys
}

// ready tells whether a Service is known, and has ready endpoints.
func (s *store) ready(name lb.ServiceName) (exists, ready bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.services[name] == nil {
		return false, false
	}
	for _, slice := range s.owned[name] {
		if _, ready := slice.place(); ready {
			return true, true
		}
	}
	return true, false
}

// ownerOf is the Service of a slice.
func (s *store) ownerOf(key objectKey) lb.ServiceName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if known := s.slices[sliceName{key.namespace, key.name}]; known != nil {
		return known.owner
	}
	return lb.ServiceName{}
}
