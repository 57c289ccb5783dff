// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/utils/net"

	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/trace"
)

// Addresses that are for Services, if the agent is told so.
var serviceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("2001:db8:96::/48")}

// first is the first packet of a connection, whatever its source port.
type first struct {
	from trace.Door
	src  netip.Addr
	target
}

// outcome is what may happen to a packet, as text.
type outcome string

// outcomes are all that may happen to the packets, one for each backend that may be picked.
func (m *model) outcomes(p first) []outcome {
	f, ok := m.find(p)
	if !ok {
		return []outcome{m.unknown(p)}
	}
	if f.kind == loadBalancer && !m.inRanges(f.service, p) {
		return []outcome{said("drop", "source-range", f)}
	}
	cluster, local, hasAny := m.lists(m.endpoints(f))
	backends := cluster
	if m.policyLocal(f, p) {
		backends = local
	}
	switch {
	case !hasAny:
		return []outcome{said("reject", "no-endpoints", f)}
	case len(backends) == 0:
		return []outcome{said("drop", "no-local-endpoints", f)}
	}
	var out []outcome
	for _, b := range backends {
		out = append(out, m.sent(p, f, b))
	}
	return out
}

// find is the frontend that the packet is for. The node's loopback addresses stand for its first NodePort address.
func (m *model) find(p first) (frontend, bool) {
	if !p.address.Addr().IsLoopback() {
		f, ok := m.doors[p.target]
		return f, ok
	}
	for _, a := range m.nodePortAddresses() {
		if a.Is4() == p.address.Addr().Is4() {
			f, ok := m.doors[target{netip.AddrPortFrom(a, p.address.Port()), p.protocol}]
			return f, ok && f.kind == nodePort
		}
	}
	return frontend{}, false
}

// unknown is for a target that no Service has: refused at a cluster IP, dropped inside the service CIDRs.
func (m *model) unknown(p first) outcome {
	for t, f := range m.doors {
		if f.kind == clusterIP && t.address.Addr() == p.address.Addr() {
			return "reject unknown-port"
		}
	}
	for _, cidr := range serviceCIDRs {
		if cidr.Contains(p.address.Addr()) {
			return "drop unallocated"
		}
	}
	return outcome(fmt.Sprintf("pass not-service, source %v", p.src))
}

// inRanges judges the source by loadBalancerSourceRanges.
func (m *model) inRanges(s *corev1.Service, p first) bool {
	v4 := p.src.Is4()
	own, some := m.own(v4), false
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		_, cidr, _ := utilnet.ParseCIDRSloppy(strings.TrimSpace(text))
		bits, size := cidr.Mask.Size()
		if (size == 32) != v4 {
			continue
		}
		some = true
		ownInside := own.IsValid() && cidr.Contains(own.AsSlice())
		for _, vip := range vips(s) {
			if ownInside && vip == p.src {
				return true
			}
		}
		if bits == 0 || cidr.Contains(p.src.AsSlice()) {
			return true
		}
	}
	return !some
}

// policyLocal: internalTrafficPolicy is for cluster IPs, externalTrafficPolicy for the others and for clients off the node.
func (m *model) policyLocal(f frontend, p first) bool {
	spec := f.service.Spec
	if f.kind == clusterIP {
		return or(spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal
	}
	return p.from == trace.FromNetwork && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// sent is what happens to a packet for which the backend was picked.
func (m *model) sent(p first, f frontend, b endpoint) outcome {
	reason, source := "balance", p.src
	switch {
	case p.from == trace.FromPod && b.address.Addr() == p.src:
		reason, source = "hairpin", maps.DefaultLoopback6()
		if p.src.Is4() {
			source = maps.DefaultLoopback4()
		}
	case p.from == trace.FromNetwork && !b.local:
		if source = m.own(p.src.Is4()); !source.IsValid() {
			return said("drop", "no-source", f)
		}
	}
	out := said("translate", reason, f) + outcome(fmt.Sprintf(", to %v, source %v", b.address, source))
	if source != p.src {
		out += ", snat"
	}
	return out
}

func said(verdict, reason string, f frontend) outcome {
	return outcome(fmt.Sprintf("%s %s by %s:%s", verdict, reason, f.name(), f.port.Name))
}

// seen reads an answer to one packet.
func seen(a trace.Answer) outcome {
	out := outcome(a.Verdict + " " + a.Reason)
	if a.Service != "" {
		out += outcome(fmt.Sprintf(" by %s:%s", a.Service, *a.Port))
	}
	for _, b := range a.Backends {
		out += outcome(fmt.Sprintf(", to %v", netip.AddrPortFrom(b.Address, b.Port)))
	}
	if a.Source != nil {
		out += outcome(fmt.Sprintf(", source %v", a.Source))
	}
	if a.SNAT {
		out += ", snat"
	}
	return out
}
