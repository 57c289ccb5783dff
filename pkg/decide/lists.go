// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// list is one of a pool's two lists of backends and how it was chosen.
type list struct {
	choice
	keys     []lb.BackendKey // by address
	draining bool            // none is ready: it is made of those that serve while terminating
}

// choice is why a list has the backends it has.
type choice struct {
	reason lb.Reason
	tier   lb.TierName
	out    lb.Reason // of endpoints that could be used and are not chosen
	key    string    // the topology key that chose, if one did
	note   lb.Note
}

// use says which lists of a pool some side of some frontend asks for. A list that nobody asks for stays empty.
type use struct {
	cluster, local bool
	localFirst     bool // clients of the cluster IP get the local list: it explains the endpoints before the other
}

// choose fills the lists of the pool for this node. With the Service's local fallback an empty local list makes the cluster
// list take its place.
func (p *pool) choose(u use, in *lb.Input, node lb.Node) {
	p.inUse, p.node, p.zone = u, node.Name, node.Zone
	if u.local {
		p.local = p.localList()
		p.fallback = in.Service.LocalFallback && len(p.local.keys) == 0
	}
	if u.cluster || p.fallback {
		p.cluster = p.clusterList(&in.Service, in.Zones, node)
	}
}

// clusterList is C of service-semantics.md: the ready endpoints that are left for this node; of those that serve while
// terminating, anywhere, when none is ready. What leaves some and not others is, in this order, the Service's topology keys,
// its overflow, its distribution, the hints. Keys are a constraint and hold for terminating endpoints too; the others are preferences, and
// kube-proxy forgets hints where no endpoint is ready.
func (p *pool) clusterList(svc *lb.Service, zones []lb.Zone, node lb.Node) list {
	usable, ready := isReady, slices.ContainsFunc(p.winners, isReady)
	if !ready {
		usable = isDraining
	}
	var c choice
	var chosen func(*candidate) bool
	switch {
	case len(svc.TopologyKeys) > 0:
		c, chosen = p.byKeys(usable, svc.TopologyKeys, node)
	case !ready:
	case svc.Overflow.Given:
		c, chosen = p.overflowing(svc.Overflow, zones, node)
	case svc.Distribution != "":
		c, chosen = p.byPlace(svc.Distribution, node)
	default:
		c, chosen = p.byHints(node, svc.WantsHints)
	}
	if chosen == nil {
		c.reason, c.tier, chosen = lb.ReasonAll, lb.TierCluster, usable
	}
	if !ready && c.reason != lb.ReasonNoTopologyMatch {
		c.reason = lb.ReasonTerminating
	}
	in := func(e *candidate) *bool { return &e.inCluster }
	l := p.collect(c, in, func(e *candidate) bool { return usable(e) && chosen(e) })
	l.draining = !ready
	return l
}

// localList is L of service-semantics.md: the ready endpoints of this node, whatever hints say; those that serve while
// terminating when none of this node is ready. Never a remote one.
func (p *pool) localList() list {
	in := func(c *candidate) *bool { return &c.inLocal }
	ready := func(c *candidate) bool { return isReady(c) && isLocal(c, p.node) }
	if slices.ContainsFunc(p.winners, ready) {
		return p.collect(choice{reason: lb.ReasonLocal, tier: lb.TierNode}, in, ready)
	}
	draining := func(c *candidate) bool { return isDraining(c) && isLocal(c, p.node) }
	return p.collect(choice{reason: lb.ReasonLocalTerminating, tier: lb.TierNode}, in, draining)
}

// collect makes the list of those that belong and marks them as members.
func (p *pool) collect(c choice, member func(*candidate) *bool, belongs func(*candidate) bool) list {
	l := list{choice: c, keys: make([]lb.BackendKey, 0, len(p.winners))}
	for _, c := range p.winners {
		if belongs(c) {
			*member(c) = true
			l.keys = append(l.keys, lb.BackendKey{Port: c.Port, Address: c.Address})
		}
	}
	return l
}

// usable tells that the pool has an endpoint, anywhere in the cluster, that could serve (hasAny of service-semantics.md).
func (p *pool) usable() bool {
	return slices.ContainsFunc(p.winners, func(c *candidate) bool { return isReady(c) || isDraining(c) })
}

// takesNew tells that the endpoint's weight allows new connections.
func takesNew(c *candidate) bool { return c.Weight.Number() > 0 }

// isReady: and new connections may go there.
func isReady(c *candidate) bool { return c.Ready && takesNew(c) }

// isDraining: terminating and still serving, and new connections may go there. An endpoint that is ready too, as
// publishNotReadyAddresses makes it, counts as ready.
func isDraining(c *candidate) bool { return drains(c) && takesNew(c) }

func drains(c *candidate) bool { return !c.Ready && c.Serving && c.Terminating }

// isLocal tells that the endpoint is on the node of that name; an endpoint without nodeName is on none.
func isLocal(c *candidate, node string) bool { return c.Node != "" && c.Node == node }
