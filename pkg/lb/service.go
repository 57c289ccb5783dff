// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"time"
)

// Service is a validated Service as the decision needs it. Defaults of the API server are filled in.
type Service struct {
	Name            ServiceName
	Type            ServiceType
	ClusterIPs      []netip.Addr // spec.clusterIPs; at most one a family. Empty: not allocated yet
	ExternalIPs     []netip.Addr // spec.externalIPs
	LoadBalancerIPs []netip.Addr // status.loadBalancer.ingress with ipMode VIP
	Ports           []ServicePort
	Internal        TrafficPolicy  // spec.internalTrafficPolicy
	External        TrafficPolicy  // spec.externalTrafficPolicy
	Affinity        time.Duration  // spec.sessionAffinityConfig.clientIP.timeoutSeconds, 0 for none; whole seconds
	SourceRanges    []netip.Prefix // spec.loadBalancerSourceRanges, masked
	HealthCheckPort uint16         // spec.healthCheckNodePort, 0 for none
	TopologyKeys    []string       // annotation nearlb.io/topology-keys, valid; empty: no constraint
	Distribution    Distribution   // annotation nearlb.io/traffic-distribution; "" for none
	LocalFallback   bool           // annotation nearlb.io/local-fallback: policies Local fall back to the cluster
	Ejection        Ejection       // annotation nearlb.io/ejection; "": as the agent's flag says
	OffNode         OffNode        // annotation nearlb.io/off-node; "": as the agent's flag says
	Overflow        Overflow       // annotation nearlb.io/overflow
	SlowStart       time.Duration  // annotation nearlb.io/slow-start; 0: an endpoint that becomes ready gets its whole share at once
	KeepLost        bool           // annotation nearlb.io/reset-lost is false: connections whose backend is gone and silent get no reset
	RetryRefused    bool           // annotation nearlb.io/retry-refused: a SYN that a backend refuses goes to the next one, and the client is not told
	UDPRetry        uint8          // annotation nearlb.io/udp-retry: so many datagrams of a flow without an answer, and the next backend gets those that follow; 0: never
	Balancing       Balancing      // annotation nearlb.io/balance; "": maglev
	WantsHints      bool           // spec.trafficDistribution or annotation topology-mode: slices should have hints
}

// Balancing is how the backend of a new connection is chosen.
type Balancing string

// The values of the annotation nearlb.io/balance.
const (
	BalanceMaglev           Balancing = "maglev"            // by a hash of the connection, which finds it again
	BalanceRoundRobin       Balancing = "round-robin"       // in turn
	BalanceLeastConnections Balancing = "least-connections" // of two by that hash the one with fewer open connections for its weight
)

// Balancings are the values that a person may give.
func Balancings() []Balancing {
	return []Balancing{BalanceMaglev, BalanceRoundRobin, BalanceLeastConnections}
}

// AnyTopology is the topology key that every endpoint matches. It comes last.
const AnyTopology = "*"

// Distribution is an order of preference among ready endpoints, by where they are and not by hints.
type Distribution string

// The values of the annotation nearlb.io/traffic-distribution.
const (
	PreferSameNode Distribution = "PreferSameNode" // this node, then its zone, then all
	PreferSameZone Distribution = "PreferSameZone" // this zone, then all
)

// Overflow is how much more than their fair part the endpoints of a zone get before their zone's connections go to others.
type Overflow struct {
	Percent uint16 // of the fair part
	Given   bool   // else a zone with an endpoint keeps all of its connections, where the Service prefers near ones
}

// Zone is what is known of a zone's clients.
type Zone struct {
	Name       string // label topology.kubernetes.io/zone; "": Nodes without one
	Processors uint64 // thousandths, status.allocatable.cpu of its Nodes that run pods
}

// Ejection says what becomes of a backend that does not answer.
type Ejection string

// The values of the annotation nearlb.io/ejection and of the agent's flag --ejection.
const (
	EjectionOff     Ejection = "off"     // nothing
	EjectionObserve Ejection = "observe" // it is told, and goes on getting connections
	EjectionOn      Ejection = "on"      // new connections leave it out for a while
)

// Ejections are the values that a person may give.
func Ejections() []Ejection { return []Ejection{EjectionOff, EjectionObserve, EjectionOn} }

// OffNode says how a client off the node gets to a backend on another node.
type OffNode string

// The values of the annotation nearlb.io/off-node and of the agent's flag --off-node.
const (
	OffNodeSNAT  OffNode = "snat"  // by an address and a port of this node
	OffNodeCarry OffNode = "carry" // by its own address, through a tunnel between the nodes, where that can be
	OffNodeDSR   OffNode = "dsr"   // the same, and the backend's node answers the client itself, where it can
)

// OffNodes are the values that a person may give.
func OffNodes() []OffNode { return []OffNode{OffNodeSNAT, OffNodeCarry, OffNodeDSR} }

// Tunneled says whether packets go through the tunnel, where that can be.
func (o OffNode) Tunneled() bool { return o == OffNodeCarry || o == OffNodeDSR }

// ServiceType is spec.type. Headless and ExternalName Services never reach lb.
type ServiceType string

