// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// knobLinkHeader is the number of bytes in front of the IP header.
const knobLinkHeader = "link_header"

// layer3Suffix is what the directory of this load's programs for devices without an Ethernet header adds to its name.
const layer3Suffix = "_layer3"

// Layer3 are the programs of network devices that have no Ethernet header (tun, wireguard, ipip): the same programs with
// another knob, over the same tables. They are loaded at the first call, unless AdoptLayer3 opened them, and pinned beside the others.
func (o *Objects) Layer3() (fromNet, toNet *ebpf.Program, err error) {
	o.layer3Mu.Lock()
	defer o.layer3Mu.Unlock()
	if o.layer3 == nil {
		if o.layer3, err = o.loadLayer3(); err != nil {
			return nil, nil, fmt.Errorf("load programs for devices without an Ethernet header: %w", err)
		}
	}
	return o.layer3.Programs["from_net"], o.layer3.Programs["to_net"], nil
}

func (o *Objects) loadLayer3() (*ebpf.Collection, error) {
	spec, err := o.layer3Spec()
	if err != nil {
		return nil, err
	}
	if o.loaded != "" {
		if c, err := o.openLayer3(spec); err == nil {
			return c, nil
		}
	}
	shared := map[string]*ebpf.Map{}
	for name, m := range o.NearlbMaps.ByName() {
		if m.Type() != ebpf.ProgramArray {
			shared[name] = m
		}
	}
	if err := errors.Join(fitReplacements(spec, shared), setDerived(spec), o.askConntrack(spec)); err != nil {
		return nil, err
	}
	collection, err := collect(spec, shared, o.loadOptions())
	o.types = nil
	if err != nil {
		return nil, explain("load the BPF programs", err)
	}
	if err := errors.Join(o.pinLayer3(collection), o.askFormer(collection.Maps[NearlbMapPrograms], layer3Suffix)); err != nil {
		collection.Close()
		return nil, err
	}
	return collection, nil
}

// layer3Spec is the object as these programs are loaded from it.
func (o *Objects) layer3Spec() (*ebpf.CollectionSpec, error) {
	spec, err := configured(o.options)
	if err != nil {
		return nil, err
	}
	if err := setKnob(spec, knobLinkHeader, uint32(0)); err != nil {
		return nil, err
	}
	keepNetwork(spec)
	return spec, nil
}

// openLayer3 opens what is pinned of them.
func (o *Objects) openLayer3(spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	programs, calls, err := o.openLoad(spec, o.layer3Dir())
	if err != nil {
		return nil, err
	}
	return &ebpf.Collection{Programs: programs, Maps: calls}, nil
}

// layer3Dir is where these programs are pinned.
func (o *Objects) layer3Dir() string {
	return filepath.Join(o.generation.programs(), o.loaded+layer3Suffix)
}

// keepNetwork leaves out what no network device runs, as each program takes the verifier's time.
func keepNetwork(spec *ebpf.CollectionSpec) {
	for name, p := range spec.Programs {
		if p.Type != ebpf.SchedCLS || strings.Contains(name, "_pod") || strings.HasPrefix(name, "sock") {
			delete(spec.Programs, name)
		}
	}
	keepCalls(spec)
}

// pinLayer3 keeps the programs and their tail calls for the time after this process.
func (o *Objects) pinLayer3(c *ebpf.Collection) error {
	if o.loaded == "" {
		return nil
	}
	arrays := map[string]*ebpf.Map{}
	for name, m := range c.Maps {
		if m.Type() == ebpf.ProgramArray {
			arrays[name] = m
		}
	}
	// What is there could not be used again, but may be attached: its tail calls go with their pin. RemoveOldPrograms takes it.
	aside := filepath.Join(o.generation.programs(), fmt.Sprintf("old_%d_%s", time.Now().UnixNano(), filepath.Base(o.layer3Dir())))
	if err := os.Rename(o.layer3Dir(), aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("move pinned programs: %w", err)
	}
	return pinLoad(o.loaded+layer3Suffix, o.generation.programs(), c.Programs, arrays)
}
