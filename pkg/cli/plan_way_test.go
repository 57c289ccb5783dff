// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// A plan names the way of clients off the node where more than SNAT is asked for and some backend is on another node, and who asks.
func TestThePlanNamesTheWayToOtherNodes(t *testing.T) {
	side := func(nodes ...string) planSide {
		tier := planTier{}
		for _, n := range nodes {
			tier.Backends = append(tier.Backends, planBackend{Node: n})
		}
		return planSide{Tiers: []planTier{tier}}
	}
	for _, row := range []struct {
		side             planSide
		asked, otherwise lb.OffNode
		want             string
	}{
		{side("n1", "n2"), "", lb.OffNodeSNAT, ""},
		{side("n1", "n2"), "", lb.OffNodeCarry, "carry (--off-node)"},
		{side("n2"), lb.OffNodeDSR, lb.OffNodeSNAT, "dsr (nearlb.io/off-node)"},
		{side("n2"), lb.OffNodeSNAT, lb.OffNodeDSR, "snat (nearlb.io/off-node)"},
		{side("n1"), lb.OffNodeDSR, lb.OffNodeSNAT, ""},
	} {
		if got := planWayText(newPlanWay(row.side, row.asked, row.otherwise, "n1")); got != row.want {
			t.Errorf("asked %q, otherwise %q: %q, want %q", row.asked, row.otherwise, got, row.want)
		}
	}
}
