// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"slices"
	"unique"
)

// NamedService is what the names of one Service are made of (kubernetes/dns specification 1.1.0): the Service and the EndpointSlices
// whose label names it. Once it was handed out it is never edited, so that whoever keeps it shares it.
type NamedService struct {
	Name         ServiceName
	Headless     bool         // spec.clusterIP is None
	Unserved     bool         // there is no Service: the slices' addresses have reverse names alone
	ClusterIPs   []netip.Addr // spec.clusterIPs
	ExternalName string       // spec.externalName of type ExternalName, without the last dot; "" for other types
	Ports        []NamedPort  // spec.ports
	Selection    NameSelection
	Slices       []*NamedSlice // in the order of their names
}

// Within is the Service without the ClusterIPs and the ready endpoints that another state of it has not, or has not ready. nil: the two have
// nothing in common, as the other one is of another kind, or has other ClusterIPs alone.
func (s *NamedService) Within(other *NamedService) *NamedService {
	if s == other {
		return s
	}
	out := *s
	out.Unserved = s.Unserved || other.Unserved
	out.ClusterIPs = slices.DeleteFunc(slices.Clone(s.ClusterIPs), func(a netip.Addr) bool { return !slices.Contains(other.ClusterIPs, a) })
	sameKind := s.Headless == other.Headless && (s.ExternalName == "") == (other.ExternalName == "")
	if !out.Unserved && (!sameKind || len(out.ClusterIPs) == 0 && len(s.ClusterIPs) > 0) {
		return nil
	}
	ready := map[[16]byte]bool{}
	for _, slice := range other.Slices {
		for _, e := range slice.Endpoints {
			ready[e.Address] = ready[e.Address] || e.Is&IsReady != 0
		}
	}
	gone := func(e SliceEndpoint) bool { return e.Is&IsReady != 0 && e.Addr().IsValid() && !ready[e.Address] }
	out.Slices = make([]*NamedSlice, 0, len(s.Slices))
	for _, slice := range s.Slices {
		out.Slices = append(out.Slices, slice.without(gone))
	}
	return &out
}

// OfPackets tells that the tables of packets have the addresses that the Service's own name answers with.
func (s *NamedService) OfPackets() bool { return !s.Headless && s.ExternalName == "" }

// NamesPort is where names are asked for (RFC 1035 4.2).
const NamesPort = 53

// NamedPort is a port as names know it.
type NamedPort struct {
	Name     string // may be empty
	Protocol Protocol
	Number   uint16 // 0: the slice's port has none
}

// NamedSlice is an EndpointSlice as names know it. It is never edited once it was handed out.
type NamedSlice struct {
	Name      string
	Ports     []NamedPort
	Endpoints []SliceEndpoint // one for each address; those of packets where both are the same
	texts     *endpointTexts  // nil: no endpoint has any
}

// endpointTexts are what few endpoints have besides an address, by their index; nil: none has it.
type endpointTexts struct{ hostnames, pods, targets []string }

// NamedEndpoint is an endpoint as a slice is made of it. Each of its addresses gets the same names.
type NamedEndpoint struct {
	Addresses []netip.Addr
	Targets   []string // addresses of a slice with addressType FQDN, instead of Addresses
	Hostname  string   // "" none
	Pod       string   // targetRef.name, where endpoints are named by it; "" none
	Is        Conditions
	Place
}

// NewNamedSlice makes a slice of endpoints.
func NewNamedSlice(name string, ports []NamedPort, endpoints ...NamedEndpoint) *NamedSlice {
	n := 0
	for _, e := range endpoints {
		n += len(e.Addresses) + len(e.Targets)
	}
	out, texts := &NamedSlice{Name: name, Ports: ports, Endpoints: make([]SliceEndpoint, 0, n)}, endpointTexts{}
	note := func(list *[]string, text string) {
		if text != "" && *list == nil {
			*list, out.texts = make([]string, n), &texts
		}
		if text != "" {
			(*list)[len(out.Endpoints)] = text
		}
	}
	add := func(e NamedEndpoint, address [16]byte, target string) {
		note(&texts.hostnames, e.Hostname)
		note(&texts.pods, e.Pod)
		note(&texts.targets, target)
		out.Endpoints = append(out.Endpoints, SliceEndpoint{address, unique.Make(e.Place), e.Is})
	}
	for _, e := range endpoints {
		for _, a := range e.Addresses {
			add(e, a.As16(), "")
		}
		for _, target := range e.Targets {
			add(e, [16]byte{}, target)
		}
	}
	return out
}

