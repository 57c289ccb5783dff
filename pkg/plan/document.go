// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Document is `nearlb plan -o json` of contracts.md. Fields may be added, not renamed.
type Document struct {
	Node      Node         `json:"node"`
	Frontends []Frontend   `json:"frontends"`
	Endpoints []Endpoint   `json:"endpoints"`
	Problems  []lb.Problem `json:"problems"`
}

type Node struct {
	Name      string       `json:"name"`
	Zone      string       `json:"zone"`
	Region    string       `json:"region"`
	Addresses []netip.Addr `json:"addresses"`
}

// FrontendID is what tells frontends of a plan apart: one address and port may go from one Service to another.
type FrontendID struct {
	Service      string      `json:"service"`
	Port         string      `json:"port"`
	Protocol     lb.Protocol `json:"protocol"`
	Kind         lb.Kind     `json:"kind"`
	Address      netip.Addr  `json:"address"`
	FrontendPort uint16      `json:"frontendPort"`
}

type Frontend struct {
	FrontendID
	Internal        Side           `json:"internal"`
	External        Side           `json:"external"`
	OffNode         *Way           `json:"offNode,omitempty"`  // where there are external backends on other nodes, and more than SNAT is asked for
	Balance         string         `json:"balance,omitempty"`  // where it is not maglev
	UDPRetry        uint8          `json:"udpRetry,omitempty"` // so many datagrams of a flow without an answer, and the next backend gets those that follow
	AffinitySeconds int64          `json:"affinitySeconds"`
	SourceRanges    []netip.Prefix `json:"sourceRanges"`
}

// Way is how clients off the node get to backends on other nodes.
type Way struct {
	Way     lb.OffNode `json:"way"`
	Because string     `json:"because"` // where it is said, and what else it takes
}

type Side struct {
	Action lb.Action `json:"action"`
	Reason lb.Reason `json:"reason"`
	Note   lb.Note   `json:"note,omitempty"` // why no preference is in force that was asked for
	Key    string    `json:"key,omitempty"`  // the topology key that chose
	Tiers  []Tier    `json:"tiers"`
}

type Tier struct {
	Tier     lb.TierName `json:"tier"`
	Backends []Backend   `json:"backends"`
}

type Backend struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Node    string     `json:"node"`
	Zone    string     `json:"zone"`
	State   lb.State   `json:"state"`
	Weight  uint32     `json:"weight,omitempty"` // where endpoints of the tier have weights
	Share   float64    `json:"share,omitempty"`  // of the tier's new connections, 0 to 1; where shares are unequal
}

type Endpoint struct {
	Service      string      `json:"service"`
	Port         string      `json:"port"`
	Protocol     lb.Protocol `json:"protocol"`
	Address      netip.Addr  `json:"address"`
	EndpointPort uint16      `json:"endpointPort"`
	Node         string      `json:"node"`
	Zone         string      `json:"zone"`
	Slice        string      `json:"slice"`
	Selected     bool        `json:"selected"`
	Reason       lb.Reason   `json:"reason"`
}

// NewDocument joins the decisions of all Services, which come sorted by name and are canonical in themselves. offNode is that of Services
// that say nothing.
func NewDocument(node lb.Node, offNode lb.OffNode, decisions []lb.Decision, problems []lb.Problem) Document {
	doc := Document{
		Node:      Node{Name: node.Name, Zone: node.Zone, Region: node.Region, Addresses: command.List(node.Addresses)},
		Frontends: []Frontend{},
		Endpoints: []Endpoint{},
		Problems:  command.List(slices.Clone(problems)),
	}
	for _, decision := range decisions {
		backends := make(map[lb.BackendKey]lb.Backend, len(decision.Backends))
		for _, backend := range decision.Backends {
			backends[backend.Key] = backend
		}
		for _, frontend := range decision.Frontends {
			made := newFrontend(frontend, backends)
			made.Balance = string(decision.Balancing)
			if frontend.Key.Protocol == lb.UDP {
				made.UDPRetry = decision.UDPRetry
			}
			made.OffNode = newWay(made.External, decision.OffNode, offNode, node.Name)
			doc.Frontends = append(doc.Frontends, made)
		}
		for _, endpoint := range decision.Endpoints {
			doc.Endpoints = append(doc.Endpoints, NewEndpoint(endpoint))
		}
		doc.Problems = append(doc.Problems, decision.Problems...)
	}
	slices.SortFunc(doc.Problems, lb.Problem.Compare)
	doc.Problems = slices.Compact(doc.Problems)
	return doc
}

func newFrontend(f lb.Frontend, backends map[lb.BackendKey]lb.Backend) Frontend {
	return Frontend{
		FrontendID: FrontendID{
			Service:      f.Port.Service.String(),
			Port:         f.Port.Port,
			Protocol:     f.Port.Protocol,
			Kind:         f.Kind,
			Address:      f.Key.Address.Addr(),
			FrontendPort: f.Key.Address.Port(),
		},
		Internal:        newSide(f.Internal, backends),
		External:        newSide(f.External, backends),
		AffinitySeconds: int64(f.Affinity.Seconds()),
		SourceRanges:    command.List(f.SourceRanges),
	}
}

// newWay is nil where no client takes the way, and where nobody says more than that it is SNAT's.
func newWay(side Side, asked, otherwise lb.OffNode, node string) *Way {
	way := Way{asked, "nearlb.io/off-node"}
	if asked.Tunneled() && !otherwise.Tunneled() {
		way.Because += ", with --carry-port"
	}
	if asked == "" {
		way = Way{otherwise, "--off-node"}
	}
	elsewhere := func(b Backend) bool { return b.Node != node }
	leaves := func(t Tier) bool { return slices.ContainsFunc(t.Backends, elsewhere) }
	if asked == "" && !otherwise.Tunneled() || !slices.ContainsFunc(side.Tiers, leaves) {
		return nil
	}
	return &way
}

func newSide(side lb.Side, backends map[lb.BackendKey]lb.Backend) Side {
	made := Side{Action: side.Action, Reason: side.Reason, Note: side.Note, Key: side.Key, Tiers: []Tier{}}
	for _, tier := range side.Tiers {
		t := Tier{Tier: tier.Name, Backends: []Backend{}}
		for _, key := range tier.Backends {
			b := backends[key]
			t.Backends = append(t.Backends, Backend{
				Address: key.Address.Addr(), Port: key.Address.Port(), Node: b.Node, Zone: b.Zone, State: b.State, Weight: b.Weight,
			})
		}
		addShares(t.Backends)
		made.Tiers = append(made.Tiers, t)
	}
	return made
}

// addShares says how the slots of a tier are divided, where that is unequal.
func addShares(backends []Backend) {
	weights := make([]uint32, len(backends))
	for i, b := range backends {
		weights[i] = b.Weight
	}
	shares := decide.SharesOf(weights, weights)
	slots := uint32(0)
	for _, share := range shares {
		slots += share
	}
	for i, share := range shares {
		backends[i].Share = math.Round(1e6*float64(share)/float64(slots)) / 1e6
	}
}

// NewEndpoint is the row of an endpoint.
func NewEndpoint(e lb.EndpointReason) Endpoint {
	return Endpoint{
		Service: e.Port.Service.String(), Port: e.Port.Port, Protocol: e.Port.Protocol,
		Address: e.Address.Addr(), EndpointPort: e.Address.Port(),
		Node: e.Node, Zone: e.Zone, Slice: e.Slice, Selected: e.Selected, Reason: e.Reason,
	}
}
