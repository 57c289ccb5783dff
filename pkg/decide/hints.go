// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// byHints chooses among ready endpoints as kube-proxy does: those hinted for this node, if every one has a hint for nodes;
// else those hinted for its zone, if every one has a hint for zones; else all, which is nil. Where hints are there, or were
// wanted, and do not decide, the note says why.
func (p *pool) byHints(node lb.Node, wanted bool) (choice, func(*candidate) bool) {
	nodes, zones := p.countHints(func(c *candidate) []string { return c.NodeHints }), p.countHints(func(c *candidate) []string { return c.ZoneHints })
	forNode := func(c *candidate) bool { return slices.Contains(c.NodeHints, node.Name) }
	forZone := func(c *candidate) bool { return slices.Contains(c.ZoneHints, node.Zone) }
	if node.Name != "" && nodes.complete() && p.anyReady(forNode) {
		return choice{reason: lb.ReasonSameNode, tier: lb.TierNode, out: lb.ReasonOtherNode}, forNode
	}
	if node.Zone != "" && zones.complete() && p.anyReady(forZone) {
		c := choice{reason: lb.ReasonSameZone, tier: lb.TierZone, out: lb.ReasonOtherZone}
		if nodes.partial() {
			c.note = lb.NoteEndpointWithoutHint
		}
		return c, forZone
	}
	return choice{note: hintsNote(nodes, zones, node, wanted)}, nil
}

// hintsNote says why no hint decides.
func hintsNote(nodes, zones hintCount, node lb.Node, wanted bool) lb.Note {
	switch {
	case nodes.with+zones.with == 0 && !wanted:
		return ""
	case nodes.with+zones.with == 0:
		return lb.NoteNoHints
	case zones.partial(), zones.with == 0 && nodes.partial():
		return lb.NoteEndpointWithoutHint
	case zones.with == 0:
		return lb.NoteNoEndpointOnNode
	case node.Zone == "":
		return lb.NoteNodeWithoutZone
	}
	return lb.NoteNoEndpointInZone
}

// hintCount counts the ready endpoints with and without a hint of one sort.
type hintCount struct{ with, without int }

func (h hintCount) complete() bool { return h.without == 0 }
func (h hintCount) partial() bool  { return h.with > 0 && h.without > 0 }

func (p *pool) countHints(of func(*candidate) []string) (h hintCount) {
	for _, c := range p.winners {
		switch {
		case !isReady(c):
		case len(of(c)) > 0:
			h.with++
		default:
			h.without++
		}
	}
	return h
}

func (p *pool) anyReady(wanted func(*candidate) bool) bool {
	return slices.ContainsFunc(p.winners, func(c *candidate) bool { return isReady(c) && wanted(c) })
}
