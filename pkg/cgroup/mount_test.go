// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

const (
	unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	hybrid  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
		"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
		"41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 master:1 - cgroup2 cgroup2 rw\n"
	legacy = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
)

func mounts(t *testing.T, text string) []*mountinfo.Info {
	t.Helper()
	all, err := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTheMountThatShowsMostIsFound(t *testing.T) {
	for name, row := range map[string]struct{ mountinfo, want string }{
		"unified hierarchy":                      {unified, "/sys/fs/cgroup"},
		"hybrid hierarchies":                     {hybrid, "/sys/fs/cgroup/unified"},
		"the machine's beside a container's own": {unified + "90 80 0:26 /../.. /host/cgroup rw - cgroup2 cgroup2 rw\n", "/host/cgroup"},
		"a part beside the whole":                {"90 80 0:26 /kubepods /part rw - cgroup2 cgroup2 rw\n" + unified, "/sys/fs/cgroup"},
		"one mounted over another":               {unified + "91 30 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup"},
		"covered by something else":              {unified + "91 30 0:26 /x /here rw - cgroup2 cgroup2 rw\n92 30 0:9 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "/here"},
		"a space in its name":                    {"30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n", "/my groups"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := find(mounts(t, row.mountinfo))
			if err != nil || got.Point != row.want {
				t.Errorf("mount %q, %v; want %q", got.Point, err, row.want)
			}
		})
	}
}

func TestWithoutAnyMountItIsNamed(t *testing.T) {
	for _, text := range []string{"", legacy} {
		if got, err := find(mounts(t, text)); !errors.Is(err, ErrNoMount) {
			t.Errorf("mount %q, %v; want %v", got.Point, err, ErrNoMount)
		}
	}
}

func TestTheOwnCgroupIsFoundBelowTheMount(t *testing.T) {
	const cgroups = "9:name=systemd:/\n0::/user.slice/session-1.scope\n"
	for name, row := range map[string]struct {
		mount Mount
		want  string
	}{
		"whole hierarchy": {Mount{"/sys/fs/cgroup", "/"}, "/sys/fs/cgroup/user.slice/session-1.scope"},
		"a part of it":    {Mount{"/part", "/user.slice"}, "/part/session-1.scope"},
		"another part":    {Mount{"/part", "/system.slice"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := row.mount.own(cgroups)
			if got != row.want || (err == nil) != (row.want != "") {
				t.Errorf("own cgroup %q, %v; want %q", got, err, row.want)
			}
		})
	}
}
