// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"net/netip"
	"sort"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// This file is a second model, written straight from the pseudo-code of service-semantics.md, section 2, one packet at a
// time and without a thought for speed. It shares no code with decide.

// first is the first packet of a connection.
type first struct {
	dst    netip.Addr
	dport  uint16
	proto  lb.Protocol
	inside bool // from a pod of this node or the node itself
	src    netip.Addr
}

// oracle says "pass", "reject", "drop" or the sorted endpoints that may get the packet.
func oracle(w world, pkt first) string {
	svc := w.in.Service
	for _, port := range svc.Ports {
		if port.Protocol != pkt.proto {
			continue
		}
		if pkt.dport == port.Port && has(svc.ClusterIPs, pkt.dst) {
			return oracleInternal(w, port, pkt)
		}
	}
	for _, port := range svc.Ports {
		if port.Protocol != pkt.proto || !oracleServes(svc, pkt.dst) {
			continue
		}
		if pkt.dport == port.Port && has(svc.LoadBalancerIPs, pkt.dst) {
			if !oracleInRanges(w, pkt) {
				return "drop"
			}
			return oracleExternal(w, port, pkt)
		}
		if pkt.dport == port.Port && has(svc.ExternalIPs, pkt.dst) {
			return oracleExternal(w, port, pkt)
		}
		if port.NodePort != 0 && pkt.dport == port.NodePort && has(w.node.NodePortIPs, pkt.dst) {
			return oracleExternal(w, port, pkt)
		}
	}
	return "pass"
}

// oracleServes: one proxier per family; it ignores a Service without cluster IP of its family. A Service without any
// cluster IP is ours to define: every family.
func oracleServes(svc lb.Service, dst netip.Addr) bool {
	if len(svc.ClusterIPs) == 0 {
		return true
	}
	for _, ip := range svc.ClusterIPs {
		if ip.Is4() == dst.Is4() {
			return true
		}
	}
	return false
}

func oracleInRanges(w world, pkt first) bool {
	family := []netip.Prefix{}
	for _, r := range w.in.Service.SourceRanges {
		if r.Addr().Is4() == pkt.dst.Is4() {
			family = append(family, r)
			if r.Bits() == 0 {
				return true
			}
		}
	}
	if len(family) == 0 {
		return true
	}
	var nodeIP netip.Addr
	for _, a := range w.node.Addresses {
		if a.Is4() == pkt.dst.Is4() && !nodeIP.IsValid() {
			nodeIP = a
		}
	}
	for _, r := range family {
		if r.Contains(pkt.src) {
			return true
		}
		if nodeIP.IsValid() && r.Contains(nodeIP) && has(w.in.Service.LoadBalancerIPs, pkt.src) {
			return true
		}
	}
	return false
}

func oracleInternal(w world, port lb.ServicePort, pkt first) string {
	C, L, hasAny := oracleCategorize(w, port, pkt.dst.Is4())
	if !hasAny {
		return "reject"
	}
	if w.in.Service.Internal == "Local" {
		return oracleLocal(w, C, L)
	}
	return oracleCluster(C)
}

// oracleCluster: with endpoints anywhere, the cluster list is empty by topology keys alone, and the Service is refused then.
func oracleCluster(C []lb.Endpoint) string {
	if len(C) == 0 {
		return "reject"
	}
	return oracleNames(C)
}

func oracleLocal(w world, C, L []lb.Endpoint) string {
	if len(L) > 0 {
		return oracleNames(L)
	}
	if w.in.Service.LocalFallback {
		return oracleCluster(C)
	}
	return "drop"
}

func oracleExternal(w world, port lb.ServicePort, pkt first) string {
	C, L, hasAny := oracleCategorize(w, port, pkt.dst.Is4())
	if !hasAny {
		return "reject"
	}
	if !oracleETPLocal(w.in.Service) || pkt.inside {
		return oracleCluster(C)
	}
	return oracleLocal(w, C, L)
}

func oracleETPLocal(svc lb.Service) bool {
	if svc.External != "Local" {
		return false
	}
	return svc.Type == "LoadBalancer" || svc.Type == "NodePort" || (svc.Type == "ClusterIP" && len(svc.ExternalIPs) > 0)
}

