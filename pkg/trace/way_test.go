// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// The reason names what comes first: without a tunnel no other node is to blame.
func TestTheReasonOfAWayIsTheFirstThatHolds(t *testing.T) {
	const snat, carry, dsr = uint8(bpf.NearlbFlowFlagsFLOW_SNAT), uint8(bpf.NearlbFlowFlagsFLOW_CARRY), uint8(bpf.NearlbFlowFlagsFLOW_DSR)
	able := wayFacts{flags: snat, wanted: lb.OffNodeDSR, live: true, tunnel: true, node: "n2", carries: true, shares: true, takes: true}
	for _, row := range []struct {
		change func(*wayFacts)
		way    lb.OffNode
		why    string
	}{
		{func(f *wayFacts) { f.flags = carry | dsr }, lb.OffNodeDSR, "says"},
		{func(f *wayFacts) { f.flags = carry }, lb.OffNodeCarry, "n2 cannot answer"},
		{func(f *wayFacts) { f.flags, f.wanted = carry, lb.OffNodeCarry }, lb.OffNodeCarry, "says"},
		{func(f *wayFacts) { f.wanted = lb.OffNodeSNAT }, lb.OffNodeSNAT, "no tunnel is asked for"},
		{func(f *wayFacts) { f.takes, f.live = false, false }, lb.OffNodeSNAT, "TCP and UDP"},
		{func(f *wayFacts) { f.live, f.tunnel = false, false }, lb.OffNodeSNAT, "objects do not say"},
		{func(f *wayFacts) { f.tunnel, f.carries, f.shares = false, false, false }, lb.OffNodeSNAT, "this node's agent has no tunnel"},
		{func(f *wayFacts) { f.headerless, f.carries = "wg0", false }, lb.OffNodeSNAT, "comes by wg0"},
		{func(f *wayFacts) { f.carries = false }, lb.OffNodeSNAT, "n2 takes no packets"},
		{func(f *wayFacts) { f.shares = false }, lb.OffNodeSNAT, "family"},
		{func(*wayFacts) {}, lb.OffNodeSNAT, "this packet"},
	} {
		facts := able
		row.change(&facts)
		if got := facts.way(); got.Name != row.way || !strings.Contains(got.Because, row.why) {
			t.Errorf("%+v: %+v, want %s because %q", facts, got, row.way, row.why)
		}
	}
}
