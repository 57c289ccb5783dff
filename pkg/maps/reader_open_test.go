// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A connection that its client has closed is open while its server's half is, which only a node that sees answers can tell.
func TestAConnectionThatItsClientHasClosedIsOpenWhereAnswersAreSeen(t *testing.T) {
	const carry, dsr = uint8(bpf.NearlbFlowFlagsFLOW_CARRY), uint8(bpf.NearlbFlowFlagsFLOW_DSR)
	const established, fin = uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED), uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN)
	for _, row := range []struct {
		flags uint8
		seen  uint32
		open  int
	}{
		{carry, established, 1}, {carry, established | fin, 1}, {carry | dsr, established, 1}, {carry | dsr, established | fin, 0},
	} {
		b := published(t)
		putFlow(b.store, 0, bpf.NearlbFlow{Word: flowLive, Touched: b.store.clock.jiffies(), Protocol: 6, Backend: 1, Generation: 1, Service: 1, Flags: row.flags, Seen: row.seen})
		if got := b.Reader().Open()[lb.TCP]; got != row.open {
			t.Errorf("flags %d, seen %d: %d open, want %d", row.flags, row.seen, got, row.open)
		}
	}
}
