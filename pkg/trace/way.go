// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// wayFacts are what says why a connection takes its way. The node is the backend's.
type wayFacts struct {
	flags   uint8 // of the connection (enum flow_flags)
	wanted  lb.OffNode
	live    bool   // the tables are an agent's, and say what nodes do
	tunnel  bool   // this node has one
	node    string // name
	carries bool   // it takes packets out of the tunnel
	shares  bool   // both nodes have an address of the packet's family
	takes   bool   // the tunnel takes packets of the protocol

	headerless string // device that the client comes by if it has no Ethernet header, else ""
}

// way says how the connection that was traced gets to its backend, nil: that is on this node.
func (t *Tracer) way(result bpf.NearlbTraceResult, r Request, by door) (*Way, error) {
	flags, found, err := t.flowFlags()
	if err != nil || !found || flags&uint8(bpf.NearlbFlowFlagsFLOW_CARRY|bpf.NearlbFlowFlagsFLOW_SNAT) == 0 {
		return nil, err
	}
	facts := wayFacts{flags: flags, live: t.live != nil, takes: r.Protocol == lb.TCP || r.Protocol == lb.UDP, headerless: by.headerless}
	if facts.wanted, err = t.wayAsked(result.Frontend); err != nil {
		return nil, err
	}
	var b bpf.NearlbBackend
	if err := t.objects.Backends.Lookup(result.Backend, &b); err != nil {
		return nil, fmt.Errorf("read backend %d: %w", result.Backend, err)
	}
	var end bpf.NearlbTunnelEnd
	var node bpf.NearlbTunnelNode
	facts.tunnel = t.objects.Tunnel.Lookup(uint32(0), &end) == nil && end.Port != 0
	facts.carries = t.objects.TunnelNodes.Lookup(uint32(b.Node), &node) == nil && node.Carries != 0
	facts.shares = maps.ShareFamily(end, node, r.To.Addr().Is4())
	facts.node = t.nodeName(b.Node)
	return facts.way(), nil
}

// way is that of a connection to another node, and why.
func (f wayFacts) way() *Way {
	switch {
	case f.flags&uint8(bpf.NearlbFlowFlagsFLOW_DSR) != 0:
		return &Way{lb.OffNodeDSR, "as nearlb.io/off-node or --off-node says"}
	case f.flags&uint8(bpf.NearlbFlowFlagsFLOW_CARRY) != 0 && f.wanted == lb.OffNodeDSR:
		return &Way{lb.OffNodeCarry, f.node + " cannot answer clients itself"}
	case f.flags&uint8(bpf.NearlbFlowFlagsFLOW_CARRY) != 0:
		return &Way{lb.OffNodeCarry, "as nearlb.io/off-node or --off-node says"}
	case f.wanted == lb.OffNodeSNAT:
		return &Way{lb.OffNodeSNAT, "no tunnel is asked for"}
	case !f.takes:
		return &Way{lb.OffNodeSNAT, "the tunnel takes TCP and UDP alone"}
	case !f.live:
		return &Way{lb.OffNodeSNAT, "objects do not say which nodes take packets out of a tunnel"}
	case !f.tunnel:
		return &Way{lb.OffNodeSNAT, "this node's agent has no tunnel (--off-node, --carry-port)"}
	case f.headerless != "":
		return &Way{lb.OffNodeSNAT, "the client comes by " + f.headerless + ", a device without an Ethernet header"}
	case !f.carries:
		return &Way{lb.OffNodeSNAT, f.node + " takes no packets out of the tunnel"}
	case !f.shares:
		return &Way{lb.OffNodeSNAT, "this node and " + f.node + " do not both have an address of the packet's family"}
	}
	return &Way{lb.OffNodeSNAT, "this packet cannot take the tunnel: its client is a node or the backend itself, or too little would fit"}
}

// flowFlags are those of the one connection in the private flow table (enum flow_flags).
func (t *Tracer) flowFlags() (flags uint8, found bool, err error) {
	for i := range uint32(flowSets) {
		var set bpf.NearlbFlowSet
		if err := t.objects.Flows.Lookup(i, &set); err != nil {
			return 0, false, fmt.Errorf("read table flows: %w", err)
		}
		for _, f := range set.Ways {
			if f.Word&uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK) == uint32(bpf.NearlbFlowPhaseFLOW_LIVE) {
				return f.Flags, true, nil
			}
		}
	}
	return 0, false, nil
}

// wayAsked is the way that the Service or the agent asks for.
func (t *Tracer) wayAsked(key bpf.NearlbFrontendKey) (lb.OffNode, error) {
	var number uint32
	var record bpf.NearlbRecord
	if err := t.objects.Frontends.Lookup(&key, &number); err != nil {
		return "", fmt.Errorf("read the frontend that was found: %w", err)
	}
	if err := t.objects.Records.Lookup(number, &record); err != nil {
		return "", fmt.Errorf("read record %d: %w", number, err)
	}
	return maps.WayOf(record.Flags), nil
}

// nodeName is as the agent wrote it.
func (t *Tracer) nodeName(number uint16) string {
	if name, err := t.text(uint32(bpf.NearlbNameKindNAME_NODE), uint32(number)); err == nil && name != "" {
		return name
	}
	return "its node"
}