// oracleCategorize makes both lists whether or not they are used.
func oracleCategorize(w world, port lb.ServicePort, v4 bool) (C, L []lb.Endpoint, hasAny bool) {
	eps := oracleUnion(w.in.Endpoints, port, v4)
	node, zone := w.node.Name, w.node.Zone
	m := oracleMode(eps, node, zone)
	if keys := w.in.Service.TopologyKeys; len(keys) > 0 {
		C = oracleKeys(w.node, keys, oracleUsable(eps))
		m = "DONE"
	} else if d := w.in.Service.Distribution; d != "" {
		C = oraclePlace(w.node, string(d), eps)
		m = "DONE"
	}
	for _, e := range eps {
		if e.Ready && (m == "NONE" || m == "SAME_NODE" && hasName(e.NodeHints, node) || m == "SAME_ZONE" && hasName(e.ZoneHints, zone)) {
			C = append(C, e)
		}
	}
	if len(C) == 0 && len(w.in.Service.TopologyKeys) == 0 {
		for _, e := range eps {
			if e.Serving && e.Terminating {
				C = append(C, e)
			}
		}
	}
	for _, e := range eps {
		if e.Ready || e.Serving && e.Terminating {
			hasAny = true
		}
		if e.Node != "" && e.Node == node && e.Ready {
			L = append(L, e)
		}
	}
	if len(L) == 0 {
		for _, e := range eps {
			if e.Node != "" && e.Node == node && e.Serving && e.Terminating {
				L = append(L, e)
			}
		}
	}
	return C, L, hasAny
}

// oracleMode is decided from ready endpoints only. An unknown name matches nothing.
func oracleMode(eps []lb.Endpoint, node, zone string) string {
	R := 0
	everyNode, someNode, everyZone, someZone := true, false, true, false
	for _, e := range eps {
		if !e.Ready {
			continue
		}
		R++
		if len(e.NodeHints) == 0 {
			everyNode = false
		}
		if len(e.ZoneHints) == 0 {
			everyZone = false
		}
		if node != "" && hasName(e.NodeHints, node) {
			someNode = true
		}
		if zone != "" && hasName(e.ZoneHints, zone) {
			someZone = true
		}
	}
	if R == 0 {
		return "NONE"
	}
	if everyNode && someNode {
		return "SAME_NODE"
	}
	if everyZone && someZone {
		return "SAME_ZONE"
	}
	return "NONE"
}

// oracleUnion is the port's endpoints of one family over all slices, each ip:port once: the first in oracleRank's order.
func oracleUnion(all []lb.Endpoint, port lb.ServicePort, v4 bool) []lb.Endpoint {
	best := map[string]lb.Endpoint{}
	for _, e := range all {
		if e.Port.Name != port.Name || e.Port.Protocol != port.Protocol || e.Address.Addr().Is4() != v4 {
			continue
		}
		old, found := best[e.Address.String()]
		if !found || oracleRank(e) < oracleRank(old) {
			best[e.Address.String()] = e
		}
	}
	var out []lb.Endpoint
	for _, e := range best {
		out = append(out, e)
	}
	return out
}

// oracleRank is a text that sorts as copies do: condition, node known, zone known, names. The marks between and before names sort before any letter.
func oracleRank(e lb.Endpoint) string {
	rank := "9"
	switch {
	case e.Ready && !e.Terminating:
		rank = "1"
	case e.Ready && e.Terminating:
		rank = "2"
	case e.Terminating && e.Serving:
		rank = "3"
	case !e.Terminating:
		rank = "4"
	}
	return fmt.Sprintf("%s %v %v %s\x01%s\x01%s\x01%s\x01%s", rank, e.Node == "", e.Zone == "", e.Node, e.Zone,
		e.Region, oracleHints(e.NodeHints), oracleHints(e.ZoneHints))
}

func oracleHints(names []string) string {
	out := ""
	for _, n := range names {
		out += "\x02" + n
	}
	return out
}

func oracleNames(eps []lb.Endpoint) string {
	var out []string
	for _, e := range eps {
		out = append(out, e.Address.String())
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func has(list []netip.Addr, a netip.Addr) bool {
	for _, x := range list {
		if x == a {
			return true
		}
	}
	return false
}

func hasName(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
