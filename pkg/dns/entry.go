// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// entry is a Service in force. What its names answer with is made of it when they are asked for: that takes as long as the records do, and
// 100,000 endpoints take no more memory than their addresses. It is never edited.
type entry struct {
	service  *lb.NamedService
	number   uint32 // in View.entries
	podNames bool   // as in ViewOptions
}

// candidate is an address, or a name instead of one, under one port.
type candidate struct {
	address  netip.Addr     // of an endpoint that has a name instead none
	port     *lb.NamedPort  // nil: none, so no SRV record
	slice    *lb.NamedSlice // of an endpoint; nil: a frontend
	endpoint int32          // its index in the slice
	podNames bool           // as in ViewOptions
	near     nearness       // where the Service asks for an order
}

// nearness says how near an endpoint is to this node: the smaller, the nearer.
type nearness uint8

const (
	nearNode nearness = iota
	nearZone
	nearRegion
	nearCluster
)

// external is what an ExternalName stands for, an absolute name; "" for all others, and for an address, which is no name (CoreDNS).
func (e *entry) external() string {
	if e.service.ExternalName == "" {
		return ""
	}
	if _, err := netip.ParseAddr(e.service.ExternalName); err == nil {
		return ""
	}
	return wireName(e.service.ExternalName)
}

// wireName is a name with its last dot.
func wireName(text string) string { return strings.TrimSuffix(text, ".") + "." }

// addresses are those of ready endpoints, sorted.
func (e *entry) addresses() (all [][16]byte) {
	for c := range e.endpoints() {
		if c.address.IsValid() {
			all = append(all, c.address.As16())
		}
	}
	return sorted(all)
}

// clusterIPs are what reverse names find first, sorted.
func (e *entry) clusterIPs() (all [][16]byte) {
	for _, a := range e.service.ClusterIPs {
		all = append(all, a.As16())
	}
	return sorted(all)
}

// frontends are one candidate for each port and ClusterIP.
func (e *entry) frontends() (all []candidate) {
	s := e.service
	all = make([]candidate, 0, max(1, len(s.Ports))*len(s.ClusterIPs))
	for i := range max(1, len(s.Ports)) { // without ports addresses have names, too
		for _, a := range s.ClusterIPs {
			c := candidate{address: a}
			if len(s.Ports) > 0 {
				c.port = &s.Ports[i]
			}
			all = append(all, c)
		}
	}
	return all
}

// endpoints are one candidate for each ready endpoint, without port.
func (e *entry) endpoints() iter.Seq[candidate] {
	return func(yield func(candidate) bool) {
		for _, slice := range e.service.Slices {
			for i := range slice.Endpoints {
				if slice.Endpoints[i].Is&lb.IsReady != 0 && !yield(e.candidate(slice, i)) {
					return
				}
			}
		}
	}
}

func (e *entry) candidate(slice *lb.NamedSlice, i int) candidate {
	return candidate{address: slice.Endpoints[i].Addr(), slice: slice, endpoint: int32(i), podNames: e.podNames}
}

// hasReady tells whether there is a ready endpoint.
func (e *entry) hasReady() bool {
	for range e.endpoints() {
		return true
	}
	return false
}

// choice says which endpoints are asked for; nil functions: all.
type choice struct {
	endpoint func(slice *lb.NamedSlice, i int) bool // by the index in the slice
	port     func(candidate) bool
}

// backends are one candidate for each ready endpoint and port of its slice that are asked for, nearest first where the Service asks for an
// order. It takes as long as there are endpoints.
func (e *entry) backends(node lb.Node, of choice) (all []candidate) {
	if of.endpoint == nil && of.port == nil {
		all = make([]candidate, 0, e.most())
	}
	for _, slice := range e.service.Slices {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Is&lb.IsReady == 0 || of.endpoint != nil && !of.endpoint(slice, i) {
				continue
			}
			c := e.candidate(slice, i)
			for p := range max(1, len(slice.Ports)) { // without ports addresses have names, too
				if len(slice.Ports) > 0 {
					c.port = &slice.Ports[p]
				}
				if of.port == nil || of.port(c) {
					all = append(all, c)
				}
			}
		}
	}
	if e.service.Selection == lb.NamesShuffled {
		return all
	}
	return inOrder(all, node)
}

