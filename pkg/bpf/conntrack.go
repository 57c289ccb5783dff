// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

const (
	knobConntrack   = "conntrack_lookup"
	conntrackLookup = "bpf_skb_ct_lookup"
	conntrackModule = "nf_conntrack"
)

// errNoConntrack: the module may come later, with the first rule that wants it.
var errNoConntrack = errors.New("the kernel has no connection tracking (the module nf_conntrack is not loaded), or it is older than 5.18")

// conntrackTypes are the types of the module nf_conntrack, beside the kernel's own: none where it is built in. The error says why
// programs cannot ask connection tracking.
func conntrackTypes(types *btf.Cache) ([]*btf.Spec, error) {
	var f *btf.Func
	kernel, err := types.Kernel()
	if err != nil {
		return nil, err
	}
	if kernel.TypeByName(conntrackLookup, &f) == nil {
		return nil, nil
	}
	module, err := btf.LoadKernelModuleSpec(conntrackModule) // not types.Module: see typesForEach
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoConntrack
	}
	if err != nil {
		return nil, fmt.Errorf("read the types of module %s: %w", conntrackModule, err)
	}
	if module.TypeByName(conntrackLookup, &f) != nil {
		return nil, errNoConntrack
	}
	return []*btf.Spec{module}, openModule()
}

// openModule asks for what programs need to call a module's functions: its BTF, which the kernel gives by number and to CAP_SYS_ADMIN
// alone.
func openModule() error {
	all := new(btf.HandleIterator)
	defer func() { all.Handle.Close() }()
	for all.Next() {
		info, err := all.Handle.Info()
		if err != nil {
			return err
		}
		if info.Name == conntrackModule {
			return nil
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("open the types of module %s (wants CAP_SYS_ADMIN as the agent starts): %w", conntrackModule, err)
	}
	return errNoConntrack
}

// ProbeConntrack says why programs that this process loads could not ask connection tracking; nil: they could.
func ProbeConntrack() error {
	_, err := conntrackTypes(btf.NewCache())
	return err
}

// askConntrack has the programs of spec ask connection tracking, where they can and nobody chose otherwise. What the first load
// found is what Conntrack says; a later one that finds less does without.
func (o *Objects) askConntrack(spec *ebpf.CollectionSpec) error {
	if _, chosen := o.options.Knobs[knobConntrack]; chosen {
		o.conntrack = errors.New("the knob " + knobConntrack + " was set")
		return nil
	}
	types, err := conntrackTypes(o.typeCache())
	if !o.asked {
		o.asked, o.conntrack = true, err
	}
	if err != nil || o.conntrack != nil {
		return nil
	}
	o.conntrackTypes = types
	return setKnob(spec, knobConntrack, uint8(1))
}

// loadOptions are what programs that ask connection tracking take to be loaded.
func (o *Objects) loadOptions() ebpf.CollectionOptions {
	return ebpf.CollectionOptions{Cache: o.typeCache(), Programs: ebpf.ProgramOptions{ExtraRelocationTargets: o.conntrackTypes}}
}

// typeCache has the kernel's types, which are read once for a load and kept until it is over.
func (o *Objects) typeCache() *btf.Cache {
	if o.types == nil {
		o.types = btf.NewCache()
	}
	return o.types
}

// Conntrack says why these programs cannot ask connection tracking, as Load found it; nil: they can.
func (o *Objects) Conntrack() error { return o.conntrack }
