// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// entry is one version of one object. It never changes.
type entry struct {
	key     string // NAMESPACE/NAME, or NAME
	meta    *metav1.ObjectMeta
	fields  fields.Set
	version uint64
	raw     []byte // the object in protobuf
}

// change is what happened to an object: before and after are nil where there was or is none.
type change struct {
	before, after *entry
	version       uint64
}

// table has the objects of one kind.
type table struct {
	kind
	objects map[string]*entry
	sorted  []*entry // of objects, by key; nil: to be sorted
	changes []change // the latest, oldest first
	forgot  uint64   // version of the last change that is not in changes any more
	grown   chan struct{}
	broken  chan struct{} // closed: watches that run are to end
}

func newTable(k kind) *table {
	return &table{kind: k, objects: map[string]*entry{}, grown: make(chan struct{}), broken: make(chan struct{})}
}

// store is all objects, and one count of versions for all.
type store struct {
	mu      sync.RWMutex
	version uint64
	uids    uint64
	tables  map[string]*table // by path, as /api/v1/services
	history int               // changes that a table remembers
}

// Put creates or replaces objects. They get their version from here, and what the API server fills in where they have none; they
// are not kept, so that the caller may change them and put them again. Of an object that cannot be encoded or is of a
// kind that is not served, Put panics: the test is wrong.
func (s *Server) Put(objects ...runtime.Object) {
	for _, o := range objects {
		s.put(o)
	}
}

func (s *Server) put(o runtime.Object) {
	t := s.tableOf(o)
	o = o.DeepCopyObject()
	accessor := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := t.objects[keyOf(accessor)]
	s.version++
	s.fill(accessor, before)
	raw, err := o.(marshaler).Marshal()
	if err != nil {
		panic(fmt.Sprintf("fakeapi: encode %s %s: %v", t.name, keyOf(accessor), err))
	}
	after := &entry{key: keyOf(accessor), meta: accessor, fields: t.fieldsOf(o), version: s.version, raw: raw}
	t.objects[after.key] = after
	s.note(t, change{before: before, after: after, version: s.version})
}

// fill sets what the API server sets.
func (s *Server) fill(o *metav1.ObjectMeta, before *entry) {
	o.ResourceVersion = strconv.FormatUint(s.version, 10)
	switch {
	case before != nil:
		o.UID, o.CreationTimestamp = before.meta.UID, before.meta.CreationTimestamp
	case o.UID == "":
		s.uids++
		o.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", s.uids))
	}
	if o.CreationTimestamp.IsZero() {
		o.CreationTimestamp = metav1.Now().Rfc3339Copy()
	}
}

// Delete takes objects away, of which only kind, namespace and name matter. What is not there is no error.
func (s *Server) Delete(objects ...runtime.Object) {
	for _, o := range objects {
		t := s.tableOf(o)
		key := keyOf(o.(metav1.ObjectMetaAccessor).GetObjectMeta())
		s.mu.Lock()
		if before := t.objects[key]; before != nil {
			delete(t.objects, key)
			s.version++
			s.note(t, change{before: before, version: s.version})
		}
		s.mu.Unlock()
	}
}

// note remembers a change and wakes the watches. The store is locked.
func (s *Server) note(t *table, c change) {
	if c.before == nil || c.after == nil {
		t.sorted = nil
	} else if t.sorted != nil {
		at, _ := slices.BinarySearchFunc(t.sorted, c.after.key, func(e *entry, key string) int { return compareStrings(e.key, key) })
		t.sorted = slices.Clone(t.sorted) // lists may be reading the other one
		t.sorted[at] = c.after
	}
	t.changes = append(t.changes, c)
	if over := len(t.changes) - 2*s.history; over > 0 { // now and then, so that a change does not cost a copy
		t.forget(len(t.changes) - s.history)
	}
	close(t.grown)
	t.grown = make(chan struct{})
}

func (t *table) forget(count int) {
	if count > 0 {
		t.forgot = t.changes[count-1].version
		t.changes = slices.Clone(t.changes[count:])
	}
}

// Compact forgets all changes so far: a watch that goes on from before is answered 410, and so is a list that goes on.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	for _, t := range s.tables {
		t.forget(len(t.changes))
		t.forgot = s.version
	}
	clear(s.pages)
}

// BreakWatches cuts all watches off.
func (s *Server) BreakWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		close(t.broken)
		t.broken = make(chan struct{})
	}
}

// Version is the version of the last change.
func (s *Server) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// snapshot is all objects of a table by key, and their version.
func (s *Server) snapshot(t *table) ([]*entry, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.sorted == nil {
		t.sorted = slices.SortedFunc(maps.Values(t.objects), func(a, b *entry) int { return compareStrings(a.key, b.key) })
	}
	return t.sorted, s.version
}

// since is what happened after a version. forgotten: it cannot be told any more. grown is closed when there is more, broken when
// watches are to end.
func (s *Server) since(t *table, version uint64) (changes []change, now uint64, forgotten bool, grown, broken <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	from, _ := slices.BinarySearchFunc(t.changes, version+1, func(c change, v uint64) int {
		switch {
		case c.version < v:
			return -1
		case c.version > v:
			return 1
		}
		return 0
	})
	return t.changes[from:len(t.changes):len(t.changes)], s.version, version < t.forgot, t.grown, t.broken
}

// selection is what a request asks for.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func (s selection) has(e *entry) bool {
	return e != nil && (s.namespace == "" || e.meta.Namespace == s.namespace) && s.labels.Matches(labels.Set(e.meta.Labels)) && s.fields.Matches(e.fields)
}

// event is what a change means to who watches a selection: an object that comes to be selected was added, one that ceases to be
// was deleted. "": nothing.
func (s selection) event(c change) (apiwatch.EventType, *entry) {
	had, has := s.has(c.before), s.has(c.after)
	switch {
	case had && has:
		return apiwatch.Modified, c.after
	case has:
		return apiwatch.Added, c.after
	case had:
		gone := *c.before // as it was last, with the version of its end
		gone.version = c.version
		return apiwatch.Deleted, &gone
	}
	return "", nil
}

func keyOf(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}
