// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Guard holds what lists suddenly lack: it stays in force for a time. An API server whose storage was lost, or was restored from
// elsewhere, lists little or nothing, and that is no reason to take a node's Services away at once. The zero value holds nothing.
//
// What counts is a list, which says by silence what is gone; an object that a watch reports as deleted was deleted by somebody, and
// is never held.
type Guard struct {
	Grace   time.Duration // how long an object that is missing from lists stays in force; 0: not at all
	Percent int           // of the Services, the Services with ready endpoints, the Nodes: if more are missing at once, they are held
	// Published gives the Services that an earlier process published, true for those with backends in use: of what was there
	// before the first list nothing else is known. It is asked once, after the first lists and before Synced, and may take its time. nil: none.
	Published func() map[lb.ServiceName]bool `json:"-"`
}

// Check refuses what makes no sense.
func (g Guard) Check() error {
	switch {
	case g.Grace < 0:
		return errors.New("--mass-deletion-grace: want a time of zero or more")
	case g.Percent < 0 || g.Percent > 99:
		return errors.New("--mass-deletion-percent: want 0 to 99")
	}
	return nil
}

// mass tells whether so many are missing at once that they are held.
func (g Guard) mass(missing, known int) bool { return missing > 0 && missing*100 > g.Percent*known }

// Held counts what is held. Zero: nothing.
type Held struct {
	Services  int       `json:"services"`  // Services that are missing
	Endpoints int       `json:"endpoints"` // other Services, all of whose ready endpoints of a family are missing
	Nodes     int       `json:"nodes"`
	Until     time.Time `json:"until"` // what is still missing then goes, if the API server can be read at that time
}

// Any tells whether anything is held.
func (h Held) Any() bool { return h.Services+h.Endpoints+h.Nodes > 0 }

// guard applies a Guard to a store. Whoever changes the store calls it, before or after; anybody may ask.
type guard struct {
	Guard
	store *store

	mu      sync.Mutex
	objects map[objectKey]bool      // held; they are in the store
	names   map[lb.ServiceName]bool // held, of Published: what they were is known to the tables alone
	turned  []lb.ServiceName        // Services whose objects are held, or are not any more, since the last question
	until   time.Time
}

func newGuard(s *store) *guard {
	return &guard{store: s, objects: map[objectKey]bool{}, names: map[lb.ServiceName]bool{}}
}

// hold returns the drops of a list that are carried out, and how many objects it holds that were not held before. Held objects stay held,
// however few.
func (g *guard) hold(k kind, puts []object, drops []objectKey, now time.Time) (rest []objectKey, news int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	missing := map[objectKey]bool{}
	if g.Grace > 0 {
		missing = g.massOf(k, puts, drops)
	}
	for _, key := range drops {
		switch {
		case g.objects[key]:
		case missing[key]:
			g.objects[key] = true
			g.turn(key)
			news++
		default:
			rest = append(rest, key)
		}
	}
	if news > 0 {
		g.until = now.Add(g.Grace)
	}
	return rest, news
}

// massOf returns the drops of a list that are to be held: all of its kind, if they are so many that they are a mass.
func (g *guard) massOf(k kind, puts []object, drops []objectKey) map[objectKey]bool {
	var missing map[objectKey]bool
	var units, known int
	switch k {
	case kindService, kindNode, kindOthers:
		missing = map[objectKey]bool{}
		for _, key := range drops {
			if g.store.has(key) {
				missing[key] = true
				units += countable(key.namespace, key.name)
			}
		}
		known = g.store.number(k)
	case kindSlice:
		missing, units, known = g.store.bereft(puts, drops)
	}
	if !g.mass(units, known) {
		return nil
	}
	return missing
}

// countable is what an object counts among deletions: 1, but 0 for default/kubernetes, which the API server makes again by itself.
func countable(namespace, name string) int {
	if namespace == metav1.NamespaceDefault && name == "kubernetes" {
		return 0
	}
	return 1
}

