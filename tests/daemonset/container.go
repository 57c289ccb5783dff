// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/capability"
)

// container is what a runtime is told.
type container struct {
	Program         string
	Args            []string
	Env             []string
	Capabilities    []string // CAP_NET_ADMIN
	Mounts          []mount
	Calls           []uint32 // see Pod
	NoNewPrivileges bool
	ReadOnly        bool // root file system
}

type mount struct {
	Host, Path string
	ReadOnly   bool
}

// variable in the environment has the test binary become a container, before anything else of it runs.
const variable = "NEARLB_TEST_CONTAINER"

func init() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var c container
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.become()
	}
	fmt.Fprintln(os.Stderr, "start container:", err)
	os.Exit(125)
}

// image is where the program is in the image, by manifests/Dockerfile.
const image = "/usr/local/bin/nearlb"

// become never returns but with an error.
func (c container) become() error {
	runtime.LockOSThread() // exec keeps this thread alone, with what it gave up
	root, err := c.root()
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/")); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	if err := c.bound(); err != nil {
		return err
	}
	if err := c.filter(); err != nil {
		return err
	}
	return unix.Exec(image, append([]string{image}, c.Args...), c.Env)
}

// root makes the container's file system: the image, which has the program alone, what runtimes mount, and the volumes.
func (c container) root() (string, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return "", fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("keep mounts private: %w", err)
	}
	root, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return "", err
	}
	// What is to be seen inside is opened before /tmp is covered.
	program, err := os.Open(c.Program)
	if err != nil {
		return "", err
	}
	sources := make([]*os.File, len(c.Mounts))
	for i, m := range c.Mounts {
		if sources[i], err = os.Open(m.Host); err != nil {
			return "", err
		}
	}
	if err := unix.Mount("image", root, "tmpfs", 0, "mode=755"); err != nil {
		return "", fmt.Errorf("mount root: %w", err)
	}
	if err := os.Chdir(root); err != nil {
		return "", err
	}
	if err := bind(program, filepath.Join(root, image), true); err != nil {
		return "", err
	}
	if err := system(root); err != nil {
		return "", err
	}
	for i, m := range c.Mounts {
		if err := bind(sources[i], filepath.Join(root, m.Path), m.ReadOnly); err != nil {
			return "", err
		}
	}
	if c.ReadOnly {
		err = unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return root, err
}

// system mounts what every runtime does, less the devices that nobody here opens.
func system(root string) error {
	for kind, name := range map[string]string{"proc": "proc", "sysfs": "sys"} {
		path := filepath.Join(root, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(kind, path, kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return unix.Mount("", filepath.Join(root, "sys"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

func bind(source *os.File, path string, readOnly bool) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(path, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
		err = os.WriteFile(path, nil, 0o755)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	source.Close()
	if readOnly {
		return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	return nil
}

// bound gives up every capability that the container has not: exec takes the others from the bounding set.
func (c container) bound() error {
	var all capability.Set
	for bit := range uint(64) {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(bit), 0, 0, 0); err == nil && has == 1 {
			all |= capability.Of(bit)
		}
	}
	left := slices.Clone(c.Capabilities)
	for bit := range uint(64) {
		name := capability.Of(bit).Names()[0]
		if at := slices.Index(left, name); at >= 0 && all.Has(bit) {
			left = slices.Delete(left, at, at+1)
		} else if all.Has(bit) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil {
				return fmt.Errorf("drop %s: %w", name, err)
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("this machine has no %v to give", left)
	}
	if c.NoNewPrivileges {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}
