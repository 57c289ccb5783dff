// SPDX-License-Identifier: Apache-2.0

// Package watch reads Services, EndpointSlices, Nodes and ServiceCIDRs, from the Kubernetes API, from a directory of
// manifests or from files, and hands them out as lb values. It is the only package that knows Kubernetes types. One converter
// serves all three sources. Objects in files are checked by the rules of the API server first, and refused if they break one; those of an
// API server were, by its own rules, and are served as far as they can be. Nothing is trusted, wherever it comes from.
package watch

import (
	"context"
	"net/netip"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Events is who wants to know of changes. The methods are called from the goroutines of the source, one at a time, and
// never before the changed data can be read from the source. They must return soon.
type Events interface {
	// ServiceChanged says that the decision about this Service may be another: its Input changed or is gone, or Node or ServiceCIDRs did,
	// and it depends on them.
	ServiceChanged(lb.ServiceName)
	// NodeChanged says that what concerns no single Service is another: Node, NodeEligible, ServiceCIDRs, or whether anything is held
	// (Health). The Services that are to be decided anew because of it are told of one by one.
	NodeChanged()
	// Synced says that all objects have been read. It is called once, before the others. A later list tells what differs by the others.
	Synced()
}

// Source hands out the objects of a cluster. All methods may be called at any time and from any goroutine.
type Source interface {
	// Guard says what is to be held when lists lack it, before Run. Other sources than an API server hold nothing: what is not in a
	// directory any more was taken out by somebody.
	Guard(Guard)
	// Run follows the objects until ctx ends, which is no error. It may be called once.
	Run(ctx context.Context, ev Events) error
	// Input is all that decides about one Service; false when there is no such Service to serve. It costs as much as
	// the Service has endpoints. Input.Triggered is handed out once: see there.
	Input(name lb.ServiceName) (lb.Input, bool)
	// Holds tells that what is published of a Service is to stay as it is: its objects are missing, and it is held (see
	// Guard.Published). Ask it before Input. ServiceChanged tells of the end.
	Holds(name lb.ServiceName) bool
	// Services names all Services with an Input, sorted.
	Services() []lb.ServiceName
	// Node is the node this process runs on. Its lists are shared and must not be changed.
	Node() lb.Node
	// Nodes are the addresses of all Nodes by name, as far as they are known; of others than the own one only with NodeConfig.AllNodes. Their
	// lists are shared and must not be changed. NodeChanged tells of others.
	Nodes() map[string][]netip.Addr
	// NodeEligible tells whether load balancers off the cluster may send traffic to this node, as kube-proxy's /healthz does:
	// not when its Node is about to be deleted or, once objects are listed from an API server, is not among them.
	NodeEligible() bool
	// ServiceCIDRs are the ranges ClusterIPs are taken from, sorted: those of NodeConfig, else of the ServiceCIDR objects.
	ServiceCIDRs() []netip.Prefix
	// Health tells how well the objects can be read.
	Health() Health
	// Problems are those of objects that belong to no served Service, sorted. The others are in Input.Problems. To ask costs as much as
	// there are problems.
	Problems() []lb.Problem
	// Announce tells the users of Services what is wrong with them at the moment, where the objects come from. What is in Input.Problems
	// and in Problems is to be given too. It returns at once; what was told before is not told again soon.
	Announce([]Trouble)
}

// Trouble is what is wrong with a Service.
type Trouble struct {
	Service lb.ServiceName
	Reason  string // one of the Reason constants
	Field   string // of the Service, "" none
	Message string
	Same    string // troubles of a Service with this in common are one, whatever the message; "" for the message
	Here    bool   // of this node alone; false: every node sees the same
}

// Reasons of Events on Services.
const (
	ReasonAnnotation  = "InvalidAnnotation"  // an annotation of nearlb that breaks a rule is ignored
	ReasonProblem     = "NotServedAsWritten" // something in the Service cannot be served as written
	ReasonPublication = "PublicationFailed"  // a node could not publish the Service: its old answer is served there
	ReasonEjection    = "BackendLeftOut"     // a backend does not answer a node and its clients: new connections leave it out there
)

// Health is how well a source can read its objects.
type Health struct {
	Held  Held      // what is in force although lists lack it
	Error string    // why objects cannot be read at the moment; "" if they can
	Since time.Time // since when they cannot
}

// NodeConfig says which node this is and overrides what its Node object says.
type NodeConfig struct {
	Name              string         // metadata.name of the Node, nodeName of its endpoints
	Zone              string         // instead of the label topology.kubernetes.io/zone; "" for the label
	IPs               []netip.Addr   // instead of status.addresses; empty for those
	NodePortAddresses []string       // CIDRs, or the single word "primary"; empty: all addresses
	ServiceCIDRs      []netip.Prefix // instead of ServiceCIDR objects; empty for those
	ProxyName         string         // serve only Services with this value of the label service-proxy-name; "": those without it
	AllNodes          bool           // the other Nodes' addresses are wanted whatever Services ask for: Source.Nodes
	ExternalIPs       lb.ExternalIPPolicy
	KeepNodeless      bool // endpoints without nodeName are on no node, not on the Node that has their address

	// Names has what names are made of read as well, and is told of Namespaces, Pods and where this node is; nil: nobody answers names.
	// Its methods must not ask the source.
	Names     NamePlaces
	NamedPods bool // Pods are read, for their addresses' names
}
