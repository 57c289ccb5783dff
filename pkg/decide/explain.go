// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// appendBackends adds what the tables have of a pool that frontends lead to: each address once, in a list or not.
func (p *pool) appendBackends(out []lb.Backend, node lb.Node) []lb.Backend {
	if p.inUse == (use{}) {
		return out
	}
	both := []lb.List{lb.ListCluster, lb.ListLocal} // shared by all, instead of one for each
	weighted := slices.ContainsFunc(p.winners, func(c *candidate) bool { return c.Weight.Given || c.Warm > 0 })
	spilled := slices.ContainsFunc(p.winners, func(c *candidate) bool { return c.share > 0 })
	for _, c := range p.winners {
		out = append(out, lb.Backend{
			Key:   lb.BackendKey{Port: c.Port, Address: c.Address},
			Node:  c.Node,
			Zone:  c.Zone,
			State: state(c),
			Near:  near(c, node),
			Lists: lists(c, both),
		})
		switch last := &out[len(out)-1]; {
		case len(last.Lists) == 0:
		case spilled:
			last.Weight = max(c.share, leastShare) // one of the local list alone, on a Node of another zone, has none
		case weighted:
			last.Weight, last.Warm = c.Weight.Number(), c.Warm
		}
	}
	return out
}

func state(c *candidate) lb.State {
	switch {
	case c.Ready:
		return lb.Active
	case drains(c):
		return lb.Draining
	}
	return lb.Quiet
}

// near compares places by name; an unknown name is never the same as another.
func near(c *candidate, node lb.Node) lb.TierName {
	same := func(a, b string) bool { return a != "" && a == b }
	switch {
	case same(c.Node, node.Name):
		return lb.TierNode
	case same(c.Zone, node.Zone):
		return lb.TierZone
	case same(c.Region, node.Region):
		return lb.TierRegion
	}
	return lb.TierCluster
}

// lists names the lists a backend is in.
func lists(c *candidate, both []lb.List) []lb.List {
	switch {
	case c.inCluster && c.inLocal:
		return both
	case c.inCluster:
		return both[:1:1]
	case c.inLocal:
		return both[1:]
	}
	return nil
}

// appendReasons explains every copy of the pool's endpoints.
func (p *pool) appendReasons(out []lb.EndpointReason, service lb.ServiceName, ports map[lb.PortKey]bool) []lb.EndpointReason {
	var winner *candidate
	for i, c := range p.copies {
		if i == 0 || winner.Address != c.Address {
			winner = c
		}
		row := explained(c.Endpoint, service)
		switch {
		case !ports[p.port]:
			row.Reason = lb.ReasonNoServicePort
		case p.inUse == (use{}):
			row.Reason = lb.ReasonOtherFamily
		case !sameAnswer(c.Endpoint, winner.Endpoint):
			row.Reason = lb.ReasonDuplicate
		default:
			row.Selected, row.Reason = p.why(winner)
		}
		out = append(out, row)
	}
	return out
}

// appendUnservable explains the endpoints that gather left out.
func appendUnservable(out []lb.EndpointReason, in lb.Input) []lb.EndpointReason {
	for i := range in.Endpoints {
		if e := &in.Endpoints[i]; !servable(e) {
			row := explained(e, in.Service.Name)
			row.Reason = lb.ReasonNoAddress
			out = append(out, row)
		}
	}
	return out
}

func explained(e *lb.Endpoint, service lb.ServiceName) lb.EndpointReason {
	return lb.EndpointReason{
		Port:    lb.PortName{Service: service, Port: e.Port.Name, Protocol: e.Port.Protocol},
		Address: canonicalPort(e.Address),
		Slice:   e.Slice,
		Node:    e.Node,
		Zone:    e.Zone,
	}
}

// why says whether traffic may reach the endpoint from this node, and why. One that is in both lists has the reason of the
// list that clients of the cluster IP get.
func (p *pool) why(c *candidate) (selected bool, reason lb.Reason) {
	switch {
	case c.inLocal && (p.inUse.localFirst || !c.inCluster):
		return true, p.local.reason
	case c.inCluster && p.fallback && (p.inUse.localFirst || !p.inUse.cluster):
		return true, lb.ReasonLocalFallback
	case c.inCluster && p.cluster.note == lb.NoteOverflow && c.Zone != p.zone:
		return true, lb.ReasonOverflow
	case c.inCluster:
		return true, p.cluster.reason
	case !takesNew(c) && (c.Ready || drains(c)):
		return false, lb.ReasonWeightZero
	case c.Ready, p.cluster.draining && isDraining(c):
		return false, p.whyNotThisOne()
	case !c.Terminating:
		return false, lb.ReasonNotReady
	case !c.Serving:
		return false, lb.ReasonNotServing
	case !p.inUse.cluster && !isLocal(c, p.node):
		return false, lb.ReasonOtherNode
	}
	return false, lb.ReasonIsTerminating
}

// whyNotThisOne says what keeps an endpoint that could be used out of every list: keys, preferences or policy Local.
func (p *pool) whyNotThisOne() lb.Reason {
	if p.cluster.out != "" {
		return p.cluster.out
	}
	return lb.ReasonOtherNode
}
