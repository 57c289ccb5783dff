// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nearlb/nearlb/pkg/lb"
)

// sliceName names a slice.
type sliceName struct{ namespace, name string }

func (n sliceName) key() objectKey { return objectKey{kindSlice, n.namespace, n.name} }

// store keeps the converted objects of one source, indexed by Service. Its state depends on the objects in it, not on
// the order they came in; the two exceptions are the own Node, which outlives its object (as in kube-proxy), and triggers.
type store struct {
	cfg   NodeConfig
	start time.Time // triggers from before are history

	mu       sync.RWMutex
	services map[lb.ServiceName]*service
	slices   map[sliceName]*slice
	owned    map[lb.ServiceName][]*slice // by owner, served or not, ordered by name
	nodes    map[string]*node
	ownGone  bool                    // the own Node's object was deleted, and what it said stays in force
	holders  map[netip.Addr][]string // names of the Nodes that have an address, sorted
	cidrs    map[string]*serviceCIDR
	refusals map[objectKey]*ObjectError // objects whose previous good state, if any, is still in force
	uids     map[objectKey]types.UID    // of refused objects
	files    []*ObjectError             // refused files
	triggers map[lb.ServiceName]time.Time
	troubled map[objectKey]bool              // slices and Nodes with problems
	unserved map[lb.ServiceName][]lb.Problem // of Services without frontends, where there are any
	self     lb.Node                         // as Node gives it
	ranges   []netip.Prefix                  // as ServiceCIDRs gives them
	picky    map[lb.ServiceName]extent       // Services whose decision may depend on other Nodes, and how much of these it asks for
	asking   [allOfOthers + 1]int            // how many of picky ask for so much
	regions  map[string]string               // of zones, as far as they were asked for; "" for one that has none
	zones    map[string]int                  // how many endpoints are in each
	pods     podsHere
	names    *nameStore // nil: nobody answers names

	processors map[string]uint64 // of the Nodes of each zone that are known, in thousandths
	allNodes   bool              // these are all Nodes
}

func newStore(cfg NodeConfig) *store {
	s := &store{
		cfg: cfg, start: time.Now(),
		services: map[lb.ServiceName]*service{},
		slices:   map[sliceName]*slice{},
		owned:    map[lb.ServiceName][]*slice{},
		nodes:    map[string]*node{},
		holders:  map[netip.Addr][]string{},
		cidrs:    map[string]*serviceCIDR{},
		refusals: map[objectKey]*ObjectError{},
		uids:     map[objectKey]types.UID{},
		triggers: map[lb.ServiceName]time.Time{},
		troubled: map[objectKey]bool{},
		unserved: map[lb.ServiceName][]lb.Problem{},
		picky:    map[lb.ServiceName]extent{},
		regions:  map[string]string{},
		zones:    map[string]int{},
		pods:     podsHere{},

		processors: map[string]uint64{}, allNodes: true,
	}
	s.self, s.ranges = s.selfNow(), s.rangesNow()
	if cfg.Names != nil {
		s.names = newNameStore(cfg.Names)
		s.tellPlace()
	}
	return s
}

// changes says what an update of the store changed for its readers.
type changes struct {
	services   map[lb.ServiceName]bool
	node       bool                // NodeChanged is to be told
	place      bool                // zone or region of the own Node
	addresses  bool                // addresses of the own Node, or ranges of ClusterIPs
	placed     map[string]bool     // Nodes whose zone or region is another
	moved      map[netip.Addr]bool // addresses whose Node, or its place, is another
	relabelled map[string][]string // by Node: the keys of labels that are others
	zones      bool                // the processors of some
}

func (c *changes) service(name lb.ServiceName) {
	if c.services == nil {
		c.services = map[lb.ServiceName]bool{}
	}
	c.services[name] = true
}

// tell passes the changes on, Services in order.
func (c *changes) tell(ev Events) {
	if c.node {
		ev.NodeChanged()
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.services), lb.ServiceName.Compare) {
		ev.ServiceChanged(name)
	}
}

// apply adds, replaces and removes objects in one step: no reader sees a part of it.
func (s *store) apply(puts []object, drops []objectKey, c *changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range puts {
		s.accept(o.key)
		s.set(o, c)
	}
	for _, key := range drops {
		s.accept(key)
		s.set(object{key: key}, c)
	}
	s.touchSlices(c)
	s.touchExternal(c)
	s.touchKeyed(c)
	s.touchOverflowing(c)
	s.touchOwn(c)
}

// refuse notes that the newest state of an object is bad, and tells whether that is news. The last good state stays in force.
func (s *store) refuse(key objectKey, uid types.UID, err *ObjectError) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.refusals[key]
	s.refusals[key], s.uids[key] = err, uid
	return old == nil || *old != *err
}

// accept notes that an object is not refused any more.
func (s *store) accept(key objectKey) {
	delete(s.refusals, key)
	delete(s.uids, key)
}

// refuseFiles notes the files whose newest content is not in force, instead of those noted before.
func (s *store) refuseFiles(errs []*ObjectError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = errs
}

