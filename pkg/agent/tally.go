// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// tally is what status and metrics tell of all published Services together. It follows each publication: to go through all of
// them for each scrape would cost the more the larger the cluster is.
type tally struct {
	frontends    int
	backends     map[string]int // by state
	reasons      map[metrics.Why]int
	withoutLocal map[string]int                      // service ports that drop, by traffic policy
	notable      map[lb.ServiceName][]metrics.Answer // of Services that have some
	problems     map[lb.ServiceName][]lb.Problem     // likewise
	shown        []metrics.Answer                    // the notable ones in order; nil: not made yet
}

func newTally() *tally {
	return &tally{backends: map[string]int{}, reasons: map[metrics.Why]int{}, notable: map[lb.ServiceName][]metrics.Answer{},
		withoutLocal: map[string]int{metrics.Internal: 0, metrics.External: 0}, problems: map[lb.ServiceName][]lb.Problem{}}
}

// replace takes one decision out and another one in. Nil: none.
func (t *tally) replace(name lb.ServiceName, old, now *lb.Decision) {
	if old != nil {
		t.count(old, -1)
	}
	delete(t.problems, name)
	var notables []metrics.Answer
	if now != nil {
		notables = t.count(now, 1)
		if len(now.Problems) > 0 {
			t.problems[name] = now.Problems
		}
	}
	if len(notables) == 0 && len(t.notable[name]) == 0 {
		return
	}
	t.shown = nil
	delete(t.notable, name)
	if len(notables) > 0 {
		t.notable[name] = notables
	}
}

// count adds a decision, or takes it away, and gives its answers that are notable.
func (t *tally) count(d *lb.Decision, by int) (notables []metrics.Answer) {
	t.frontends += by * len(d.Frontends)
	for _, b := range d.Backends {
		change(t.backends, string(b.State), by)
	}
	for a := range answersOf(d) {
		change(t.reasons, a.Why, by)
		if notable(a.Why) {
			notables = append(notables, a)
		}
	}
	for policy, ports := range refusals(d) {
		t.withoutLocal[policy] += by * len(ports)
	}
	return notables
}

// change leaves no zero behind.
func change[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

// topology is the answers that are shown one by one, those first that are not as was asked for, and how many are left out.
func (t *tally) topology() (shown []metrics.Answer, omitted int) {
	if t.shown == nil {
		t.shown = []metrics.Answer{}
		for _, answers := range t.notable {
			t.shown = append(t.shown, answers...)
		}
		slices.SortFunc(t.shown, compareAnswers)
	}
	shown = t.shown[:min(len(t.shown), topologyLimit)]
	return shown, len(t.shown) - len(shown)
}
