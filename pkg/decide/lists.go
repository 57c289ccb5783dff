// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// list is one of a pool's two lists of backends and how it was chosen.
type list struct {
	keys   []lb.BackendKey // by address
	reason lb.Reason
	tier   lb.TierName
}

// use says which lists of a pool some side of some frontend asks for. A list that nobody asks for stays empty.
type use struct {
	cluster, local bool
	localFirst     bool // clients of the cluster IP get the local list: it explains the endpoints before the other
}

// choose fills the lists of the pool for this node.
func (p *pool) choose(u use, node lb.Node) {
	p.inUse, p.node = u, node.Name
	if u.cluster {
		p.cluster = p.clusterList(node)
	}
	if u.local {
		p.local = p.localList()
	}
}

// clusterList is C of service-semantics.md: the ready endpoints that hints leave for this node; all that serve while
// terminating, anywhere, when none is ready.
func (p *pool) clusterList(node lb.Node) list {
	in := func(c *candidate) *bool { return &c.inCluster }
	if !slices.ContainsFunc(p.winners, isReady) {
		return p.collect(lb.ReasonTerminating, lb.TierCluster, in, isDraining)
	}
	forNode := func(c *candidate) bool { return c.Ready && slices.Contains(c.NodeHints, node.Name) }
	forZone := func(c *candidate) bool { return c.Ready && slices.Contains(c.ZoneHints, node.Zone) }
	hintsNode := func(c *candidate) bool { return len(c.NodeHints) > 0 }
	hintsZone := func(c *candidate) bool { return len(c.ZoneHints) > 0 }
	switch {
	case node.Name != "" && p.everyReady(hintsNode) && slices.ContainsFunc(p.winners, forNode):
		return p.collect(lb.ReasonSameNode, lb.TierNode, in, forNode)
	case node.Zone != "" && p.everyReady(hintsZone) && slices.ContainsFunc(p.winners, forZone):
		return p.collect(lb.ReasonSameZone, lb.TierZone, in, forZone)
	}
	return p.collect(lb.ReasonAll, lb.TierCluster, in, isReady)
}

// localList is L of service-semantics.md: the ready endpoints of this node, whatever hints say; those that serve while
// terminating when none of this node is ready. Never a remote one.
func (p *pool) localList() list {
	in := func(c *candidate) *bool { return &c.inLocal }
	ready := func(c *candidate) bool { return c.Ready && isLocal(c, p.node) }
	if slices.ContainsFunc(p.winners, ready) {
		return p.collect(lb.ReasonLocal, lb.TierNode, in, ready)
	}
	draining := func(c *candidate) bool { return isDraining(c) && isLocal(c, p.node) }
	return p.collect(lb.ReasonLocalTerminating, lb.TierNode, in, draining)
}

// collect makes the list of those that belong and marks them as members.
func (p *pool) collect(reason lb.Reason, tier lb.TierName, member func(*candidate) *bool, belongs func(*candidate) bool) list {
	l := list{keys: make([]lb.BackendKey, 0, len(p.winners)), reason: reason, tier: tier}
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
	return slices.ContainsFunc(p.winners, func(c *candidate) bool { return c.Ready || isDraining(c) })
}

func (p *pool) everyReady(holds func(*candidate) bool) bool {
	return !slices.ContainsFunc(p.winners, func(c *candidate) bool { return c.Ready && !holds(c) })
}

func isReady(c *candidate) bool { return c.Ready }

// isDraining: terminating and still serving. An endpoint that is ready too, as publishNotReadyAddresses makes it, counts
// as ready.
func isDraining(c *candidate) bool { return !c.Ready && c.Serving && c.Terminating }

// isLocal tells that the endpoint is on the node of that name; an endpoint without nodeName is on none.
func isLocal(c *candidate, node string) bool { return c.Node != "" && c.Node == node }
