// SPDX-License-Identifier: Apache-2.0

// Package watch reads Services, EndpointSlices, Nodes and ServiceCIDRs, from the Kubernetes API, from a directory of
// manifests or from files, and hands them out validated, as lb values. It is the only package that knows Kubernetes
// types. Nothing is trusted, wherever it comes from: one converter serves all three sources.
package watch

import (
	"context"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Events is who wants to know of changes. The methods are called from the goroutines of the source, one at a time, and
// never before the changed data can be read from the source. They must return soon.
type Events interface {
	// ServiceChanged says that Input of this Service may be another one now, or gone.
	ServiceChanged(lb.ServiceName)
	// NodeChanged says that Node or ServiceCIDRs gives something else now.
	NodeChanged()
	// Synced says that all objects have been read: after the first complete list, and again after every relist.
	// Neither of the others is called before the first Synced.
	Synced()
}

// Source hands out the objects of a cluster. All methods may be called at any time and from any goroutine.
type Source interface {
	// Run follows the objects until ctx ends, which is no error. It may be called once.
	Run(ctx context.Context, ev Events) error
	// Input is all that decides about one Service; false when there is no such Service to serve. It costs as much as
	// the Service has endpoints. Input.Triggered is handed out once: see there.
	Input(name lb.ServiceName) (lb.Input, bool)
	// Services names all Services with an Input, sorted.
	Services() []lb.ServiceName
	// Node is the node this process runs on.
	Node() lb.Node
	// ServiceCIDRs are the ranges ClusterIPs are taken from, sorted: those of NodeConfig, else of the ServiceCIDR objects.
	ServiceCIDRs() []netip.Prefix
	// Problems are those of objects that belong to no served Service, sorted. The others are in Input.Problems.
	Problems() []lb.Problem
}

// NodeConfig says which node this is and overrides what its Node object says.
type NodeConfig struct {
	Name              string         // metadata.name of the Node, nodeName of its endpoints
	Zone              string         // instead of the label topology.kubernetes.io/zone; "" for the label
	IPs               []netip.Addr   // instead of status.addresses; empty for those
	NodePortAddresses []string       // CIDRs, or the single word "primary"; empty: all addresses
	ServiceCIDRs      []netip.Prefix // instead of ServiceCIDR objects; empty for those
}
