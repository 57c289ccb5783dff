// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"time"
)

// Decision is what this node does for one Service: the result of decide, the input of maps.
// It is canonical: equal inputs in any order give equal values. Frontends are ordered by port name, protocol, kind,
// address; backends by address, port name, protocol; endpoints by port name, protocol, address, slice.
type Decision struct {
	Service  ServiceName
	Held     bool     // as of Input
	Ejection Ejection // as of the Service
	OffNode  OffNode  // as of the Service, or the agent's flag where that says nothing
	KeepLost bool     // as of the Service

	RetryRefused bool      // as of the Service
	UDPRetry     uint8     // as of the Service
	Balancing    Balancing // as of the Service
	Frontends    []Frontend
	Backends     []Backend // every endpoint that a frontend leads to, in a tier or not: their states are published too
	Endpoints    []EndpointReason
	Problems     []Problem
}

// FrontendKey is what clients talk to. Unique in a node's tables.
type FrontendKey struct {
	Address  netip.AddrPort
	Protocol Protocol
}

// Frontend is one address and port of a Service and what to do with its clients.
type Frontend struct {
	Key          FrontendKey
	Port         PortName
	Kind         Kind
	OnHost       bool // the address is the node's own, of another kind than NodePort: what goes to other ports there is the node's
	Internal     Side // clients on this node
	External     Side // clients off this node
	Affinity     time.Duration
	SourceRanges []netip.Prefix // of the frontend's family, sorted; empty: unrestricted. Kind LoadBalancer only
}

// Kind says which field of the Service made a frontend.
type Kind string

// The kinds, in the order of contracts.md.
const (
	KindClusterIP    Kind = "ClusterIP"
	KindNodePort     Kind = "NodePort"
	KindExternalIP   Kind = "ExternalIP"
	KindLoadBalancer Kind = "LoadBalancer"
)

// Side is the answer for one policy side of a frontend.
type Side struct {
	Action Action
	Reason Reason
	Note   Note   // why no preference is in force that was asked for; "" otherwise
	Key    string // the topology key that chose; "" where none did
	List   List   // which list the tiers are made of, or would be
	Tiers  []Tier // tried in order; at most three, none empty; empty unless Action is balance
}

// Action is what happens to a new connection.
type Action string

// The actions of a side.
const (
	Balance Action = "balance"
	Reject  Action = "reject" // TCP RST, ICMP port unreachable
	Drop    Action = "drop"
)

// Reason says why a side has the backends it has, or why an endpoint is in or out. The spelling is the contract's; those
// of sides are in BPF's enum reason too.
type Reason string

// Reasons of sides.
const (
	ReasonAll              Reason = "all"
	ReasonSameNode         Reason = "same-node"
	ReasonSameZone         Reason = "same-zone"
	ReasonTerminating      Reason = "terminating"
	ReasonLocal            Reason = "local"
	ReasonLocalTerminating Reason = "local-terminating"
	ReasonNoEndpoints      Reason = "no-endpoints"
	ReasonNoLocalEndpoints Reason = "no-local-endpoints"
	ReasonNoTopologyMatch  Reason = "no-topology-match"
	ReasonSameRegion       Reason = "same-region"
	ReasonSameLabel        Reason = "same-label"     // a topology key that names no known level, as a rack's
	ReasonLocalFallback    Reason = "local-fallback" // policy Local, nothing local, and the Service prefers any to none
)

// Note says of a side why a preference for near endpoints, which the Service or its slices ask for, is not in force, or not
// to the full. The names are those of BPF's enum note.
type Note string

// The notes.
const (
	NoteNoHints             Note = "no-hints"              // the Service asks for hints, and no ready endpoint has one
	NoteEndpointWithoutHint Note = "endpoint-without-hint" // some ready endpoints have hints, some have not
	NoteNodeWithoutZone     Note = "node-without-zone"
	NoteNoEndpointInZone    Note = "no-endpoint-in-zone" // no ready endpoint is in this zone, or hinted for it
	NoteNoEndpointOnNode    Note = "no-endpoint-on-node" // hints name nodes alone, and not this one
	NoteNoKeyMatched        Note = "no-key-matched"      // only the topology key * did
	NoteOverflow            Note = "overflow"            // the zone's endpoints do not get all of its connections: annotation nearlb.io/overflow
)

// Further reasons of endpoints. A selected endpoint has its side's reason.
const (
	ReasonNotReady      Reason = "not-ready"
	ReasonNotServing    Reason = "not-serving"    // terminating and not serving
	ReasonIsTerminating Reason = "is-terminating" // serving, but some endpoint is ready
	ReasonOtherNode     Reason = "other-node"     // a nearer tier or policy Local has the traffic
	ReasonOtherZone     Reason = "other-zone"
	ReasonOtherRegion   Reason = "other-region"
	ReasonOtherLabel    Reason = "other-label"           // its Node lacks the label, or has another value
	ReasonDuplicate     Reason = "duplicate"             // another copy of the same address counts: it has the better condition
	ReasonOverflow      Reason = "overflow"              // of another zone, and gets some of this one's connections: annotation nearlb.io/overflow
	ReasonWeightZero    Reason = "weight-zero"           // annotation nearlb.io/weight of its slice: no new connections
	ReasonNoAddress     Reason = "no-address"            // no address or no port number to send to
	ReasonNoServicePort Reason = "no-service-port"       // no port of the Service has this name and protocol
	ReasonOtherFamily   Reason = "no-frontend-of-family" // the Service has no frontend of this address family
	ReasonNoService     Reason = "no-service"            // no Service of the slice's label is served
)

// List names one of a service port's lists of backends.
type List string

// The two lists of service-semantics.md (C and L).
const (
	ListCluster List = "cluster"
	ListLocal   List = "local"
)

// Tier is a set of backends equally near.
type Tier struct {
	Name     TierName
	Backends []BackendKey // ordered by address
}

// TierName says how near.
type TierName string

// The tiers, nearest first.
const (
	TierNode    TierName = "node"
	TierZone    TierName = "zone"
	TierRegion  TierName = "region"
	TierCluster TierName = "cluster"
)

// BackendKey names a backend inside one Service: an address serves several service ports as several backends.
type BackendKey struct {
	Port    PortKey
	Address netip.AddrPort
}

// Backend is one endpoint of one service port.
type Backend struct {
	Key   BackendKey
	Node  string
	Zone  string
	State State
	Near  TierName // how near it is to this node, whatever tier lists it
	Lists []List   // the lists it is in, sorted; empty: in none

	// Weight is its share of new connections beside the others of its tier. 0: nobody of its service port and family has a weight, all
	// get the same; or it is in no list.
	Weight uint32
	Warm   uint8 // Endpoint.Warm: how many tenths of that it gets so far; 0: all
}

// Due is its share of new connections beside others, in tenths of their weights.
func (b *Backend) Due() uint32 { return due(b.Weight, b.Warm) }

// State is what the datapath may do with a backend.
type State string

// The states, as in BPF's enum backend_state.
const (
	Active    State = "active"    // new flows and old ones
	Draining  State = "draining"  // terminating and serving: old flows; new ones where a tier lists it
	Quiet     State = "quiet"     // not serving: established TCP stays, UDP and SYN go elsewhere
	Responder State = "responder" // this node's answers to names: Active while they are given, else Quiet
	Gone      State = "gone"      // no endpoint any more; only the tables know it, never a decision
)

// EndpointReason says of one endpoint of one slice whether traffic may reach it from this node, and why.
type EndpointReason struct {
	Port     PortName
	Address  netip.AddrPort
	Slice    string
	Node     string
	Zone     string
	Selected bool
	Reason   Reason
}
