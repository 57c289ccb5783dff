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
	// Set tells of a Service that is new or another one now, with all of its slices. It may be kept, and is never edited.
	Set(*lb.NamedService)
	// Remove tells that a Service is gone, and that no slice names it.
	Remove(lb.ServiceName)
	// Synced tells that everything was read once, and afterwards again after every reading.
	Synced()
}

// NameSource is a Source that reads what names are made of as well (NodeConfig.Names). Its Events tell of Services whose names may be
// others, in force for packets or not.
type NameSource interface {
	// Named is what the names of a Service are made of, never edited; nil: there is neither a Service nor a slice of it.
	Named(name lb.ServiceName) *lb.NamedService
	// NamedServices are all that Named has an answer for, sorted.
	NamedServices() []lb.ServiceName
	// NamesKnown tells whether all that NamePlaces are told of was read once, which may be after Events' Synced. Events must not ask.
	NamesKnown() bool
}

// nameStore keeps what names are made of. Its owner guards it. A Service is replaced as a whole when something of it changes, so that those
// who have it share it; its slices' endpoints are those that packets are decided by, where both read the same.
type nameStore struct {
	to         NamePlaces
	services   map[lb.ServiceName]*lb.NamedService
	slices     map[sliceName]string // the name of the Service in whose Slices it is
	namespaces map[string]bool
	pods       map[lb.PodName]*lb.NamedPod
}

func newNameStore(to NamePlaces) *nameStore {
	return &nameStore{to: to, services: map[lb.ServiceName]*lb.NamedService{}, slices: map[sliceName]string{},
		namespaces: map[string]bool{}, pods: map[lb.PodName]*lb.NamedPod{}}
}

// set puts what an object means for names in the place of what it meant; nil: nothing any more. It calls dirty for each Service that is
// another one now.
func (s *nameStore) set(key objectKey, now *naming, dirty func(lb.ServiceName)) {
	if now == nil {
		now = &naming{}
	}
	switch key.kind {
	case kindService:
		s.setService(lb.ServiceName{Namespace: key.namespace, Name: key.name}, now.service, dirty)
	case kindSlice:
		s.setSlice(sliceName{key.namespace, key.name}, now, dirty)
	case kindPod:
		s.setPod(lb.PodName{Namespace: key.namespace, Name: key.name}, now.pod)
	case kindNamespace:
		if s.namespaces[key.name] == now.namespace {
			return
		}
		if s.to.SetNamespace(key.name, now.namespace); now.namespace {
			s.namespaces[key.name] = true
		} else {
			delete(s.namespaces, key.name)
		}
	}
}

func (s *nameStore) setService(name lb.ServiceName, now *lb.NamedService, dirty func(lb.ServiceName)) {
	old := s.services[name]
	was, next := lb.NamedService{Name: name, Unserved: true}, lb.NamedService{Name: name, Unserved: true}
	if old != nil {
		was = *old
	}
	if now != nil {
		next = *now
	}
	if next.Slices = was.Slices; !sameBesideSlices(&was, &next) {
		s.put(&next)
		dirty(name)
	}
}

// sameBesideSlices compares Services that have the same slices.
func sameBesideSlices(a, b *lb.NamedService) bool {
	return a.Headless == b.Headless && a.Unserved == b.Unserved && a.ExternalName == b.ExternalName && a.Selection == b.Selection &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.Ports, b.Ports)
}

// put keeps a Service, if there is one or a slice of it.
func (s *nameStore) put(now *lb.NamedService) {
	if now.Unserved && len(now.Slices) == 0 {
		delete(s.services, now.Name)
		return
	}
	s.services[now.Name] = now
}

func (s *nameStore) setSlice(name sliceName, now *naming, dirty func(lb.ServiceName)) {
	owner, known := s.slices[name]
	if known && (now.slice == nil || now.owner.Name != owner) {
		delete(s.slices, name)
		s.putSlice(lb.ServiceName{Namespace: name.namespace, Name: owner}, name.name, nil, dirty)
	}
	if now.slice != nil {
		if !known || now.owner.Name != owner {
			s.slices[sliceName{now.owner.Namespace, now.slice.Name}] = now.owner.Name
		}
		s.putSlice(now.owner, name.name, now.slice, dirty)
	}
}

// putSlice puts a slice in the place of the one of that name that a Service has; nil: of none.
func (s *nameStore) putSlice(owner lb.ServiceName, name string, now *lb.NamedSlice, dirty func(lb.ServiceName)) {
	next := lb.NamedService{Name: owner, Unserved: true}
	if old := s.services[owner]; old != nil {
		next = *old
	}
	at, found := slices.BinarySearchFunc(next.Slices, name, func(slice *lb.NamedSlice, name string) int { return cmp.Compare(slice.Name, name) })
	if found && now != nil && next.Slices[at].Equal(now) {
		return
	}
	left := next.Slices[at:]
	if found {
		left = left[1:]
	}
	switch {
	case now != nil:
		next.Slices = slices.Concat(next.Slices[:at], []*lb.NamedSlice{now}, left)
	default:
		next.Slices = slices.Concat(next.Slices[:at], left)
	}
	s.put(&next)
	dirty(owner)
}

func (s *nameStore) setPod(name lb.PodName, now *lb.NamedPod) {
	switch old := s.pods[name]; {
	case reflect.DeepEqual(old, now):
	case now == nil:
		delete(s.pods, name)
		s.to.RemovePod(name)
	default:
		s.pods[name] = now
		s.to.SetPod(*now)
	}
}

// keys names the objects of a kind.
func (s *nameStore) keys(k kind) (out []objectKey) {
	switch k {
	case kindService:
		for name, service := range s.services {
			if !service.Unserved {
				out = append(out, objectKey{k, name.Namespace, name.Name})
			}
		}
	case kindSlice:
		for name := range s.slices {
			out = append(out, name.key())
		}
	case kindNamespace:
		for name := range s.namespaces {
			out = append(out, objectKey{k, "", name})
		}
	case kindPod:
		for name := range s.pods {
			out = append(out, objectKey{k, name.Namespace, name.Name})
		}
	}
	return out
}

// Named is NameSource's.
func (s *store) Named(name lb.ServiceName) *lb.NamedService {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.names == nil {
		return nil
	}
	return s.names.services[name]
}

// NamedServices is NameSource's.
func (s *store) NamedServices() []lb.ServiceName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.names == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(s.names.services), lb.ServiceName.Compare)
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
