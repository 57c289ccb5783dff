// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// NamePlaces is who wants to know what names are made of besides Services. The methods are called one at a time.
type NamePlaces interface {
	// SetNamespace tells whether there is an object of a Namespace.
	SetNamespace(name string, exists bool)
	// SetNode tells of a Node's labels; all empty: it is gone or has none. A source of a cluster tells of the own Node alone.
	SetNode(name, zone, region string)
	// SetPod tells of a Pod that is new or another one now.
	SetPod(lb.NamedPod)
	// RemovePod tells that a Pod is gone.
	RemovePod(lb.PodName)
}

// NameEvents is who wants to know all that names are made of: a dns.View.
type NameEvents interface {
	NamePlaces
	// Set tells of a Service that is new or another one now, with all of its slices.
	Set(lb.NamedService)
	// Remove tells that a Service is gone, and that no slice names it.
	Remove(lb.ServiceName)
	// Synced tells that everything was read once, and afterwards again after every reading.
	Synced()
}

// NameSource is a Source that reads what names are made of as well (NodeConfig.Names). Its Events tell of Services whose names may be
// others, in force for packets or not.
type NameSource interface {
	// Named is what the names of a Service are made of; false: there is neither a Service nor a slice of it.
	Named(name lb.ServiceName) (lb.NamedService, bool)
	// NamedServices are all that Named has an answer for, sorted.
	NamedServices() []lb.ServiceName
	// NamesKnown tells whether all that NamePlaces are told of was read once, which may be after Events' Synced. Events must not ask.
	NamesKnown() bool
}

// nameStore keeps what names are made of, by object. Its owner guards it.
type nameStore struct {
	to       NamePlaces
	objects  map[objectKey]*naming
	slices   map[lb.ServiceName]map[string]*lb.NamedSlice
	services map[lb.ServiceName]*lb.NamedService
}

func newNameStore(to NamePlaces) *nameStore {
	return &nameStore{to: to, objects: map[objectKey]*naming{}, slices: map[lb.ServiceName]map[string]*lb.NamedSlice{}, services: map[lb.ServiceName]*lb.NamedService{}}
}

// set puts what an object means for names in the place of what it meant; nil: nothing any more. It calls dirty for each Service that is
// another one now.
func (s *nameStore) set(key objectKey, now *naming, dirty func(lb.ServiceName)) {
	old := s.objects[key]
	if old == now || old != nil && now != nil && reflect.DeepEqual(old, now) {
		return
	}
	if old != nil && (now == nil || old.slice != nil) {
		s.drop(key, old, dirty)
	}
	if now == nil {
		delete(s.objects, key)
		return
	}
	s.objects[key] = now
	switch {
	case key.kind == kindNamespace:
		s.to.SetNamespace(key.name, true)
	case now.pod != nil:
		s.to.SetPod(*now.pod)
	case now.service != nil:
		s.services[now.service.Name] = now.service
		dirty(now.service.Name)
	case now.slice != nil:
		if s.slices[now.owner] == nil {
			s.slices[now.owner] = map[string]*lb.NamedSlice{}
		}
		s.slices[now.owner][now.slice.Name] = now.slice
		dirty(now.owner)
	}
}

func (s *nameStore) drop(key objectKey, old *naming, dirty func(lb.ServiceName)) {
	switch {
	case key.kind == kindNamespace:
		s.to.SetNamespace(key.name, false)
	case old.pod != nil:
		s.to.RemovePod(old.pod.Name)
	case old.service != nil:
		delete(s.services, old.service.Name)
		dirty(old.service.Name)
	case old.slice != nil:
		delete(s.slices[old.owner], old.slice.Name)
		if len(s.slices[old.owner]) == 0 {
			delete(s.slices, old.owner)
		}
		dirty(old.owner)
	}
}

// keys names the objects of a kind.
func (s *nameStore) keys(k kind) (out []objectKey) {
	for key := range s.objects {
		if key.kind == k {
			out = append(out, key)
		}
	}
	return out
}

// named is a Service as it is now. Slices without a Service have reverse names.
func (s *nameStore) named(name lb.ServiceName) (lb.NamedService, bool) {
	service, owned := s.services[name], s.slices[name]
	if service == nil && len(owned) == 0 {
		return lb.NamedService{}, false
	}
	out := lb.NamedService{Name: name, Unserved: true}
	if service != nil {
		out = *service
	}
	for _, slice := range slices.SortedFunc(maps.Values(owned), func(a, b *lb.NamedSlice) int { return cmp.Compare(a.Name, b.Name) }) {
		out.Slices = append(out.Slices, *slice)
	}
	return out, true
}

func (s *nameStore) names() []lb.ServiceName {
	all := slices.AppendSeq(slices.Collect(maps.Keys(s.services)), maps.Keys(s.slices))
	slices.SortFunc(all, lb.ServiceName.Compare)
	return slices.Compact(all)
}

// Named is NameSource's.
func (s *store) Named(name lb.ServiceName) (lb.NamedService, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.names == nil {
		return lb.NamedService{}, false
	}
	return s.names.named(name)
}

// NamedServices is NameSource's.
func (s *store) NamedServices() []lb.ServiceName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.names == nil {
		return nil
	}
	return s.names.names()
}

// NamesKnown is NameSource's: files of all kinds are read together.
func (s *store) NamesKnown() bool { return true }

// setNames is set for names. What the own Node says of them is told by tellPlace, and no other Node says anything.
func (s *store) setNames(o object, c *changes) {
	if s.names != nil && o.key.kind != kindNode {
		s.names.set(o.key, o.naming, c.service)
	}
}

// tellPlace tells where this node is.
func (s *store) tellPlace() {
	if s.names != nil {
		s.names.to.SetNode(s.self.Name, s.self.Zone, s.self.Region)
	}
}
