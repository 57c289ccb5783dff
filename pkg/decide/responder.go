// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// alsoAt has the cluster's DNS asked at further addresses: at NodeLocal DNSCache's. This node's own clients get there what they get at the
// ClusterIP of the family; clients off the node find nobody. The addresses are of kind ExternalIP: what else listens at them is left alone.
func alsoAt(d *lb.Decision, addresses []netip.Addr, node lb.Node) {
	for i := range d.Frontends {
		for _, a := range addresses {
			f := d.Frontends[i] // not a pointer: the slice grows
			key := lb.FrontendKey{Address: netip.AddrPortFrom(a, lb.NamesPort), Protocol: f.Key.Protocol}
			same := func(o lb.Frontend) bool { return o.Key == key }
			if f.Kind != lb.KindClusterIP || !asksNames(&f) || f.Key.Address.Addr().Is4() != a.Is4() || slices.ContainsFunc(d.Frontends, same) {
				continue
			}
			f.Key, f.Kind, f.OnHost = key, lb.KindExternalIP, isNodes(a, node)
			f.External = lb.Side{Action: lb.Reject, Reason: lb.ReasonNoEndpoints, List: f.Internal.List}
			d.Frontends = append(d.Frontends, f)
		}
	}
}

// asksNames tells whether a frontend is where names are asked for.
func asksNames(f *lb.Frontend) bool {
	return f.Key.Address.Port() == lb.NamesPort && (f.Key.Protocol == lb.TCP || f.Key.Protocol == lb.UDP)
}

// respond lets this node's responder answer names for its own clients: before the endpoints, which have their turn when it does not
// live. It answers where there are no endpoints, too.
func respond(d *lb.Decision, responders []netip.AddrPort, node lb.Node) {
	for _, at := range responders {
		for i := range d.Frontends {
			f := &d.Frontends[i]
			if !asksNames(f) || f.Key.Address.Addr().Is4() != at.Addr().Is4() {
				continue
			}
			key := lb.BackendKey{Port: f.Port.Key(), Address: at}
			known := slices.IndexFunc(d.Backends, func(b lb.Backend) bool { return b.Key == key })
			if known >= 0 && d.Backends[known].State != lb.Responder {
				continue // it is an endpoint of the Service
			}
			if known < 0 {
				known = len(d.Backends)
				d.Backends = append(d.Backends, lb.Backend{Key: key, Node: node.Name, Zone: node.Zone, State: lb.Responder, Near: lb.TierNode})
			}
			f.Internal = first(key, f.Internal)
			if b := &d.Backends[known]; !slices.Contains(b.Lists, f.Internal.List) {
				b.Lists = append(b.Lists, f.Internal.List)
				slices.Sort(b.Lists)
			}
		}
	}
}

// first is a side that tries a backend before its own.
func first(key lb.BackendKey, s lb.Side) lb.Side {
	if s.Action != lb.Balance {
		s = lb.Side{Action: lb.Balance, Reason: lb.ReasonSameNode, List: s.List}
	}
	s.Tiers = append([]lb.Tier{{Name: lb.TierNode, Backends: []lb.BackendKey{key}}}, s.Tiers...)
	return s
}