// Hostname is that of the endpoint with an index; "" none.
func (s *NamedSlice) Hostname(i int) string {
	if s.texts == nil {
		return ""
	}
	return textAt(s.texts.hostnames, i)
}

// Pod is the name of the Pod of the endpoint with an index, where endpoints are named by it; "" none.
func (s *NamedSlice) Pod(i int) string {
	if s.texts == nil {
		return ""
	}
	return textAt(s.texts.pods, i)
}

// Target is the name that the endpoint with an index has instead of an address; "" none.
func (s *NamedSlice) Target(i int) string {
	if s.texts == nil {
		return ""
	}
	return textAt(s.texts.targets, i)
}

func textAt(list []string, i int) string {
	if list == nil {
		return ""
	}
	return list[i]
}

// Equal tells whether two slices give the same names.
func (s *NamedSlice) Equal(o *NamedSlice) bool {
	if s.Name != o.Name || !slices.Equal(s.Ports, o.Ports) || !slices.Equal(s.Endpoints, o.Endpoints) {
		return false
	}
	if s.texts == nil || o.texts == nil {
		return s.texts == o.texts
	}
	return slices.Equal(s.texts.hostnames, o.texts.hostnames) && slices.Equal(s.texts.pods, o.texts.pods) && slices.Equal(s.texts.targets, o.texts.targets)
}

// Endpoint is what the endpoint with an index was made of, with one of its addresses.
func (s *NamedSlice) Endpoint(i int) NamedEndpoint {
	in := s.Endpoints[i]
	out := NamedEndpoint{Hostname: s.Hostname(i), Pod: s.Pod(i), Is: in.Is, Place: in.At.Value()}
	if target := s.Target(i); target != "" {
		out.Targets = []string{target}
	} else {
		out.Addresses = []netip.Addr{in.Addr()}
	}
	return out
}

// without is the slice without the endpoints that are gone.
func (s *NamedSlice) without(gone func(SliceEndpoint) bool) *NamedSlice {
	if !slices.ContainsFunc(s.Endpoints, gone) {
		return s
	}
	var left []NamedEndpoint
	for i, e := range s.Endpoints {
		if !gone(e) {
			left = append(left, s.Endpoint(i))
		}
	}
	return NewNamedSlice(s.Name, s.Ports, left...)
}

// NameSelection says which endpoints of a headless Service its name answers with, and in which order (annotation nearlb.io/dns).
type NameSelection string

// The selections.
const (
	NamesShuffled NameSelection = ""       // all, in no order
	NamesOrdered  NameSelection = "order"  // all, nearest first: the default where the Service has a trafficDistribution
	NamesPrefer   NameSelection = "prefer" // of each family those of the nearest tier that has any
	NamesPin      NameSelection = "pin"    // those of this node's zone, or none
)

// PodName names a Pod.
type PodName struct{ Namespace, Name string }

func (n PodName) String() string { return n.Namespace + "/" + n.Name }

// NamedPod is a Pod as pod records of mode "verified" know it.
type NamedPod struct {
	Name      PodName
	Addresses []netip.Addr // status.podIPs
	Wishes    *PodWishes   // of Pods in files; nil: not read
}

// PodWishes is what a Pod's spec says of its name and of how it looks names up. The kubelet makes its files of that.
type PodWishes struct {
	Hostname, Subdomain string
	HostnameAsFQDN      bool     // spec.setHostnameAsFQDN
	HostNetwork         bool     // spec.hostNetwork
	Policy              string   // spec.dnsPolicy; "" is ClusterFirst
	Nameservers         []string // spec.dnsConfig
	Searches            []string
	Options             []string // NAME or NAME:VALUE
}
