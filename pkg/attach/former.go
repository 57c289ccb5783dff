// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// secondHandle is the handle of the clsact filter that keeps another generation's program beside ours.
const secondHandle = filterHandle + 1

func (m *Manager) former() []string {
	if m.options.Former == nil || m.options.LinkDir == "" {
		return nil
	}
	return m.options.Former()
}

// replaces tells hooks whose program replaces a former generation's from those whose programs run side by side.
func (h hook) replaces() bool { return h.direction == ingress }

// succeed has the replies of both generations translated on all devices before the first request goes by the new one: a
// reply may come back through another device. Failures are met again, and told, in ensureAll.
func (m *Manager) succeed(h *netlink.Handle, doors []door) {
	if m.carried || len(m.former()) == 0 {
		return
	}
	failed := map[int]bool{} // by ifindex: requests translated by the new program whose replies are not would be worse than neither
	for _, d := range doors {
		hooks, err := m.hooks(d)
		for _, hook := range hooks {
			if err == nil && !hook.replaces() {
				_, err := m.ensure(h, d.device, hook)
				failed[d.ifindex] = failed[d.ifindex] || err != nil
			}
		}
	}
	m.carry()
	m.takeOverXDP(doors)
	// Clients off the node may have ports of their own towards a backend, which only who knows all connections can tell: the
	// new programs make connections at the same time as the old ones for as short as possible.
	for _, d := range doors {
		hooks, err := m.hooks(d)
		for _, hook := range hooks {
			if err == nil && hook.kind == kindNetwork && hook.replaces() && !failed[d.ifindex] {
				_, _ = m.ensure(h, d.device, hook)
			}
		}
	}
	m.carry()
	m.carried = true
}

func (m *Manager) carry() {
	if m.options.Carry != nil {
		m.options.Carry()
	}
}

// adopt gives a pinned link of another generation its place in ours, if there is one: whoever is killed after that finds it.
func adopt(former []string, path string) error {
	for _, dir := range former {
		err := os.Rename(filepath.Join(dir, filepath.Base(path)), path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("take over link: %w", err)
		}
	}
	return nil
}

// keepBeside leaves the program that our filter is about to lose in a filter of its own, if it is another generation's.
func (m *Manager) keepBeside(h *netlink.Handle, hook hook, old *netlink.BpfFilter) error {
	for _, dir := range m.former() {
		program := pinnedProgram(ebpf.ProgramID(old.Id), dir)
		if program == nil {
			continue
		}
		defer program.Close()
		beside := hook.filter(old.LinkIndex)
		beside.Handle, beside.Fd = secondHandle, program.FD()
		if err := h.FilterReplace(beside); err != nil {
			return fmt.Errorf("keep filter: %w", err)
		}
		return nil
	}
	return nil
}

// LeaveFormer takes away the filters that kept other generations' programs beside ours. Their links go with their pins.
// Options.Synced may call it.
func (m *Manager) LeaveFormer() error {
	h, links, err := openLinks()
	if err != nil {
		return err
	}
	defer h.Close()
	ours, err := m.ours()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, removeFilters(h, l.Attrs().Index, func(f *netlink.BpfFilter) bool { return f.Handle == secondHandle && ours(f) }))
	}
	return errors.Join(errs...)
}

// listFilters are those in one place of a device that look like an agent's, of whatever pin path.
func listFilters(h *netlink.Handle, ifindex int, hook hook) ([]*netlink.BpfFilter, error) {
	filters, err := filtersAt(h, ifindex, hook)
	var found []*netlink.BpfFilter
	for _, f := range filters {
		if isOurs(f) {
			found = append(found, f.(*netlink.BpfFilter))
		}
	}
	return found, err
}

// isOurs tells whether a filter looks like an agent's.
func isOurs(f netlink.Filter) bool {
	b, is := f.(*netlink.BpfFilter)
	return is && (b.Handle == filterHandle || b.Handle == secondHandle) && strings.HasPrefix(b.Name, filterPrefix)
}

// filtersAt are all in one place of a device, in the order in which they see packets.
func filtersAt(h *netlink.Handle, ifindex int, hook hook) ([]netlink.Filter, error) {
	filters, err := complete(func() ([]netlink.Filter, error) { return h.FilterList(byIndex(ifindex), hook.parent) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return nil, nil // the device has another qdisc in this place, or none can be there; or it went
	}
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	slices.SortStableFunc(filters, func(a, b netlink.Filter) int { return cmp.Compare(a.Attrs().Priority, b.Attrs().Priority) })
	return filters, nil
}
