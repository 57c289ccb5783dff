// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"net/netip"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

const serverPort = 8080

// service is one frontend with a number of servers; the zero values are a ClusterIP that balances.
type service struct {
	kind     lb.Kind
	at       netip.AddrPort
	protocol lb.Protocol
	servers  []int
	quiet    []int // of the servers, those that serve no more
	deny     lb.Action
	reason   lb.Reason
	affinity time.Duration
	ranges   []netip.Prefix
}

func (s service) decide() lb.Decision {
	name := lb.ServiceName{Namespace: "default", Name: "web"}
	d := lb.Decision{Service: name}
	side := lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster}
	if s.deny != "" {
		side.Action, side.Reason = s.deny, s.reason
	}
	tier := lb.Tier{Name: lb.TierCluster}
	for _, n := range s.servers {
		key := lb.BackendKey{Port: lb.PortKey{Protocol: s.protocol}, Address: netip.AddrPortFrom(backend(s.at.Addr().Is6(), n), serverPort)}
		b := lb.Backend{Key: key, State: lb.Active, Near: lb.TierCluster, Lists: []lb.List{lb.ListCluster}}
		if s.isQuiet(n) {
			b.State, b.Lists = lb.Quiet, nil
		} else {
			tier.Backends = append(tier.Backends, key)
		}
		d.Backends = append(d.Backends, b)
	}
	if side.Action == lb.Balance {
		side.Tiers = []lb.Tier{tier}
	}
	kind := s.kind
	if kind == "" {
		kind = lb.KindClusterIP
	}
	d.Frontends = []lb.Frontend{{
		Key: lb.FrontendKey{Address: s.at, Protocol: s.protocol}, Port: lb.PortName{Service: name, Protocol: s.protocol},
		Kind: kind, Affinity: s.affinity, SourceRanges: s.ranges, Internal: side, External: side,
	}}
	return d
}

func (s service) isQuiet(n int) bool {
	for _, q := range s.quiet {
		if q == n {
			return true
		}
	}
	return false
}
