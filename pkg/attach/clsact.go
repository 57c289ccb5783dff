// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ensureFilter has our clsact filter run the program: the filter's place and handle are fixed, so that the kernel exchanges
// the program in one step.
func (m *Manager) ensureFilter(h *netlink.Handle, d device, hook hook, want ebpf.ProgramID) error {
	if err := ensureClsact(h, d.ifindex, m.options.QdiscDir); err != nil {
		return err
	}
	old, err := findFilter(h, d.ifindex, hook)
	if err != nil {
		return err
	}
	m.give(want)
	if old != nil && ebpf.ProgramID(old.Id) == want && old.Name == hook.filterName() {
		return nil
	}
	if old != nil && !hook.replaces() && len(m.former()) > 0 && !m.carried {
		if err := m.keepBeside(h, hook, old); err != nil {
			return err
		}
	}
	if err := h.FilterReplace(hook.filter(d.ifindex)); err != nil {
		return fmt.Errorf("replace filter: %w", err)
	}
	m.log.Info("attached program", "device", d.name, "program", hook.program, "method", Clsact)
	return nil
}

// give notes which program a filter of ours gets, before it does: the kernel's news of that is none.
func (m *Manager) give(program ebpf.ProgramID) {
	m.dueMu.Lock()
	defer m.dueMu.Unlock()
	m.given[program] = true
}

// filter is what we want of the kernel.
func (h hook) filter(ifindex int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    h.parent,
			Handle:    filterHandle,
			Priority:  h.priority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           h.loaded.FD(),
		Name:         h.filterName(),
		DirectAction: true,
	}
}

// ensureClsact adds the qdisc that filters need, and notes in noteDir that it did. Where an ingress qdisc is in its place, an
// egress filter would land on the ingress side without an error.
func ensureClsact(h *netlink.Handle, ifindex int, noteDir string) error {
	err := addClsact(h, ifindex, noteDir)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact: %w", err)
	}
	qdiscs, err := complete(func() ([]netlink.Qdisc, error) { return h.QdiscList(byIndex(ifindex)) })
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_CLSACT && q.Type() != "clsact" {
			return fmt.Errorf("add clsact: a qdisc %s has its place", q.Type())
		}
	}
	return nil
}

// addClsact writes its note first: whoever is killed in between leaves a note of a qdisc that is not there.
func addClsact(h *netlink.Handle, ifindex int, noteDir string) error {
	note := qdiscNote(noteDir, ifindex)
	noted := false
	if noteDir != "" {
		err := os.MkdirAll(noteDir, 0o700)
		if err == nil {
			err = os.Mkdir(note, 0o700)
		}
		if noted = err == nil; err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("note qdisc: %w", err)
		}
	}
	err := h.QdiscAdd(clsact(ifindex))
	if err != nil && noted {
		return errors.Join(err, os.Remove(note))
	}
	return err
}

// qdiscNote is a directory, as a bpffs has no files.
func qdiscNote(dir string, ifindex int) string { return filepath.Join(dir, strconv.Itoa(ifindex)) }

func byIndex(ifindex int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
}

func clsact(ifindex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

// findFilter finds our filter in one place of a device, whichever program it runs; nil without one.
func findFilter(h *netlink.Handle, ifindex int, hook hook) (*netlink.BpfFilter, error) {
	filters, err := listFilters(h, ifindex, hook)
	for _, f := range filters {
		if f.Handle == filterHandle {
			return f, nil
		}
	}
	return nil, err
}

func removeFilter(h *netlink.Handle, f *netlink.BpfFilter) error {
	if err := h.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove filter: %w", err)
	}
	return nil
}
