// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/nearlb/nearlb/pkg/cgroup"
)

// listSockets reads what is attached to a cgroup, by the links pinned under linkDir.
func listSockets(programs *programReader) ([]DeviceRow, error) {
	var rows []DeviceRow
	for _, h := range socketHooks() {
		row, found, err := readSocketLink(h, programs)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", h.pin(programs.linkDir), err)
		}
		if found {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func readSocketLink(h socketHook, programs *programReader) (row DeviceRow, found bool, err error) {
	a, err := openPinned(h.pin(programs.linkDir))
	if err != nil || a == nil {
		return row, false, err
	}
	defer a.close()
	info, err := a.link.Info()
	if err != nil || info.Cgroup() == nil || info.Cgroup().CgroupId == 0 { // a cgroup that is gone has lost its programs
		return row, false, err
	}
	name, err := cgroupName(info.Cgroup().CgroupId)
	if errors.Is(err, cgroup.ErrGone) { // and will lose them
		return row, false, nil
	}
	row = h.row(name)
	row.Method, row.ID, row.Link = CgroupLink, uint32(info.Program), uint32(a.id)
	err = programs.describe(info.Program, &row)
	row.Program = h.program() // the kernel cuts names short
	return row, true, err
}

// cgroupName is the directory of a cgroup, or its number where it is not to be seen from here, with the reason.
func cgroupName(id uint64) (string, error) {
	number := fmt.Sprintf("cgroup %d", id)
	mount, err := cgroup.Find()
	if err != nil {
		return number, err
	}
	path, err := mount.Path(id)
	if err != nil {
		return number, err
	}
	return path, nil
}
