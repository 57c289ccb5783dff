// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// tally sums up all published Services for the status and the metrics. It follows each publication, as a sum made for each scrape
// would cost more in larger clusters.
type tally struct {
	frontends int
	backends  [len(backendStates)]int
	reasons   map[metrics.Why]int
	refusing  [len(trafficPolicies)]int           // service ports that drop, by traffic policy
	notable   map[lb.ServiceName][]metrics.Answer // of Services that have some
	problems  map[lb.ServiceName][]lb.Problem     // likewise
	shown     []metrics.Answer                    // the notable ones in order; nil: not made yet
	whys      map[metrics.Why]uint16              // numbers of reasons in summaries
	byNumber  []metrics.Why
	answers   []metrics.Answer // of the last decision, for its memory
}

// backendStates are those that decisions have.
var backendStates = [...]lb.State{lb.Active, lb.Draining, lb.Quiet, lb.Responder}

// trafficPolicies name the sides of summary.refusing.
var trafficPolicies = [...]string{metrics.Internal, metrics.External}

// summary is what a tally must know of a Service to take it out again, in a few bytes. The zero value is that of no Service.
type summary struct {
	frontends int32
	backends  [len(backendStates)]int32
	refusing  [len(trafficPolicies)]int32
	reasons   []reasonCount
}

type reasonCount struct {
	why   uint16 // number in tally.byNumber
	count int32
}

func newTally() *tally {
	return &tally{reasons: map[metrics.Why]int{}, notable: map[lb.ServiceName][]metrics.Answer{}, problems: map[lb.ServiceName][]lb.Problem{},
		whys: map[metrics.Why]uint16{}}
}

// replace takes the sum of a Service's last decision out, and adds its new one; nil: it has none any more. The result is to be
// passed with the next call.
func (t *tally) replace(name lb.ServiceName, before summary, now *lb.Decision) (after summary) {
	t.count(before, -1)
	delete(t.problems, name)
	var notables []metrics.Answer
	if now != nil {
		after, notables = t.sum(now)
		t.count(after, 1)
		if len(now.Problems) > 0 {
			t.problems[name] = now.Problems
		}
	}
	if len(notables) > 0 || len(t.notable[name]) > 0 {
		t.shown = nil
		delete(t.notable, name)
	}
	if len(notables) > 0 {
		t.notable[name] = notables
	}
	return after
}

// sum makes the summary of a decision, and gives its answers that are notable.
func (t *tally) sum(d *lb.Decision) (s summary, notables []metrics.Answer) {
	s.frontends = int32(len(d.Frontends))
	for i := range d.Backends {
		if state := slices.Index(backendStates[:], d.Backends[i].State); state >= 0 {
			s.backends[state]++
		}
	}
	t.answers = appendAnswers(t.answers[:0], d)
	for _, a := range t.answers {
		s.add(t.number(a.Why))
		if notable(a.Why) {
			notables = append(notables, a)
		}
	}
	refused := refusals(d)
	for i, policy := range trafficPolicies {
		s.refusing[i] = int32(len(refused[policy]))
	}
	return s, notables
}

// number is that of a reason. There are a few dozens.
func (t *tally) number(why metrics.Why) uint16 {
	n, known := t.whys[why]
	if !known {
		n = uint16(len(t.byNumber))
		t.whys[why], t.byNumber = n, append(t.byNumber, why)
	}
	return n
}

func (s *summary) add(why uint16) {
	for i := range s.reasons {
		if s.reasons[i].why == why {
			s.reasons[i].count++
			return
		}
	}
	s.reasons = append(s.reasons, reasonCount{why, 1})
}

// count adds a summary, or takes it away.
func (t *tally) count(s summary, by int) {
	t.frontends += by * int(s.frontends)
	for i, n := range s.backends {
		t.backends[i] += by * int(n)
	}
	for i, n := range s.refusing {
		t.refusing[i] += by * int(n)
	}
	for _, r := range s.reasons {
		why := t.byNumber[r.why]
		if t.reasons[why] += by * int(r.count); t.reasons[why] == 0 {
			delete(t.reasons, why)
		}
	}
}

// fill adds the tally to what metrics show.
func (t *tally) fill(s *metrics.State) {
	s.Frontends, s.Reasons = t.frontends, maps.Clone(t.reasons)
	s.Backends, s.WithoutLocal = map[string]int{}, map[string]int{}
	for i, n := range t.backends {
		if n > 0 {
			s.Backends[string(backendStates[i])] = n
		}
	}
	for i, n := range t.refusing {
		s.WithoutLocal[trafficPolicies[i]] = n
	}
	s.Topology, s.Omitted = t.topology()
}

// topology returns the answers that get a metric of their own, those first that are not as was asked for, and how many are left
// out.
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

// topologyLimit is how many answers of service ports have a metric of their own.
const topologyLimit = 1000

// appendAnswers returns the answers of a decision, each once, as several addresses of a port have the same. A ClusterIP counts for
// the node's own clients only: clients off the node are taken to use the other kinds. all must be empty; its memory is used again.
func appendAnswers(all []metrics.Answer, d *lb.Decision) []metrics.Answer {
	for i := range d.Frontends {
		f := &d.Frontends[i]
		a := metrics.Answer{Port: f.Port, V4: f.Key.Address.Addr().Is4()}
		a.Why = metrics.Why{Side: metrics.Internal, Reason: f.Internal.Reason, Note: f.Internal.Note}
		all = append(all, a)
		if f.Kind != lb.KindClusterIP {
			a.Why = metrics.Why{Side: metrics.External, Reason: f.External.Reason, Note: f.External.Note}
			all = append(all, a)
		}
	}
	slices.SortFunc(all, compareAnswers)
	return slices.Compact(all)
}

// notable tells whether a Service asked for more than any endpoint, whether or not it gets that.
func notable(w metrics.Why) bool {
	switch w.Reason {
	case lb.ReasonAll, lb.ReasonNoEndpoints, lb.ReasonTerminating:
		return w.Note != ""
	}
	return true
}

// compareAnswers puts answers first that are not as was asked for, so that these are not left out.
func compareAnswers(a, b metrics.Answer) int {
	return cmp.Or(rank(a.Why)-rank(b.Why), a.Port.Compare(b.Port), rankOf(b.V4)-rankOf(a.V4), cmp.Compare(a.Side, b.Side),
		cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Note, b.Note))
}

func rank(w metrics.Why) int {
	refused := w.Reason == lb.ReasonNoLocalEndpoints || w.Reason == lb.ReasonNoTopologyMatch
	return rankOf(!refused && w.Note == "")
}

func rankOf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// refusals are the service ports that drop because their endpoints are elsewhere, by the traffic policy that says so, as kube-proxy
// counts them. A port without any endpoint rejects, and does not count.
func refusals(d *lb.Decision) map[string]map[lb.PortName]struct{} {
	var dropping map[string]map[lb.PortName]struct{}
	for i := range d.Frontends {
		f := &d.Frontends[i]
		policy, side := metrics.External, &f.External
		if f.Kind == lb.KindClusterIP {
			policy, side = metrics.Internal, &f.Internal
		}
		if side.Reason != lb.ReasonNoLocalEndpoints {
			continue
		}
		if dropping == nil {
			dropping = map[string]map[lb.PortName]struct{}{metrics.Internal: {}, metrics.External: {}}
		}
		dropping[policy][f.Port] = struct{}{}
	}
	return dropping
}
