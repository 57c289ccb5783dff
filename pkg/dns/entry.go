// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// entry is what the names of one Service answer with, made when the Service or its slices change. It is never edited.
type entry struct {
	service    lb.NamedService
	external   string       // an absolute name; "" for all but ExternalName
	frontends  []candidate  // of a Service with ClusterIPs: one for each port and address
	backends   []candidate  // ready endpoints: one for each slice, port of it and address, nearest first where that was asked for
	clusterIPs []netip.Addr // what reverse names find
	addresses  []netip.Addr // of ready endpoints
}

// candidate is an address or target under one port.
type candidate struct {
	host     string // label of the endpoint's own name; "" for a frontend
	address  netip.Addr
	target   string // an absolute name instead of an address, of a slice with addressType FQDN
	port     string // name of the port, "" unnamed
	protocol string // as in SRV names, lower case; "" where there is no port
	number   uint16 // 0: no port, so no SRV record
	zone     string // lower case
	near     nearness
}

// nearness says how near an endpoint is to this node: the smaller, the nearer.
type nearness uint8

const (
	nearNode nearness = iota
	nearZone
	nearRegion
	nearCluster
)

func newEntry(s lb.NamedService, o ViewOptions) *entry {
	e := &entry{service: s, clusterIPs: slices.Clone(s.ClusterIPs)}
	if s.ExternalName != "" {
		if _, err := netip.ParseAddr(s.ExternalName); err != nil { // an address is no name (CoreDNS)
			e.external = strings.TrimSuffix(s.ExternalName, ".") + "."
		}
	}
	for _, p := range portsOrNone(s.Ports) {
		for _, a := range s.ClusterIPs {
			e.frontends = append(e.frontends, candidate{address: a, port: p.Name, protocol: protocolLabel(p), number: p.Number})
		}
	}
	for _, slice := range s.Slices {
		for _, in := range slice.Endpoints {
			if in.Ready {
				e.backends = appendCandidates(e.backends, in, slice.Ports, o)
			}
		}
	}
	for _, c := range e.backends {
		if c.address.IsValid() {
			e.addresses = append(e.addresses, c.address)
		}
	}
	slices.SortFunc(e.addresses, netip.Addr.Compare)
	e.addresses = slices.Compact(e.addresses)
	if s.Selection != lb.NamesShuffled {
		slices.SortStableFunc(e.backends, func(a, b candidate) int { return cmp.Compare(a.near, b.near) })
	}
	return e
}

// portsOrNone stands in for the ports of an object that has none: its addresses have names, too.
func portsOrNone(ports []lb.NamedPort) []lb.NamedPort {
	if len(ports) == 0 {
		return []lb.NamedPort{{}}
	}
	return ports
}

// protocolLabel is "tcp", "udp" or "sctp"; "" for the stand-in of no port.
func protocolLabel(p lb.NamedPort) string {
	if p.Protocol == 0 {
		return ""
	}
	return strings.ToLower(p.Protocol.String())
}

// appendCandidates makes one candidate for each address and port of an endpoint.
func appendCandidates(all []candidate, in lb.NamedEndpoint, ports []lb.NamedPort, o ViewOptions) []candidate {
	of := candidate{zone: strings.ToLower(in.Zone), near: nearnessOf(in, o.Node)}
	add := func(text string) {
		of.host = hostLabel(in, text, o.PodNames)
		for _, p := range portsOrNone(ports) {
			of.port, of.protocol, of.number = p.Name, protocolLabel(p), p.Number
			all = append(all, of)
		}
	}
	for _, a := range in.Addresses {
		of.address = a
		add(a.String())
	}
	of.address = netip.Addr{}
	for _, name := range in.Targets {
		of.target = strings.TrimSuffix(name, ".") + "."
		add(name)
	}
	return all
}

// hostLabel is the endpoint's own name below its Service: its hostname, else its Pod's name where that was asked for, else its address
// with dashes.
func hostLabel(in lb.NamedEndpoint, address string, podNames bool) string {
	switch {
	case in.Hostname != "":
		return in.Hostname
	case podNames && in.Pod != "":
		return in.Pod
	}
	return dashed(address)
}

// nearnessOf compares with what is known of this node; what is unknown is far.
func nearnessOf(in lb.NamedEndpoint, node lb.Node) nearness {
	same := func(a, b string) bool { return a != "" && a == b }
	switch {
	case same(in.Node, node.Name):
		return nearNode
	case same(in.Zone, node.Zone):
		return nearZone
	case same(in.Region, node.Region):
		return nearRegion
	}
	return nearCluster
}

// selected are those of a headless Service's endpoints that its name answers with. They are all of the port that the name has: the nearest
// tier is that of the port, as it is for packets.
func (e *entry) selected(all []candidate, zone string) []candidate {
	switch e.service.Selection {
	case lb.NamesPrefer:
		return nearest(all)
	case lb.NamesPin:
		return inZone(all, zone)
	}
	return all
}

// nearest are those of the nearest tier of each family, as packets have it: a client of the one is not left alone because of an endpoint
// of the other. They are sorted.
func nearest(all []candidate) (out []candidate) {
	tiers := map[int]nearness{}
	for _, c := range all {
		family := c.address.BitLen() // 0 of a name
		if near, known := tiers[family]; !known || near == c.near {
			tiers[family] = c.near
			out = append(out, c)
		}
	}
	return out
}

// inZone are the candidates of a zone; none where the zone is unknown.
func inZone(all []candidate, zone string) []candidate {
	zone = strings.ToLower(zone)
	return slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return zone == "" || c.zone != zone })
}
