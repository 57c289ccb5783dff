// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/cgroup"
	"github.com/nearlb/nearlb/tests/privileged"
)

func TestACgroupIsFoundByItsID(t *testing.T) {
	privileged.Require(t)
	mount, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	id, err := cgroup.ID(mount.Point)
	if err != nil {
		t.Fatal(err)
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, mount.Point, 0)
	if err != nil || binary.NativeEndian.Uint64(handle.Bytes()) != id {
		t.Errorf("the id of %s is %d, its handle says %v, %v", mount.Point, id, handle.Bytes(), err)
	}
	path, err := mount.Path(id)
	if err != nil || path != mount.Point {
		t.Errorf("cgroup %d is %q, %v; want %q", id, path, err, mount.Point)
	}
	if _, err := mount.Path(1 << 60); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("a cgroup that never was: %v, want %v", err, cgroup.ErrGone)
	}
	if _, err := cgroup.ID("/proc"); err == nil {
		t.Error("/proc passes for a cgroup")
	}
}
