// SPDX-License-Identifier: Apache-2.0

package lb

import "slices"

// Change is what differs for clients between two decisions about one Service: frontends and backends. Reasons of endpoints
// that no frontend or backend shows, and problems, change nothing for clients and are not in it.
type Change struct {
	Service   ServiceName
	Frontends []FrontendChange // by key
	Backends  []BackendChange  // by key
}

// FrontendChange is one frontend that came (Old is nil), went (New is nil) or answers differently.
type FrontendChange struct {
	Old, New *Frontend
}

// BackendChange is one backend that came (Old is nil), went (New is nil) or is in another state, list or place.
type BackendChange struct {
	Old, New *Backend
}

// Diff says what changes for clients when new takes the place of old. The zero Decision stands for none at all: a Service
// that is new or deleted.
func Diff(old, new Decision) Change {
	service := new.Service
	if service == (ServiceName{}) {
		service = old.Service
	}
	c := Change{Service: service}
	pairs(old.Frontends, new.Frontends, func(a, b Frontend) int { return a.Key.Compare(b.Key) }, func(a, b *Frontend) {
		if a == nil || b == nil || !a.Equal(*b) {
			c.Frontends = append(c.Frontends, FrontendChange{a, b})
		}
	})
	pairs(old.Backends, new.Backends, func(a, b Backend) int { return a.Key.Compare(b.Key) }, func(a, b *Backend) {
		if a == nil || b == nil || !a.Equal(*b) {
			c.Backends = append(c.Backends, BackendChange{a, b})
		}
	})
	return c
}

// Empty tells that clients notice nothing.
func (c Change) Empty() bool { return len(c.Frontends) == 0 && len(c.Backends) == 0 }

// pairs visits what is in two sets, in order, equals together; a value that one set lacks comes with nil.
func pairs[T any](old, new []T, compare func(a, b T) int, visit func(a, b *T)) {
	old, new = ordered(old, compare), ordered(new, compare)
	for len(old) > 0 && len(new) > 0 {
		switch c := compare(old[0], new[0]); {
		case c < 0:
			visit(&old[0], nil)
			old = old[1:]
		case c > 0:
			visit(nil, &new[0])
			new = new[1:]
		default:
			visit(&old[0], &new[0])
			old, new = old[1:], new[1:]
		}
	}
	for i := range old {
		visit(&old[i], nil)
	}
	for i := range new {
		visit(nil, &new[i])
	}
}

// ordered is the list itself when it is in order already, else a sorted copy.
func ordered[T any](list []T, compare func(a, b T) int) []T {
	if slices.IsSortedFunc(list, compare) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, compare)
	return list
}
