// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
)

// knobTrace makes the programs fill the trace table.
const knobTrace = "trace_on"

// knobTunnel has clients off the node go to backends on other nodes through the tunnel, as far as the tables ask for it.
const knobTunnel = "tunnel_there"

// knobWeakMemory has readers of the flow table fence. The object is the same for all processors, and x86 keeps loads in their order.
const knobWeakMemory = "weak_memory_order"

// weakMemory says whether a processor may reorder loads; one that is not known may.
func weakMemory(goarch string) uint8 {
	if goarch == "amd64" || goarch == "386" {
		return 0
	}
	return 1
}

// setKnobs writes the object's constants. An unknown name or a value of the wrong type is an error.
func setKnobs(spec *ebpf.CollectionSpec, o Options) error {
	if err := setKnob(spec, knobWeakMemory, weakMemory(runtime.GOARCH)); err != nil {
		return err
	}
	if o.Trace { // whether there is a tunnel, the tables say, unless the knobs do
		if err := errors.Join(setKnob(spec, knobTrace, uint8(1)), setKnob(spec, knobTunnel, uint8(1))); err != nil {
			return err
		}
	}
	for name, value := range o.Knobs {
		if err := setKnob(spec, name, value); err != nil {
			return err
		}
	}
	return nil
}

func setKnob(spec *ebpf.CollectionSpec, name string, value any) error {
	v := spec.Variables[name]
	if v == nil || !v.Constant() {
		return fmt.Errorf("set knob %s: the BPF object has no such knob", name)
	}
	if err := v.Set(value); err != nil {
		return fmt.Errorf("set knob %s to %v: %w", name, value, err)
	}
	return nil
}

// SchemaVersion is SCHEMA_VERSION of bpf/lib/types.h: the layout of pinned tables.
const SchemaVersion = uint32(NearlbSchemaSCHEMA_VERSION)

// initialise gives a new settings element its schema and seed. The seed is drawn once, as flows are found by it.
func initialise(config *ebpf.Map) error {
	var s NearlbSettings
	if err := config.Lookup(uint32(0), &s); err != nil {
		return fmt.Errorf("read table config: %w", err)
	}
	if s.Schema == SchemaVersion {
		return nil
	}
	if s.Seed == 0 {
		var seed [8]byte
		rand.Read(seed[:])
		s.Seed = binary.NativeEndian.Uint64(seed[:]) | 1
	}
	s.Schema = SchemaVersion
	if err := config.Put(uint32(0), &s); err != nil {
		return fmt.Errorf("write table config: %w", err)
	}
	return nil
}
