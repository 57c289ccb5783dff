// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// needOf is what the listed Services take of the tables, at the most: an estimate that leaves out clashes, refused addresses
// and what Services share. Deciding about all of them would take as long as publishing them.
func needOf(source watch.Source, node lb.Node) bpf.Sizes {
	n := need{node: node, places: map[string]bool{}}
	for _, name := range source.Services() {
		if in, exists := source.Input(name); exists {
			n.add(in)
		}
	}
	n.sizes.Names += uint32(len(n.places))
	n.sizes.Records = n.sizes.Frontends + n.sizes.Frontends/8 // maps keeps a part of them for replacing others
	return n.sizes
}

// need adds up what Services take.
type need struct {
	node   lb.Node
	sizes  bpf.Sizes
	places map[string]bool // nodes and zones
}

func (n *need) add(in lb.Input) {
	s := in.Service
	ports := uint32(len(s.Ports))
	addresses := uint32(len(s.ClusterIPs) + len(s.ExternalIPs) + len(s.LoadBalancerIPs))
	n.sizes.Frontends += addresses * (ports + 1) // and one for the address itself
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			n.sizes.Frontends += uint32(len(n.node.NodePortIPs))
		}
	}
	n.sizes.Services += ports
	n.sizes.Names += ports
	n.sizes.SourceRanges += ports * uint32(len(s.SourceRanges))
	n.sizes.Backends += uint32(len(in.Endpoints))
	n.endpoints(in)
}

// endpoints adds the slots: one Maglev table for each port and family, more where endpoints are told apart by where they are.
func (n *need) endpoints(in lb.Input) {
	type pool struct {
		port lb.PortKey
		v4   bool
	}
	all, local := map[pool]int{}, map[pool]int{}
	for _, e := range in.Endpoints {
		at := pool{e.Port, e.Address.Addr().Is4()}
		all[at]++
		if e.Node == n.node.Name {
			local[at]++
		}
		n.places[e.Node], n.places[e.Zone] = true, true
	}
	s := in.Service
	tiers := 1
	if s.Distribution != "" || len(s.TopologyKeys) > 0 {
		tiers = len(bpf.NearlbRecord{}.Sides[0].Tiers)
	}
	for at, backends := range all {
		n.sizes.Slots += uint32(tiers * decide.TableSize(backends))
		if s.Internal == lb.PolicyLocal || s.External == lb.PolicyLocal {
			n.sizes.Slots += uint32(decide.TableSize(local[at]))
		}
	}
}
