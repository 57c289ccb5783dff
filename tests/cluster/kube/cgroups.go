// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// cgroupParent is the directory of every hierarchy that holds the clusters' cgroups and nothing else.
const cgroupParent = "nearlb-kube"

// hierarchy is one mount of cgroups on this machine: version 2, or controllers of version 1.
type hierarchy struct {
	Mount   string   // where this machine has it
	Path    string   // where a node has it: below /sys/fs/cgroup
	Options []string // of a mount of version 1: its controllers, or none and its name; nil: version 2
}

// hierarchies are those that this machine has mounted below /sys/fs/cgroup.
func hierarchies() ([]hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter("/sys/fs/cgroup"))
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for _, m := range mounts {
		h := hierarchy{Mount: m.Mountpoint, Path: m.Mountpoint}
		switch m.FSType {
		case "cgroup2":
			all = append(all, h)
		case "cgroup":
			h.Options = slices.DeleteFunc(strings.Split(m.VFSOptions, ","), func(o string) bool { return o == "rw" || o == "ro" })
			if slices.ContainsFunc(h.Options, func(o string) bool { return strings.HasPrefix(o, "name=") }) {
				h.Options = append(h.Options, "none")
			}
			all = append(all, h)
		}
	}
	return all, nil
}

// controllers are the names of the controllers that some hierarchy has.
func controllers(all []hierarchy) (names []string) {
	for _, h := range all {
		names = append(names, h.Options...)
		if h.Options == nil {
			text, _ := os.ReadFile(filepath.Join(h.Mount, "cgroup.controllers"))
			names = append(names, strings.Fields(string(text))...)
		}
	}
	return names
}

// loan are controllers that a cgroup of this machine (version 2) did not give its children before.
type loan struct {
	dir         string
	controllers []string
}

// giveBack undoes loans. What others use by now stays.
func giveBack(loans []loan) {
	for _, l := range loans {
		for _, controller := range l.controllers {
			_ = os.WriteFile(filepath.Join(l.dir, subtreeControl), []byte("-"+controller), 0)
		}
	}
}

// makeCgroups makes a cgroup of this name in every hierarchy. What it changed above these is to be given back when they are gone.
func makeCgroups(all []hierarchy, name string) (loans []loan, err error) {
	for _, h := range all {
		dir := h.Mount
		for _, part := range []string{cgroupParent, name} {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return loans, fmt.Errorf("make cgroup: %w", err)
			}
			enabled, err := h.delegate(parent, dir)
			if len(enabled) > 0 && parent == h.Mount {
				loans = append(loans, loan{parent, enabled})
			}
			if err != nil {
				return loans, fmt.Errorf("prepare cgroup %s: %w", dir, err)
			}
		}
	}
	return loans, nil
}

// delegate lets a new cgroup have processes and controllers: version 1 gives it no processors, version 2 no controllers. It gives those
// that the parent did not give before.
func (h hierarchy) delegate(parent, dir string) (enabled []string, err error) {
	if h.Options == nil {
		return enableControllers(parent)
	}
	if !slices.Contains(h.Options, "cpuset") {
		return nil, nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), value, 0)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

const subtreeControl = "cgroup.subtree_control"

// enableControllers has the children of a cgroup of version 2 have the controllers that it has itself. It gives those that they had not.
func enableControllers(dir string) (enabled []string, err error) {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	gives, err := os.ReadFile(filepath.Join(dir, subtreeControl))
	if err != nil {
		return nil, err
	}
	before := strings.Fields(string(gives))
	enabled = slices.DeleteFunc(strings.Fields(string(has)), func(c string) bool { return slices.Contains(before, c) })
	if len(enabled) == 0 {
		return nil, nil
	}
	return enabled, os.WriteFile(filepath.Join(dir, subtreeControl), []byte("+"+strings.Join(enabled, " +")), 0)
}

// joinCgroups moves the calling process.
func joinCgroups(all []hierarchy, name string) error {
	for _, h := range all {
		file := filepath.Join(h.Mount, cgroupParent, name, "cgroup.procs")
		if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// mountCgroups mounts the hierarchies below a root directory. The caller is in a cgroup namespace, of which they show the part.
func mountCgroups(all []hierarchy, root string) error {
	top := filepath.Join(root, "sys/fs/cgroup")
	if !slices.ContainsFunc(all, func(h hierarchy) bool { return h.Path == "/sys/fs/cgroup" }) {
		if err := unix.Mount("tmpfs", top, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", top, err)
		}
	}
	for _, h := range all {
		path, kind, options := filepath.Join(root, h.Path), "cgroup", strings.Join(h.Options, ",")
		if h.Options == nil {
			kind = "cgroup2"
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(kind, path, kind, 0, options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", kind, path, err)
		}
		if h.Options == nil && h.Path == "/sys/fs/cgroup" {
			if err := leaveRoot(path); err != nil {
				return fmt.Errorf("delegate %s: %w", path, err)
			}
		}
	}
	return nil
}

// leaveRoot moves the calling process out of the root of its cgroup namespace, which may have no process where it has controllers to
// give (version 2).
func leaveRoot(root string) error {
	leaf := filepath.Join(root, "init")
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	_, err := enableControllers(root)
	return err
}

// removeCgroups removes a cgroup and all below it from every hierarchy. It waits for processes that are about to end.
func removeCgroups(all []hierarchy, name string) error {
	var errs []error
	for _, h := range all {
		dir := filepath.Join(h.Mount, cgroupParent, name)
		var err error
		_ = lab.Await(30*time.Second, func() bool {
			err = removeTree(dir)
			return err == nil
		})
		errs = append(errs, err)
		_ = os.Remove(filepath.Dir(dir)) // unless other clusters have it
	}
	return errors.Join(errs...)
}

// removeTree removes a cgroup's directory with those below it: files in them are no obstacle.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	for _, path := range slices.Backward(dirs) {
		if remove := os.Remove(path); remove != nil && !errors.Is(remove, fs.ErrNotExist) {
			err = errors.Join(err, remove)
		}
	}
	return err
}

// removeStaleCgroups removes those of clusters that were killed: the directory of their lab is gone, as lab.New removes it.
func removeStaleCgroups(all []hierarchy) {
	for _, h := range all {
		found, _ := filepath.Glob(filepath.Join(h.Mount, cgroupParent, "*"))
		for _, dir := range found {
			of, _, _ := strings.Cut(filepath.Base(dir), ".")
			if _, err := os.Lstat(filepath.Join(os.TempDir(), of)); errors.Is(err, fs.ErrNotExist) {
				_ = removeTree(dir)
			}
		}
		_ = os.Remove(filepath.Join(h.Mount, cgroupParent)) // unless clusters have it
	}
}
