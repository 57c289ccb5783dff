// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// NameEvents is who wants to know what names are made of: a dns.View. The methods are called one at a time.
type NameEvents interface {
	// Set tells of a Service that is new or another one now, with all of its slices.
	Set(lb.NamedService)
	// Remove tells that a Service is gone, and that no slice names it.
	Remove(lb.ServiceName)
	// SetNamespace tells whether there is an object of a Namespace.
	SetNamespace(name string, exists bool)
	// SetNode tells of a Node's labels; all empty: it is gone or has none.
	SetNode(name, zone, region string)
	// SetPod tells of a Pod that is new or another one now.
	SetPod(lb.NamedPod)
	// RemovePod tells that a Pod is gone.
	RemovePod(lb.PodName)
	// Synced tells that everything was read once, and afterwards again after every reading.
	Synced()
}

// nameStore holds what names are made of, by object, and tells of what changes. It is its reader's alone.
type nameStore struct {
	to       NameEvents
	objects  map[objectKey]object
	slices   map[lb.ServiceName]map[string]*lb.NamedSlice
	services map[lb.ServiceName]*lb.NamedService
}

func newNameStore(to NameEvents) *nameStore {
	return &nameStore{to: to, objects: map[objectKey]object{}, slices: map[lb.ServiceName]map[string]*lb.NamedSlice{}, services: map[lb.ServiceName]*lb.NamedService{}}
}

// replace puts a complete set of objects in the place of the one before.
func (s *nameStore) replace(objects map[objectKey]object) {
	dirty := map[lb.ServiceName]bool{}
	for key, old := range s.objects {
		if _, stays := objects[key]; !stays {
			s.drop(old, dirty)
		}
	}
	for key, o := range objects {
		s.put(s.objects[key], o, dirty)
	}
	s.objects = objects
	for _, name := range slices.SortedFunc(maps.Keys(dirty), lb.ServiceName.Compare) {
		s.tell(name)
	}
	s.to.Synced()
}

func (s *nameStore) drop(old object, dirty map[lb.ServiceName]bool) {
	switch n := old.naming; {
	case old.key.kind == kindNamespace:
		s.to.SetNamespace(old.key.name, false)
	case old.key.kind == kindNode:
		s.to.SetNode(old.key.name, "", "")
	case n == nil:
	case n.pod != nil:
		s.to.RemovePod(n.pod.Name)
	case n.service != nil:
		delete(s.services, n.service.Name)
		dirty[n.service.Name] = true
	case n.slice != nil:
		delete(s.slices[n.owner], n.slice.Name)
		if len(s.slices[n.owner]) == 0 {
			delete(s.slices, n.owner)
		}
		dirty[n.owner] = true
	}
}

// put takes an object that is new or another one: a file that was not read again still has the same one.
func (s *nameStore) put(old, now object, dirty map[lb.ServiceName]bool) {
	if old.naming != nil && old.naming == now.naming {
		return
	}
	if old.naming != nil && old.naming.slice != nil {
		s.drop(old, dirty)
	}
	switch n := now.naming; {
	case now.key.kind == kindNamespace:
		s.to.SetNamespace(now.key.name, true)
	case now.node != nil:
		s.to.SetNode(now.key.name, now.node.zone, now.node.region)
	case n == nil:
	case n.pod != nil:
		s.to.SetPod(*n.pod)
	case n.service != nil:
		s.services[n.service.Name] = n.service
		dirty[n.service.Name] = true
	case n.slice != nil:
		if s.slices[n.owner] == nil {
			s.slices[n.owner] = map[string]*lb.NamedSlice{}
		}
		s.slices[n.owner][n.slice.Name] = n.slice
		dirty[n.owner] = true
	}
}

// tell tells of a Service as it is now. Slices without a Service have reverse names.
func (s *nameStore) tell(name lb.ServiceName) {
	service, owned := s.services[name], s.slices[name]
	if service == nil && len(owned) == 0 {
		s.to.Remove(name)
		return
	}
	out := lb.NamedService{Name: name, Unserved: true}
	if service != nil {
		out = *service
	}
	for _, slice := range slices.SortedFunc(maps.Values(owned), func(a, b *lb.NamedSlice) int { return cmp.Compare(a.Name, b.Name) }) {
		out.Slices = append(out.Slices, *slice)
	}
	s.to.Set(out)
}
