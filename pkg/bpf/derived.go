// SPDX-License-Identifier: Apache-2.0

package bpf

import "github.com/cilium/ebpf"

// Knobs that follow from the tables and from the running kernel (bpf/lib/config.h).
const (
	knobFlowSetMask = "flow_set_mask"
	knobJiffies     = "jiffies_per_second"
)

// setDerived sets the knobs that nobody chooses. The sizes in spec must be those of the tables that will be used.
func setDerived(spec *ebpf.CollectionSpec) error {
	if err := setKnob(spec, knobFlowSetMask, spec.Maps[NearlbMapFlows].MaxEntries-1); err != nil {
		return err
	}
	return setKnob(spec, knobJiffies, JiffiesPerSecond())
}
