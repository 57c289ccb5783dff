// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// List reads from the kernel what is attached to the devices of this namespace, without an agent: TCX links pinned under
// linkDir, and clsact filters; and what is attached to a cgroup. A pinned link whose device is gone is left out.
func List(linkDir string) ([]DeviceRow, error) {
	programs := newProgramReader(linkDir)
	rows, err := listAttached(programs)
	if err != nil {
		return nil, err
	}
	sockets, err := listSockets(programs)
	if err != nil {
		return nil, err
	}
	rows = append(rows, sockets...)
	sortRows(rows)
	return rows, nil
}

// listAttached is List for devices.
func listAttached(programs *programReader) ([]DeviceRow, error) {
	h, links, err := openLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	pinned, err := pins(programs.linkDir)
	if err != nil {
		return nil, err
	}
	linked := map[key]bool{}
	for _, k := range pinned {
		linked[k] = true
	}
	rows := []DeviceRow{}
	for _, l := range links {
		found, err := readDevice(h, l.Attrs(), programs, linked)
		if err != nil {
			return nil, fmt.Errorf("read device %s: %w", l.Attrs().Name, err)
		}
		rows = append(rows, found...)
	}
	return rows, nil
}

// readDevice lists our attachments of one device.
func readDevice(h *netlink.Handle, l *netlink.LinkAttrs, programs *programReader, linked map[key]bool) ([]DeviceRow, error) {
	var rows []DeviceRow
	for _, hook := range places() {
		row := hook.row(l.Name, l.Index)
		found, err := false, error(nil)
		if k := hook.key(l.Index); linked[k] {
			found, err = readLink(hook, k.pin(programs.linkDir), programs, &row)
		}
		if err == nil && !found {
			found, err = readFilter(h, hook, &row)
		}
		if err != nil {
			return nil, err
		}
		if found {
			rows = append(rows, row)
		}
	}
	if k := (key{l.Index, atXDP}); linked[k] {
		row, found, err := readXDP(l, k.pin(programs.linkDir))
		if err != nil {
			return nil, err
		}
		if found {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// readLink fills in the row from a pinned link, if the link is on this device.
func readLink(hook hook, path string, programs *programReader, row *DeviceRow) (bool, error) {
	a, err := openPinned(path)
	if err != nil || a == nil {
		return false, err
	}
	defer a.close()
	q, err := link.QueryPrograms(link.QueryOptions{Target: row.Ifindex, Attach: hook.attach})
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil || !attachedAt(q, a.id) {
		return false, err
	}
	row.Method, row.Link, row.Others = TCX, uint32(a.id), before(q, a.id, hook)
	row.ID = uint32(q.Programs[position(q, a.id)].ID)
	return true, programs.describe(ebpf.ProgramID(row.ID), row)
}

// readFilter fills in the row from our clsact filter, if there is one.
func readFilter(h *netlink.Handle, hook hook, row *DeviceRow) (bool, error) {
	filter, err := findFilter(h, row.Ifindex, hook)
	if err != nil || filter == nil {
		return false, err
	}
	row.Method, row.ID, row.Tag = Clsact, uint32(filter.Id), filter.Tag
	row.describe(strings.TrimPrefix(filter.Name, filterPrefix))
	return true, nil
}