// has is the endpoints that have an address.
func has(a netip.Addr) choice {
	address := a.As16()
	return choice{endpoint: func(slice *lb.NamedSlice, i int) bool { return slice.Endpoints[i].Address == address }}
}

// most is how many backends there may be.
func (e *entry) most() (n int) {
	for _, slice := range e.service.Slices {
		n += len(slice.Endpoints) * max(1, len(slice.Ports))
	}
	return n
}

// inOrder are the nearest first, otherwise as they are.
func inOrder(all []candidate, node lb.Node) []candidate {
	for i := range all {
		all[i].near = all[i].nearness(node)
	}
	out := make([]candidate, 0, len(all))
	for near := nearNode; near <= nearCluster; near++ {
		for _, c := range all {
			if c.near == near {
				out = append(out, c)
			}
		}
	}
	return out
}

// number is the port's; 0: none, so there is no SRV record.
func (c candidate) number() uint16 {
	if c.port == nil {
		return 0
	}
	return c.port.Number
}

// isOf tells whether a candidate has the port and the protocol, lower case, that a name has; "" is any.
func (c candidate) isOf(port, protocol string) bool {
	if c.port == nil {
		return port == "" && protocol == ""
	}
	return (port == "" || strings.EqualFold(c.port.Name, port)) && (protocol == "" || protocol == protocolLabel(c.port.Protocol))
}

// protocolLabel is the protocol as in SRV names.
func protocolLabel(p lb.Protocol) string {
	switch p {
	case lb.TCP:
		return "tcp"
	case lb.UDP:
		return "udp"
	case lb.SCTP:
		return "sctp"
	}
	return ""
}

// target is the absolute name that an endpoint has instead of an address; "" none.
func (c candidate) target() string {
	if c.slice == nil || c.address.IsValid() {
		return ""
	}
	if target := c.slice.Target(int(c.endpoint)); target != "" {
		return wireName(target)
	}
	return ""
}

// host is the endpoint's own name below its Service: its hostname, else its Pod's name where that was asked for, else its address with
// dashes. "" for a frontend.
func (c candidate) host() string { return string(c.appendHost(nil)) }

func (c candidate) appendHost(to []byte) []byte {
	if c.slice == nil {
		return to
	}
	i := int(c.endpoint)
	if given := given(c.slice, i, c.podNames); given != "" {
		return append(to, given...)
	}
	from := len(to)
	if c.address.IsValid() {
		to = c.address.AppendTo(to)
	} else {
		to = append(to, c.slice.Target(i)...)
	}
	return dashed(to, from)
}

// given is the host unless that is made of the address.
func given(slice *lb.NamedSlice, i int, podNames bool) string {
	if hostname := slice.Hostname(i); hostname != "" || !podNames {
		return hostname
	}
	return slice.Pod(i)
}

// place is where an endpoint is.
func (c candidate) place() lb.Place {
	if c.slice == nil {
		return lb.Place{}
	}
	return c.slice.Endpoints[c.endpoint].At.Value()
}

// nearness compares with what is known of this node; what is unknown is far.
func (c candidate) nearness(node lb.Node) nearness {
	at := c.place()
	same := func(a, b string) bool { return a != "" && a == b }
	switch {
	case same(at.Node, node.Name):
		return nearNode
	case same(at.Zone, node.Zone):
		return nearZone
	case same(at.Region, node.Region):
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
	return slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return zone == "" || !strings.EqualFold(c.place().Zone, zone) })
}

// dashed makes the name of an endpoint without hostname of its address, which stands in a text from an index on: with dashes, as CoreDNS
// writes it.
func dashed(name []byte, from int) []byte {
	for i := from; i < len(name); i++ {
		if name[i] == '.' || name[i] == ':' {
			name[i] = '-'
		}
	}
	if len(name) > from && name[len(name)-1] == '-' {
		name = append(name, '0')
	}
	return name
}

// undashed is the address that a label may stand for, as pods' names have it, too; false: none.
func undashed(label string) (netip.Addr, bool) {
	separator := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		separator = "."
	}
	text := strings.ReplaceAll(label, "-", separator)
	if strings.Trim(text, "0123456789abcdef.:") != "" { // most hostnames, without an error's text
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == ""
}
