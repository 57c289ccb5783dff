// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/nearlb/nearlb/pkg/lb"

// rules say for which clients traffic policy Local counts.
type rules struct{ internalLocal, externalLocal bool }

// policies reads the Service's traffic policies. externalTrafficPolicy counts for types LoadBalancer and NodePort, and for
// ClusterIP with an external address.
func policies(svc lb.Service) rules {
	external := svc.Type == lb.TypeLoadBalancer || svc.Type == lb.TypeNodePort || len(svc.ExternalIPs) > 0
	return rules{
		internalLocal: svc.Internal == lb.PolicyLocal,
		externalLocal: svc.External == lb.PolicyLocal && external,
	}
}

// lists names the list for clients on this node and for those off it. Cluster IPs follow internalTrafficPolicy, for
// whoever comes. Clients on this node reach external addresses by the cluster list even with externalTrafficPolicy
// Local, as if they had come in at any node.
func (r rules) lists(k lb.Kind) (internal, external lb.List) {
	internal, external = lb.ListCluster, lb.ListCluster
	if k == lb.KindClusterIP {
		if r.internalLocal {
			return lb.ListLocal, lb.ListLocal
		}
		return internal, external
	}
	if r.externalLocal {
		external = lb.ListLocal
	}
	return internal, external
}

// listsInUse says for each pool that frontends lead to which of its lists they ask for.
func listsInUse(frontends []lb.Frontend, r rules) map[poolKey]use {
	all := make(map[poolKey]use)
	for _, f := range frontends {
		u := all[keyOf(f)]
		internal, external := r.lists(f.Kind)
		u.cluster = u.cluster || internal == lb.ListCluster || external == lb.ListCluster
		u.local = u.local || internal == lb.ListLocal || external == lb.ListLocal
		u.localFirst = u.localFirst || f.Kind == lb.KindClusterIP && internal == lb.ListLocal
		all[keyOf(f)] = u
	}
	return all
}

// answerSides fills in what the frontend does. The pool is nil when the port has no endpoint of the family.
func answerSides(f *lb.Frontend, r rules, p *pool) {
	internal, external := r.lists(f.Kind)
	f.Internal = side(internal, p)
	f.External = f.Internal
	if external != internal {
		f.External = side(external, p)
	}
}

func side(name lb.List, p *pool) lb.Side {
	if p == nil || !p.usable() {
		return lb.Side{Action: lb.Reject, Reason: lb.ReasonNoEndpoints, List: name}
	}
	if name == lb.ListLocal && p.fallback {
		s := balance(lb.ListCluster, p.cluster)
		if s.Action == lb.Balance {
			s.Reason = lb.ReasonLocalFallback
		}
		return s
	}
	if name == lb.ListLocal {
		return balance(name, p.local)
	}
	return balance(name, p.cluster)
}

// balance is the answer of a list whose pool is usable. It is empty for want of an endpoint on this node, or of one that the
// topology keys allow: that one is refused as if the Service had none at all.
func balance(name lb.List, l list) lb.Side {
	switch {
	case len(l.keys) > 0:
		tiers := []lb.Tier{{Name: l.tier, Backends: l.keys}}
		return lb.Side{Action: lb.Balance, Reason: l.reason, Note: l.note, Key: l.key, List: name, Tiers: tiers}
	case l.reason == lb.ReasonNoTopologyMatch:
		return lb.Side{Action: lb.Reject, Reason: l.reason, List: name}
	}
	return lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints, List: name}
}
