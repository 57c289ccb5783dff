// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// needOf estimates what the listed Services take of the tables, at the most. It does not see clashes, refused addresses and what
// Services share: to decide about all of them would take as long as to publish them.
func needOf(source watch.Source, node lb.Node) bpf.Sizes {
	n := need{node: node, places: map[string]bool{}, pools: map[endpointPool]count{}}
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
	pools  map[endpointPool]count
}

// slots adds some; there are no more than fit into a number.
func (n *need) slots(more uint64) {
	n.sizes.Slots = uint32(min(uint64(n.sizes.Slots)+more, math.MaxUint32))
}

// endpointPool are the endpoints of one Service that share a Maglev table.
type endpointPool struct {
	port lb.PortKey
	v4   bool
}

type count struct{ all, local members }

// members counts endpoints, adds up their weights, and knows the least of them.
type members struct {
	endpoints int
	sum       uint64
	least     uint32
}

func (m *members) add(weight uint32) {
	if weight == 0 {
		return
	}
	if m.endpoints == 0 || weight < m.least {
		m.least = weight
	}
	m.endpoints++
	m.sum += uint64(weight)
}

func (m members) slots() uint64 {
	return uint64(decide.WeightedTableSize(m.endpoints, m.sum, m.least))
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
	clear(n.pools)
	last := &lb.Endpoint{}
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		at := endpointPool{e.Port, e.Address.Addr().Is4()}
		pool := n.pools[at]
		pool.all.add(e.Weight.Number())
		if e.Node == n.node.Name {
			pool.local.add(e.Weight.Number())
		}
		n.pools[at] = pool
		if e.Node != last.Node || e.Zone != last.Zone || i == 0 {
			n.places[e.Node], n.places[e.Zone] = true, true
		}
		last = e
	}
	s := in.Service
	tiers := 1
	if s.Distribution != "" || len(s.TopologyKeys) > 0 {
		tiers = len(bpf.NearlbRecord{}.Sides[0].Tiers)
	}
	for _, pool := range n.pools {
		n.slots(uint64(tiers) * pool.all.slots())
		if s.Internal == lb.PolicyLocal || s.External == lb.PolicyLocal {
			n.slots(pool.local.slots())
		}
	}
}
