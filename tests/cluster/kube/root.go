// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// shared are directories of this machine that a node sees, read-only; where one is a link, so it is there.
var shared = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl"}

// privateSettings are what a kubelet sets in the kernel for the whole machine (setupKernelTunables in its container manager). On a node
// they are files.
var privateSettings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
	"kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// makeRoot makes the node's file system, in memory, and has the calling process live in it. Nothing of it is on a disk, and nothing that
// is mounted there is seen outside.
func (m machine) makeRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("node", m.Root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	for _, step := range []func() error{m.bindAll, m.makeFiles, m.mountSystem} {
		if err := step(); err != nil {
			return err
		}
	}
	return m.pivot()
}

// bindAll makes what the node has of this machine.
func (m machine) bindAll() error {
	for _, path := range shared {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(path); err == nil {
				err = os.Symlink(target, m.in(path))
			}
		default:
			err = bind(path, m.in(path), true)
		}
		if err != nil {
			return err
		}
	}
	for path, source := range m.Binds {
		if err := bind(source, m.in(path), true); err != nil {
			return err
		}
	}
	return bind("/dev", m.in("/dev"), false)
}

// makeFiles makes the node's own files and directories.
func (m machine) makeFiles() error {
	for _, dir := range []string{"proc", "sys", "run", "tmp", "root", "var/log", "var/lib", "opt", "etc/cni/net.d", "old"} {
		if err := os.MkdirAll(m.in(dir), 0o755); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chmod(m.in("tmp"), 0o1777), os.Symlink("/run", m.in("var/run"))); err != nil {
		return err
	}
	for path, text := range m.Files {
		if err := os.MkdirAll(filepath.Dir(m.in(path)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(m.in(path), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(m.in("etc"), 0o755)
}

// mountSystem mounts what the kernel shows of the node's namespaces. /sys/fs/bpf is left to the one who wants a file system there.
func (m machine) mountSystem() error {
	for kind, dir := range map[string]string{"proc": "proc", "sysfs": "sys"} {
		if err := unix.Mount(kind, m.in(dir), kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	if err := mountCgroups(m.Hierarchies, m.Root); err != nil {
		return err
	}
	for path, value := range privateSettings {
		file, setting := m.in("opt/settings/"+path), m.in("proc/sys/"+path)
		if _, err := os.Lstat(setting); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(file, setting, false); err != nil {
			return err
		}
	}
	return nil
}

// pivot has the process see the node's files and no others. Mounts are shared with those who are given a part of them, as systemd has
// it: what a container mounts (mountPropagation: Bidirectional) the node sees.
func (m machine) pivot() error {
	if err := unix.PivotRoot(m.Root, m.in("old")); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	if err := os.Remove("/old"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return unix.Sethostname([]byte(m.Name))
}

// in is a path of the node before it is entered.
func (m machine) in(path string) string { return filepath.Join(m.Root, path) }

// bind mounts a directory, with what is mounted in it, or a file.
func bind(source, path string, readOnly bool) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(path, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = touch(path)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, path, err)
	}
	if readOnly {
		return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return nil
}

// touch makes a file where there is none.
func touch(path string) error {
	if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, nil, 0o755)
}
