// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// removeOthers takes away what is attached to devices that are gone or are nobody's any more.
func (m *Manager) removeOthers(h *netlink.Handle, devices []device, doors []door) error {
	wanted, atNetwork := map[int]bool{}, map[int]bool{}
	for _, d := range doors {
		wanted[d.ifindex] = true
		atNetwork[d.ifindex] = d.kind == kindNetwork
	}
	pinned, err := pins(m.options.LinkDir)
	errs := []error{err}
	for k := range m.attached {
		pinned = append(pinned, k)
	}
	slices.SortStableFunc(pinned, func(a, b key) int { return -cmp.Compare(a.direction, b.direction) }) // ingress first, as in removeFilters
	for _, k := range pinned {
		if !wanted[k.ifindex] || k.direction == atXDP && !(m.options.XDP.wanted() && atNetwork[k.ifindex]) {
			errs = append(errs, m.dropLink(k))
		}
	}
	for _, d := range devices {
		if !wanted[d.ifindex] && (!m.started || m.hadFilters(d)) {
			ours, err := m.ours()
			if err == nil {
				err = removeFilters(h, d.ifindex, ours)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hadFilters tells whether the last Sync left filters on the device. What earlier agents left, the first one finds.
func (m *Manager) hadFilters(d device) bool {
	for _, row := range m.Devices() {
		if row.Ifindex == d.ifindex && row.Method == Clsact {
			return true
		}
	}
	return false
}

// pins lists the pinned links; none without a directory.
func pins(dir string) ([]key, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var found []key
	for _, e := range entries {
		if k, ok := parsePin(e.Name()); ok {
			found = append(found, k)
		}
	}
	return found, nil
}

// ours tells our filters from those of an agent with another pin path.
func (m *Manager) ours() (func(*netlink.BpfFilter) bool, error) {
	if m.options.Ours == nil {
		return func(*netlink.BpfFilter) bool { return true }, nil
	}
	programs, err := m.options.Ours()
	return running(programs), err
}

func running(programs map[ebpf.ProgramID]bool) func(*netlink.BpfFilter) bool {
	return func(f *netlink.BpfFilter) bool { return programs[ebpf.ProgramID(f.Id)] }
}

// removeFilters takes chosen filters off a device.
func removeFilters(h *netlink.Handle, ifindex int, chosen func(*netlink.BpfFilter) bool) error {
	var errs []error
	for _, hook := range slices.Backward(places()) { // requests stop being translated before replies do
		filters, err := listFilters(h, ifindex, hook)
		errs = append(errs, err)
		for _, f := range filters {
			if chosen(f) {
				errs = append(errs, removeFilter(h, f))
			}
		}
	}
	return errors.Join(errs...)
}

// RemoveFilters takes the clsact filters that run these programs (bpf.PinnedPrograms) off all devices, and those clsact qdiscs
// that were noted under noteDir when an agent made them and that nobody uses any more. It lists what it removed. TCX links go
// with their pins (bpf.Cleanup).
func RemoveFilters(programs map[ebpf.ProgramID]bool, noteDir string) ([]string, error) {
	h, links, err := openLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var removed []string
	var errs []error
	for _, l := range links {
		name, ifindex := l.Attrs().Name, l.Attrs().Index
		count := 0
		err := removeFilters(h, ifindex, func(f *netlink.BpfFilter) bool {
			ours := running(programs)(f)
			if ours {
				count++
			}
			return ours
		})
		if count > 0 {
			removed = append(removed, "filters of "+name)
		}
		if _, noted := os.Lstat(qdiscNote(noteDir, ifindex)); err == nil && noted == nil {
			var gone bool
			if gone, err = removeUnusedClsact(h, l); gone {
				removed = append(removed, "clsact of "+name)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("clean %s: %w", name, err))
		}
	}
	return removed, errors.Join(errs...)
}

func removeUnusedClsact(h *netlink.Handle, l netlink.Link) (bool, error) {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		rest, err := complete(func() ([]netlink.Filter, error) { return h.FilterList(l, parent) })
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			return false, nil // another qdisc has its place, or the device went
		}
		if err != nil || len(rest) > 0 {
			return false, err
		}
	}
	err := h.QdiscDel(clsact(l.Attrs().Index))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove clsact: %w", err)
	}
	return true, nil
}
