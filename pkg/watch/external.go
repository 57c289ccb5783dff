// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// taken finds the external IPs of a Service that also belong to a Node, or to a range of ClusterIPs.
func (s *store) taken(svc *service) lb.Taken {
	if len(svc.more().ExternalIPs) == 0 {
		return nil
	}
	cidrs, out := s.ranges, lb.Taken{}
	for _, a := range svc.more().ExternalIPs {
		inside := func(p netip.Prefix) bool { return p.Contains(a) }
		if at := slices.IndexFunc(cidrs, inside); at >= 0 {
			out[a] = fmt.Sprintf("in %v, a range of ClusterIPs", cidrs[at])
		}
		if slices.Contains(s.cfg.IPs, a) {
			out[a] = "the address of Node " + s.cfg.Name
		} else if holders := s.holders[a]; len(holders) > 0 {
			out[a] = "the address of Node " + holders[0]
		}
	}
	return out
}

// touchExternal marks the Services with an external IP that a Node got or lost.
func (s *store) touchExternal(c *changes) {
	if len(c.moved) == 0 {
		return
	}
	moved := func(a netip.Addr) bool { return c.moved[a] }
	for name, svc := range s.services {
		if slices.ContainsFunc(svc.more().ExternalIPs, moved) {
			c.service(name)
		}
	}
}
