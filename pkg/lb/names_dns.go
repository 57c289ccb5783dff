// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"slices"
)

// NamedService is what the names of one Service are made of (kubernetes/dns specification 1.1.0): the Service and the EndpointSlices
// whose label names it.
type NamedService struct {
	Name         ServiceName
	Headless     bool         // spec.clusterIP is None
	ClusterIPs   []netip.Addr // spec.clusterIPs
	ExternalName string       // spec.externalName of type ExternalName, without the last dot; "" for other types
	Ports        []NamedPort  // spec.ports
	Selection    NameSelection
	Slices       []NamedSlice // in the order of their names
	Unserved     bool         // there is no Service: the slices' addresses have reverse names alone
}

// Within is the Service without the ready endpoints that another state of it has not, or has not ready.
func (s NamedService) Within(other NamedService) NamedService {
	ready := map[netip.Addr]bool{}
	for _, slice := range other.Slices {
		for _, e := range slice.Endpoints {
			for _, a := range e.Addresses {
				ready[a] = ready[a] || e.Ready
			}
		}
	}
	gone := func(e NamedEndpoint) bool {
		return e.Ready && slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return !ready[a] })
	}
	all := s.Slices
	s.Slices = nil
	for _, slice := range all {
		if slices.ContainsFunc(slice.Endpoints, gone) {
			slice.Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), gone)
		}
		s.Slices = append(s.Slices, slice)
	}
	return s
}

// NamesPort is where names are asked for (RFC 1035 4.2).
const NamesPort = 53

// NamedPort is a port as names know it.
type NamedPort struct {
	Name     string // may be empty
	Protocol Protocol
	Number   uint16 // 0: the slice's port has none
}

// NamedSlice is an EndpointSlice as names know it.
type NamedSlice struct {
	Name      string
	Ports     []NamedPort
	Endpoints []NamedEndpoint
}

// NamedEndpoint is an endpoint of a slice. Each of its addresses gets the same names.
type NamedEndpoint struct {
	Addresses          []netip.Addr
	Targets            []string // addresses of a slice with addressType FQDN, instead of Addresses
	Ready              bool     // conditions.ready, nil is true
	Hostname           string   // "" none
	Pod                string   // targetRef.name, "" none or longer than a label may be
	Node, Zone, Region string   // "" unknown
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
