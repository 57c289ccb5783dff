// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"testing"

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