// keys names the objects of a kind that are stored or refused.
func (s *store) keys(k kind) []objectKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []objectKey
	switch k {
	case kindService:
		for name := range s.services {
			out = append(out, objectKey{k, name.Namespace, name.Name})
		}
		for name := range s.unserved {
			out = append(out, objectKey{k, name.Namespace, name.Name})
		}
	case kindSlice:
		for name := range s.slices {
			out = append(out, name.key())
		}
	case kindNode:
		if s.nodes[s.cfg.Name] != nil {
			out = append(out, objectKey{k, "", s.cfg.Name})
		}
	case kindOthers:
		for name := range s.nodes {
			if name != s.cfg.Name {
				out = append(out, objectKey{kindNode, "", name})
			}
		}
	case kindServiceCIDR:
		for name := range s.cidrs {
			out = append(out, objectKey{k, "", name})
		}
	}
	if s.names != nil {
		out = append(out, s.names.keys(k)...)
	}
	for key := range s.refusals {
		if s.resourceOf(key) == k {
			out = append(out, key)
		}
	}
	return out
}

// resourceOf is the resource that an object is read from.
func (s *store) resourceOf(key objectKey) kind {
	if key.kind == kindNode && key.name != s.cfg.Name {
		return kindOthers
	}
	return key.kind
}

func (s *store) set(o object, c *changes) {
	s.setNames(o, c)
	switch o.key.kind {
	case kindService:
		name := lb.ServiceName{Namespace: o.key.namespace, Name: o.key.name}
		if delete(s.unserved, name); len(o.wrong) > 0 {
			s.unserved[name] = o.wrong
		}
		s.setService(name, s.cfg.ours(o.service), c)
	case kindSlice:
		s.setSlice(sliceName{o.key.namespace, o.key.name}, o.slice, c)
	case kindNode:
		s.setNode(o.key.name, o.node, c)
	case kindServiceCIDR:
		s.setServiceCIDR(o.key.name, o.cidrs, c)
	}
}

func (s *store) setService(name lb.ServiceName, now *service, c *changes) {
	if sameService(s.services[name], now) {
		return
	}
	if now != nil {
		name = now.name // the same text, kept once
	}
	replace(s.services, name, now)
	s.notePicky(name)
	if now == nil {
		delete(s.triggers, name)
	}
	c.service(name)
}

// setSlice moves the slice when its label names another Service now: the old owner loses its endpoints, which kube-proxy
// forgets to do.
func (s *store) setSlice(name sliceName, now *slice, c *changes) {
	old := s.slices[name]
	if now != nil {
		now.podsOn(s.cfg.Name)
	}
	if sameSlice(old, now) {
		return
	}
	if now != nil {
		name = sliceName{now.owner.Namespace, now.name}
	}
	replace(s.slices, name, now)
	s.trouble(name.key(), now != nil && len(now.problems) > 0)
	if now != nil {
		s.countZones(now, 1) // before those of old, so that a zone that both have keeps its region
	}
	if old != nil {
		s.countZones(old, -1)
		s.disown(old)
		s.touch(old.owner, c)
	}
	if now != nil {
		s.own(now)
		s.trigger(old, now)
		s.touch(now.owner, c)
	}
}

func (s *store) own(in *slice) {
	owned := s.owned[in.owner]
	at, _ := slices.BinarySearchFunc(owned, in.name, (*slice).compareName)
	s.owned[in.owner] = slices.Insert(owned, at, in)
	s.pods.count(in, 1)
}

func (s *slice) compareName(name string) int { return strings.Compare(s.name, name) }

func (s *store) disown(out *slice) {
	s.pods.count(out, -1)
	owned := slices.DeleteFunc(s.owned[out.owner], func(other *slice) bool { return other == out })
	if len(owned) > 0 {
		s.owned[out.owner] = owned
		return
	}
	delete(s.owned, out.owner)
	if s.services[out.owner] == nil {
		delete(s.triggers, out.owner)
	}
}

// sameSlice leaves the trigger out: a new time with the same content changes nothing that is programmed.
func sameSlice(a, b *slice) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.name == b.name && a.owner == b.owner && a.weight == b.weight && slices.Equal(a.endpoints, b.endpoints) && slices.Equal(a.ports, b.ports) &&
		slices.Equal(a.problems, b.problems) && slices.Equal(a.pods, b.pods)
}

// touch marks a Service, if it is served: a slice may be there before its Service, which is marked when it comes.
func (s *store) touch(name lb.ServiceName, c *changes) {
	if s.services[name] != nil {
		s.notePicky(name)
		c.service(name)
	}
}

// trigger notes when the change began that the slice brings. Times from before the start, from the future (a skewed
// clock) and those seen before say nothing (requirement C12).
func (s *store) trigger(old, now *slice) {
	t := time.Unix(0, now.trigger)
	if now.trigger == 0 || old != nil && old.trigger == now.trigger || !t.After(s.start) || t.After(time.Now()) {
		return
	}
	if oldest, ok := s.triggers[now.owner]; !ok || t.Before(oldest) {
		s.triggers[now.owner] = t
	}
}

func (s *store) setServiceCIDR(name string, now *serviceCIDR, c *changes) {
	if reflect.DeepEqual(s.cidrs[name], now) {
		return
	}
	replace(s.cidrs, name, now)
	s.trouble(objectKey{kindServiceCIDR, "", name}, now != nil && len(now.problems) > 0)
	if before := s.ranges; len(s.cfg.ServiceCIDRs) == 0 {
		s.ranges = s.rangesNow()
		c.addresses = c.addresses || !slices.Equal(before, s.ranges)
	}
}

// trouble notes whether an object has problems.
func (s *store) trouble(key objectKey, has bool) {
	if has {
		s.troubled[key] = true
	} else {
		delete(s.troubled, key)
	}
}

// replace sets a key, or deletes it for nil.
func replace[K comparable, V any](m map[K]*V, key K, value *V) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value
}
