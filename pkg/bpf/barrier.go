// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Barrier waits until every run of a program that has begun is over, so that what such a run may have read can be used again. An
// update of a map of maps does just this since Linux 4.20 (maybe_wait_bpf_programs in kernel/bpf/syscall.c), on one processor and on
// those without a tick as well, where membarrier refuses or has nothing to do.
type Barrier struct{ inner, outer *ebpf.Map }

// NewBarrier needs the capabilities of those who make maps.
func NewBarrier() (*Barrier, error) {
	one := &ebpf.MapSpec{Name: "nearlb_barrier", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(one)
	if err != nil {
		return nil, fmt.Errorf("create barrier: %w", err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Name: one.Name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: one})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create barrier: %w", err), inner.Close())
	}
	return &Barrier{inner, outer}, nil
}

// Wait takes some milliseconds: a grace period of the kernel's RCU.
func (b *Barrier) Wait() error {
	if err := b.outer.Put(uint32(0), b.inner); err != nil {
		return fmt.Errorf("wait for programs: %w", err)
	}
	return nil
}

// Close gives the maps back.
func (b *Barrier) Close() error { return errors.Join(b.inner.Close(), b.outer.Close()) }

// WaitForPrograms is one Barrier's Wait.
func WaitForPrograms() error {
	b, err := NewBarrier()
	if err != nil {
		return err
	}
	return errors.Join(b.Wait(), b.Close())
}