// The types that have frontends.
const (
	TypeClusterIP    ServiceType = "ClusterIP"
	TypeNodePort     ServiceType = "NodePort"
	TypeLoadBalancer ServiceType = "LoadBalancer"
)

// TrafficPolicy is internalTrafficPolicy or externalTrafficPolicy.
type TrafficPolicy string

// The two policies of the API.
const (
	PolicyCluster TrafficPolicy = "Cluster"
	PolicyLocal   TrafficPolicy = "Local"
)

// ServicePort is one of spec.ports.
type ServicePort struct {
	Name     string // spec.ports[].name, may be empty
	Protocol Protocol
	Port     uint16 // spec.ports[].port
	NodePort uint16 // spec.ports[].nodePort, 0 for none
}

// Endpoint is one address of one slice for one service port. The same address may come several times, from several
// slices; decide merges them (requirement A18). Slices of both families feed the same list.
type Endpoint struct {
	Port        PortKey
	Address     netip.AddrPort // the slice's port number, not the Service's
	Ready       bool           // conditions.ready, nil is true
	Serving     bool           // conditions.serving, nil is true
	Terminating bool           // conditions.terminating, nil is false
	Node        string         // nodeName, or the Node that has the address (requirement B16); "" unknown
	Zone        string         // zone, or v1beta1 topology, or the Node's label; "" unknown
	Region      string         // v1beta1 topology, or the Node's label; "" unknown
	NodeHints   []string       // hints.forNodes[].name, sorted; empty is no hint
	ZoneHints   []string       // hints.forZones[].name, sorted; empty is no hint
	Slice       string         // name of the slice it came from, for people
	Weight      Weight         // of its slice
	Warm        uint8          // 1 to WarmSteps-1: tenths of its share that it gets so far; 0: it gets all of it
	Labels      Labels         // those labels of its Node that Service.TopologyKeys name
}

// WarmSteps is in how many steps an endpoint of a Service with a slow start comes to its share.
const WarmSteps = 10

// Due is what an endpoint gets of the new connections beside others, in tenths of its weight.
func (e *Endpoint) Due() uint32 { return due(e.Weight.Number(), e.Warm) }

func due(weight uint32, warm uint8) uint32 {
	if warm == 0 {
		warm = WarmSteps
	}
	return weight * uint32(warm)
}

// Weight is how many of the new connections an endpoint gets beside others: annotation nearlb.io/weight of its EndpointSlice, 0 to 65535.
type Weight struct {
	Value uint16
	Given bool // else DefaultWeight counts
}

// DefaultWeight is that of endpoints of slices without the annotation.
const DefaultWeight = 100

// Number is the weight that counts; 0: no new connections.
func (w Weight) Number() uint32 {
	if !w.Given {
		return DefaultWeight
	}
	return uint32(w.Value)
}

// PortKey joins an endpoint to a service port: by name and protocol (EndpointSlice ports[].name, ports[].protocol).
type PortKey struct {
	Name     string
	Protocol Protocol
}

// Node is what the decision knows of its own node.
type Node struct {
	Name        string
	Zone        string       // label topology.kubernetes.io/zone; "" unknown, which no hint matches
	Region      string       // label topology.kubernetes.io/region
	Labels      Labels       // all its labels; empty as long as the Node is not known
	Addresses   []netip.Addr // status.addresses, InternalIP before ExternalIP
	NodePortIPs []netip.Addr // those of Addresses that answer NodePorts (--nodeport-addresses), sorted
	HostIPs     []netip.Addr // addresses on devices of this host, as far as they are known
	ExternalIPs ExternalIPPolicy
}

// Input is all that decides about one Service on this node.
type Input struct {
	Service    Service
	Held       bool // the API server lists it no more, and it is served for a while nevertheless
	Endpoints  []Endpoint
	Responders []netip.AddrPort // who answers names on this node, where the Service is that of the cluster's DNS: at most one a family
	AlsoAt     []netip.Addr     // where this node's clients ask for names as well, where the Service is that of the cluster's DNS
	Reserved   []netip.Addr     // external IPs that no policy serves: where names are asked for on this node
	Taken      Taken            // external IPs that are somebody else's
	Zones      []Zone           // sorted by name; where the Service has an overflow, and all Nodes are known
	Problems   []Problem        // found while the objects were read
	Triggered  time.Time        // oldest endpoints.kubernetes.io/last-change-trigger-time not yet programmed; zero if unknown
}

// Annotation is one of nearlb's own that a Service has.
type Annotation struct {
	Name    string `json:"name"`              // "nearlb.io/retry-refused"
	Value   string `json:"value"`             // as the object has it, without blanks around it
	Problem string `json:"problem,omitempty"` // why it has no effect; "": it is in force
}

// ServiceAnnotations are those of a Service, by name.
type ServiceAnnotations struct {
	Service     ServiceName  `json:"service"`
	Annotations []Annotation `json:"annotations"`
}

// Problem is something in an object that was understood and cannot be served as written.
type Problem struct {
	Object  string `json:"object"` // "EndpointSlice default/web-abc"
	Field   string `json:"field"`  // "addressType", "endpoints[3].addresses[0]"
	Message string `json:"message"`
}
