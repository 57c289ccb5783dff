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
	"strconv"
	"strings"
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
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Mount{}, fmt.Errorf("find the cgroup2 mount: %w", err)
	}
	return find(string(text))
}

func find(mountinfo string) (Mount, error) {
	mounts := visible(mountinfo)
	if len(mounts) == 0 {
		return Mount{}, fmt.Errorf("find the cgroup2 mount: %w (/proc/self/mountinfo)", ErrNoMount)
	}
	return slices.MinFunc(mounts, func(a, b Mount) int { return cmp.Compare(a.depth(), b.depth()) }), nil
}

// visible lists the cgroup2 mounts that no later mount covers.
func visible(mountinfo string) []Mount {
	var found []Mount
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) == 0 {
			continue
		}
		point := unescape(fields[4])
		found = slices.DeleteFunc(found, func(m Mount) bool { return m.Point == point })
		if kind[0] == "cgroup2" {
			found = append(found, Mount{Point: point, Root: unescape(fields[3])})
		}
	}
	return found
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

// unescape reads the octal escapes of /proc/self/mountinfo (proc_pid_mountinfo(5)).
func unescape(text string) string {
	var plain strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		plain.WriteByte(text[i])
	}
	return plain.String()
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