// relieve ends the hold of every object that puts or drops name. It also ends that of slices which are replaced, as their Service
// has ready endpoints of their family again, and returns these.
func (g *guard) relieve(puts []object, drops []objectKey) (replaced []objectKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.objects) == 0 {
		return nil
	}
	for _, key := range drops {
		g.turn(key)
		delete(g.objects, key)
	}
	for _, o := range puts {
		g.turn(o.key)
		delete(g.objects, o.key)
	}
	for _, o := range puts {
		if o.slice == nil {
			continue
		}
		for _, key := range g.store.siblings(o.slice) {
			if g.objects[key] {
				delete(g.objects, key)
				replaced = append(replaced, key)
			}
		}
	}
	return replaced
}

// judge holds, after the first lists, the published Services that are missing or without ready endpoints, if they are a mass. It
// returns how many are held.
func (g *guard) judge(now time.Time) (news int) {
	if g.Grace <= 0 || g.Published == nil {
		return 0
	}
	published := g.Published()
	g.mu.Lock()
	defer g.mu.Unlock()
	var missing, bereft []lb.ServiceName
	var known, served, gone, idle int
	for name, used := range published {
		one := countable(name.Namespace, name.Name)
		known += one
		exists, ready := g.store.ready(name)
		if !exists {
			missing = append(missing, name)
			gone += one
		}
		if used {
			served += one
		}
		if used && !ready {
			bereft = append(bereft, name)
			idle += one
		}
	}
	if !g.mass(gone, known) {
		missing = nil
	}
	if !g.mass(idle, served) {
		bereft = nil
	}
	for _, name := range slices.Concat(missing, bereft) {
		g.names[name] = true
	}
	if len(g.names) > 0 {
		g.until = now.Add(g.Grace)
	}
	return len(g.names)
}

// settle ends the hold of those of the changed Services that have ready endpoints again, or were deleted.
func (g *guard) settle(changed map[lb.ServiceName]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.names) == 0 {
		return
	}
	for name := range changed {
		if exists, ready := g.store.ready(name); g.names[name] && (ready || !exists) {
			delete(g.names, name)
		}
	}
}

// release ends the hold of everything, and returns what was held.
func (g *guard) release() (drops []objectKey, names []lb.ServiceName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	drops, names = slices.Collect(maps.Keys(g.objects)), slices.Collect(maps.Keys(g.names))
	clear(g.objects)
	clear(g.names)
	return drops, names
}

// postpone starts the time again that what is held has.
func (g *guard) postpone(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = now.Add(g.Grace)
}

// holds tells whether a Service is held whose objects are not known.
func (g *guard) holds(name lb.ServiceName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[name]
}

// blind tells whether the first lists lacked so much that Nodes which they lack may exist, too.
func (g *guard) blind() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.names) > 0
}

// turn notes that an object has come to be held, or is about to be held no more.
func (g *guard) turn(key objectKey) {
	if key.kind == kindService && g.objects[key] {
		g.turned = append(g.turned, lb.ServiceName{Namespace: key.namespace, Name: key.name})
	}
}

// takeTurned names the Services whose objects have come to be held, or are not any more, since the last call.
func (g *guard) takeTurned() (names []lb.ServiceName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	names, g.turned = g.turned, nil
	return names
}

// holdsObject tells whether a Service's own object is held.
func (g *guard) holdsObject(name lb.ServiceName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.objects[objectKey{kindService, name.Namespace, name.Name}]
}

// any tells whether anything is held.
func (g *guard) any() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.objects)+len(g.names) > 0
}

func (g *guard) held() (h Held) {
	g.mu.Lock()
	defer g.mu.Unlock()
	endpoints := map[lb.ServiceName]bool{}
	for name := range g.names {
		if exists, _ := g.store.ready(name); exists {
			endpoints[name] = true
		} else {
			h.Services++
		}
	}
	for key := range g.objects {
		switch key.kind {
		case kindService:
			h.Services++
		case kindNode:
			h.Nodes++
		case kindSlice:
			if owner := g.store.ownerOf(key); !g.objects[objectKey{kindService, owner.Namespace, owner.Name}] {
				endpoints[owner] = true
			}
		}
	}
	h.Endpoints = len(endpoints)
	if h.Any() {
		h.Until = g.until
	}
	return h
}
