// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// way says how the connection that was traced gets to its backend, nil: that is on this node.
func (t *Tracer) way(result bpf.NearlbTraceResult) (*Way, error) {
	flags, found, err := t.flowFlags()
	if err != nil || !found {
		return nil, err
	}
	wanted, err := t.wayAsked(result.Frontend)
	if err != nil {
		return nil, err
	}
	var b bpf.NearlbBackend
	if err := t.objects.Backends.Lookup(result.Backend, &b); err != nil {
		return nil, fmt.Errorf("read backend %d: %w", result.Backend, err)
	}
	var node bpf.NearlbTunnelNode
	known := t.objects.TunnelNodes.Lookup(uint32(b.Node), &node) == nil
	switch {
	case flags&uint8(bpf.NearlbFlowFlagsFLOW_CARRY|bpf.NearlbFlowFlagsFLOW_SNAT) == 0:
		return nil, nil
	case flags&uint8(bpf.NearlbFlowFlagsFLOW_DSR) != 0:
		return &Way{lb.OffNodeDSR, "as nearlb.io/off-node or --off-node says"}, nil
	case flags&uint8(bpf.NearlbFlowFlagsFLOW_CARRY) != 0 && wanted == lb.OffNodeDSR:
		return &Way{lb.OffNodeCarry, t.nodeName(b.Node) + " cannot answer clients itself"}, nil
	case flags&uint8(bpf.NearlbFlowFlagsFLOW_CARRY) != 0:
		return &Way{lb.OffNodeCarry, "as nearlb.io/off-node or --off-node says"}, nil
	case wanted == lb.OffNodeSNAT:
		return &Way{lb.OffNodeSNAT, "no tunnel is asked for"}, nil
	case t.live == nil:
		return &Way{lb.OffNodeSNAT, "objects do not say which nodes take packets out of a tunnel"}, nil
	case !known || node.Carries == 0:
		return &Way{lb.OffNodeSNAT, t.nodeName(b.Node) + " takes no packets out of the tunnel"}, nil
	}
	return &Way{lb.OffNodeSNAT, "this packet cannot take the tunnel: its client is a node or the backend itself, or too little would fit"}, nil
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
	switch {
	case record.Flags&uint8(bpf.NearlbRecordFlagsRECORD_DSR) != 0:
		return lb.OffNodeDSR, nil
	case record.Flags&uint8(bpf.NearlbRecordFlagsRECORD_CARRY) != 0:
		return lb.OffNodeCarry, nil
	}
	return lb.OffNodeSNAT, nil
}

// nodeName is as the agent wrote it.
func (t *Tracer) nodeName(number uint16) string {
	if name, err := t.text(uint32(bpf.NearlbNameKindNAME_NODE), uint32(number)); err == nil && name != "" {
		return name
	}
	return "its node"
}
