// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Where as many entries are counted as the table takes, others may have had no place. The fill of the table is told as of all others.
func TestATableOfCountsThatWasFullIsTold(t *testing.T) {
	b := published(t)
	b.store.flowBytes = newMemoryHash[uint32, bpf.NearlbFlowBytes](2)
	for used := range 3 {
		c, err := b.CountFlows(time.Minute)
		if err != nil || c.Already != (used > 0) || c.Used != used || c.Room != 2 || c.Full() != (used == 2) {
			t.Errorf("%d entries are counted: %+v, %v", used, c, err)
		}
		word := uint32(used)<<8 | flowLive
		putFlow(b.store, uint32(used), bpf.NearlbFlow{Word: word, Protocol: 6})
		if used < 2 {
			if err := b.store.flowBytes.put(uint32(used), bpf.NearlbFlowBytes{Word: word}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for row, err := range b.Reader().Fill() {
		if row.Table == bpf.NearlbMapFlowBytes && (err != nil || row.Used != 2 || row.Limit != 2) {
			t.Errorf("its fill is %+v, %v", row, err)
		}
	}
}
