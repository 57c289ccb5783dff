// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// ForgetFlows empties the flow table, which nobody may use meanwhile.
func (m *NearlbMaps) ForgetFlows() error {
	for name, table := range map[string]*ebpf.Map{NearlbMapFlows: m.Flows, NearlbMapFlowTags: m.FlowTags, NearlbMapFlowOverflows: m.FlowOverflows,
		NearlbMapFlowSpills: m.FlowSpills} {
		memory, err := table.Memory()
		if err == nil {
			_, err = memory.WriteAt(make([]byte, memory.Size()), 0)
		}
		if err != nil {
			return fmt.Errorf("clear table %s: %w", name, err)
		}
	}
	return nil
}
