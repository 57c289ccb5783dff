// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// removeOthers takes away what is attached to devices that are gone or are no pod devices any more.
func (m *Manager) removeOthers(h *netlink.Handle, devices, pods []device) error {
	wanted := map[int]bool{}
	for _, d := range pods {
		wanted[d.ifindex] = true
	}
	pinned, err := pins(m.options.LinkDir)
	errs := []error{err}
	for k := range m.attached {
		pinned = append(pinned, k)
	}
	slices.SortStableFunc(pinned, func(a, b key) int { return -cmp.Compare(a.direction, b.direction) }) // ingress first, as in removeFilters
	for _, k := range pinned {
		if !wanted[k.ifindex] {
			errs = append(errs, m.dropLink(k))
		}
	}
	for _, d := range devices {
		if !wanted[d.ifindex] && (!m.started || m.hadFilters(d)) {
			_, err := removeFilters(h, d, m.hooks)
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

// removeFilters takes our filters off a device and tells whether there were any.
func removeFilters(h *netlink.Handle, d device, hooks []hook) (bool, error) {
	removed := false
	var errs []error
	for _, hook := range slices.Backward(hooks) { // requests stop being translated before replies do
		filter, err := findFilter(h, d.ifindex, hook)
		if err == nil && filter != nil {
			removed = true
			err = removeFilter(h, filter)
		}
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// RemoveFilters takes our clsact filters off all devices, and the clsact qdiscs that nobody uses after that. It lists the
// devices it took them from. TCX links go with their pins (bpf.Cleanup).
func RemoveFilters() ([]string, error) {
	h, links, err := openLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var cleaned []string
	var errs []error
	for _, l := range links {
		d := device{name: l.Attrs().Name, ifindex: l.Attrs().Index}
		removed, err := removeFilters(h, d, podHooks(Programs{}))
		if removed {
			cleaned = append(cleaned, d.name)
			err = errors.Join(err, removeUnusedClsact(h, l))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("clean %s: %w", d.name, err))
		}
	}
	return cleaned, errors.Join(errs...)
}

func removeUnusedClsact(h *netlink.Handle, l netlink.Link) error {
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		rest, err := complete(func() ([]netlink.Filter, error) { return h.FilterList(l, parent) })
		if err != nil || len(rest) > 0 {
			return err
		}
	}
	if err := h.QdiscDel(clsact(l.Attrs().Index)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove clsact: %w", err)
	}
	return nil
}
