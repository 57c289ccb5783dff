// SPDX-License-Identifier: Apache-2.0

// Package decide is the pure model: what a node does for one Service, and why. No clock, no map, no log. It gives the
// answers of kube-proxy (nftables mode, Kubernetes 1.36) but for the differences that docs/differences.md lists.
//
// The lists of backends, C (cluster) and L (local), are made for one service port and one address family at a time
// (lists.go) and chosen by the kind of frontend and the side its client is on (sides.go).
package decide

import (
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Decide says what the node does for the Service. It is total: it gives an answer for any input and never panics. It is
// canonical: the order of endpoints, addresses and ports does not matter, nor how endpoints are cut into slices, but for
// the names of slices that reasons carry. The result shares memory with itself (frontends of a port have the same
// lists) and with the input's strings: do not edit it.
func Decide(in lb.Input, node lb.Node) lb.Decision {
	d, pools := serve(in, node)
	ports := servicePorts(in.Service)
	d.Endpoints = make([]lb.EndpointReason, 0, len(in.Endpoints))
	for i := range pools {
		d.Endpoints = pools[i].appendReasons(d.Endpoints, in.Service.Name, ports)
	}
	d.Endpoints = appendUnservable(d.Endpoints, in)
	slices.SortFunc(d.Endpoints, lb.EndpointReason.Compare)
	return d
}

// Serve is Decide for those who publish: it leaves out why each endpoint is used or not (Decision.Endpoints).
func Serve(in lb.Input, node lb.Node) lb.Decision {
	d, _ := serve(in, node)
	return d
}

func serve(in lb.Input, node lb.Node) (lb.Decision, []pool) {
	node = canonicalNode(node)
	rules := policies(in.Service)
	doors, problems := frontends(in, node)
	pools := gather(in.Endpoints)

	use := listsInUse(doors, rules)
	byKey := make(map[poolKey]*pool, len(pools))
	d := lb.Decision{
		Service: in.Service.Name, Held: in.Held, Ejection: in.Service.Ejection, OffNode: in.Service.OffNode, KeepLost: in.Service.KeepLost, RetryRefused: in.Service.RetryRefused, UDPRetry: in.Service.UDPRetry, Balancing: in.Service.Balancing,
		Backends: make([]lb.Backend, 0, len(in.Endpoints)),
	}
	for i := range pools {
		p := &pools[i]
		p.choose(use[p.poolKey], &in, node)
		byKey[p.poolKey] = p
		d.Backends = p.appendBackends(d.Backends, node)
	}
	for i := range doors {
		answerSides(&doors[i], rules, byKey[keyOf(doors[i])])
	}
	d.Frontends = doors
	alsoAt(&d, in.AlsoAt, node)
	respond(&d, in.Responders, node)
	d.Problems = append(problems, in.Problems...)
	slices.SortFunc(d.Frontends, lb.Frontend.Compare)
	slices.SortFunc(d.Backends, func(a, b lb.Backend) int { return a.Key.Compare(b.Key) })
	slices.SortFunc(d.Problems, lb.Problem.Compare)
	d.Problems = slices.Compact(d.Problems)
	return d, pools
}

// LocalReady counts the distinct addresses of one family that ready endpoints on this node have, over all ports of the Service:
// what a health check node port (spec.healthCheckNodePort) reports on the node's addresses of that family, as kube-proxy has a
// server for each. False: the Service is not served in the family, and nobody listens there. Not ready but terminating endpoints
// do not count.
func LocalReady(in lb.Input, node lb.Node, v4 bool) (count int, ok bool) {
	if !served(addresses(in.Service.ClusterIPs), v4) {
		return 0, false
	}
	pools := gather(in.Endpoints)
	ready := make(map[netip.Addr]bool)
	for i := range pools {
		if pools[i].v4 != v4 {
			continue
		}
		for _, e := range pools[i].winners {
			if isReady(e) && isLocal(e, node.Name) {
				ready[e.Address.Addr()] = true
			}
		}
	}
	return len(ready), true
}
