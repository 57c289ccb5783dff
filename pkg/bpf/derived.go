// SPDX-License-Identifier: Apache-2.0

package bpf

import "github.com/cilium/ebpf"

// Knobs that follow from the tables and from the running kernel (bpf/lib/config.h).
const (
	knobFlowSetMask = "flow_set_mask"
	knobJiffies     = "jiffies_per_second"
	knobFIBSource   = "fib_source"
)

// setDerived sets the knobs that nobody chooses. The sizes in spec must be those of the tables that will be used.
func setDerived(spec *ebpf.CollectionSpec) error {
	if err := setKnob(spec, knobFlowSetMask, spec.Maps[NearlbMapFlows].MaxEntries-1); err != nil {
		return err
	}
	if err := setKnob(spec, knobJiffies, JiffiesPerSecond()); err != nil {
		return err
	}
	if fibSource() != nil {
		return nil // the object's default: the routing table is not asked for sources
	}
	return setKnob(spec, knobFIBSource, uint8(1))
}
