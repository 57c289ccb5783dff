// SPDX-License-Identifier: Apache-2.0

// Package cgroup finds the cgroup v2 hierarchy of this machine, whether it is the only one or one of a hybrid set.
package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// ErrNoMount: no cgroup2 file system is mounted.
var ErrNoMount = errors.New("no cgroup2 file system is mounted")

// Mount is one mounted cgroup2 file system.
type Mount struct {
	Point string // directory
	Root  string // the cgroup at Point, as seen from the process's cgroup namespace: "/", "/kubepods/x", "/../.."
}

// Find is the mount that shows most of the hierarchy: the whole of it, where the machine's own is mounted in a container beside
// the container's part. Without any it is ErrNoMount.
func Find() (Mount, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return Mount{}, fmt.Errorf("find the cgroup2 mount: %w", err)
	}
	return find(mounts)
}

func find(mounts []*mountinfo.Info) (Mount, error) {
	var found []Mount
	for _, m := range mounts {
		found = slices.DeleteFunc(found, func(covered Mount) bool { return covered.Point == m.Mountpoint })
		if m.FSType == "cgroup2" {
			found = append(found, Mount{Point: m.Mountpoint, Root: m.Root})
		}
	}
	if len(found) == 0 {
		return Mount{}, fmt.Errorf("find the cgroup2 mount: %w (/proc/self/mountinfo)", ErrNoMount)
	}
	return slices.MinFunc(found, func(a, b Mount) int { return cmp.Compare(a.depth(), b.depth()) }), nil
}

// depth is how far below the namespace's root the mount begins; above it, it is negative.
func (m Mount) depth() int {
	depth := 0
	for part := range strings.SplitSeq(m.Root, "/") {
		switch part {
		case "":
		case "..":
			depth--
		default:
			depth++
		}
	}
	return depth
}

// Own is the directory of the calling process's cgroup, in the mount of Find.
func Own() (string, error) {
	mount, err := Find()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find the own cgroup: %w", err)
	}
	return mount.own(string(text))
}

func (m Mount) own(cgroups string) (string, error) {
	for line := range strings.Lines(cgroups) {
		if name, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			below, err := filepath.Rel(m.Root, name)
			if err != nil || below == ".." || strings.HasPrefix(below, "../") {
				return "", fmt.Errorf("find the own cgroup: %s is not below %s, which is mounted on %s", name, m.Root, m.Point)
			}
			return path.Join(m.Point, below), nil
		}
	}
	return "", errors.New("find the own cgroup: /proc/self/cgroup has no line of cgroup2")
}
