// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// topologyLimit is how many answers of service ports have a metric of their own.
const topologyLimit = 1000

// appendAnswers gives those of a decision, each once: several addresses of a port have the same. Clients off the node are thought to come
// by the addresses that are made for them, so cluster IPs count for the node's own alone. all must be empty: its memory is used again.
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

// notable tells that somebody asked for more than just any endpoint, whether that is in force or not.
func notable(w metrics.Why) bool {
	switch w.Reason {
	case lb.ReasonAll, lb.ReasonNoEndpoints, lb.ReasonTerminating:
		return w.Note != ""
	}
	return true
}

// compareAnswers puts those first that are not as was asked for: they are not to be left out.
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

// refusals are the service ports that drop, by the traffic policy that makes them, as kube-proxy counts them: endpoints are
// elsewhere only. One without any endpoint rejects and does not count.
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
