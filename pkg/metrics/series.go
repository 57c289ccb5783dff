// SPDX-License-Identifier: Apache-2.0

package metrics

// Limits bound how many series Services and backends have: those that come first get their own, the others one together.
type Limits struct {
	Services int // service ports (--metrics-services)
	Backends int // backends of service ports, by node (--metrics-backends)
}

// DefaultLimits let a node tell of what its own clients use in most clusters; in the largest they keep a scrape below a megabyte or two.
func DefaultLimits() Limits { return Limits{Services: 250, Backends: 500} }

// series are sums by a key. A key gets a sum of its own with its first traffic, as long as there is room, and keeps it until it
// is no more: a sum that is shown never becomes less, and what is idle takes no room.
type series[K comparable] struct {
	limit  int
	own    map[K]*traffic
	rest   traffic // of all that have none of their own
	others map[K]bool
}

func newSeries[K comparable](limit int) *series[K] {
	return &series[K]{limit: limit, own: map[K]*traffic{}, others: map[K]bool{}}
}

// of is the sum that a key counts in.
func (s *series[K]) of(key K) *traffic {
	if sum := s.own[key]; sum != nil {
		return sum
	}
	if len(s.own) >= s.limit {
		s.others[key] = true
		return &s.rest
	}
	delete(s.others, key)
	s.own[key] = &traffic{}
	return s.own[key]
}

// sweep finds out which keys are no more: keep those that are, then end it.
func (s *series[K]) sweep() sweep[K] { return sweep[K]{s, map[K]bool{}} }

type sweep[K comparable] struct {
	of   *series[K]
	kept map[K]bool
}

func (w sweep[K]) keep(key K) {
	if w.of.own[key] != nil || len(w.of.others) > 0 && w.of.others[key] {
		w.kept[key] = true
	}
}

func (w sweep[K]) end() {
	for key := range w.of.own {
		if !w.kept[key] {
			delete(w.of.own, key)
		}
	}
	for key := range w.of.others {
		if !w.kept[key] {
			delete(w.of.others, key)
		}
	}
}
