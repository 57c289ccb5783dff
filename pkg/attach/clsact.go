// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ensureFilter has our clsact filter run the program: the filter's place and handle are fixed, so that the kernel exchanges
// the program in one step.
func (m *Manager) ensureFilter(h *netlink.Handle, d device, hook hook, want ebpf.ProgramID) error {
	if err := ensureClsact(h, d.ifindex); err != nil {
		return err
	}
	old, err := findFilter(h, d.ifindex, hook)
	if err != nil {
		return err
	}
	if old != nil && ebpf.ProgramID(old.Id) == want {
		return nil
	}
	if err := h.FilterReplace(hook.filter(d.ifindex)); err != nil {
		return fmt.Errorf("replace filter: %w", err)
	}
	m.log.Info("attached program", "device", d.name, "program", hook.program, "method", Clsact)
	return nil
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

// ensureClsact adds the qdisc that filters need. Where an ingress qdisc is in its place, an egress filter would land on the
// ingress side without an error.
func ensureClsact(h *netlink.Handle, ifindex int) error {
	err := h.QdiscAdd(clsact(ifindex))
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

// findFilter finds our filter in one place of a device; nil without one.
func findFilter(h *netlink.Handle, ifindex int, hook hook) (*netlink.BpfFilter, error) {
	filters, err := complete(func() ([]netlink.Filter, error) { return h.FilterList(byIndex(ifindex), hook.parent) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the device has another qdisc in this place, or none can be there
	}
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Handle == filterHandle && b.Name == hook.filterName() {
			return b, nil
		}
	}
	return nil, nil
}

func removeFilter(h *netlink.Handle, f *netlink.BpfFilter) error {
	if err := h.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove filter: %w", err)
	}
	return nil
}
