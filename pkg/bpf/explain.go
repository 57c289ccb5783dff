// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// explain adds to a kernel's answer what a person can do about it.
func explain(action string, err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.As(err, &verifier):
		return fmt.Errorf("%s: this kernel's verifier refuses them (`nearlb check` lists what the kernel lacks): %+v", action, verifier)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w (needs root, or the capabilities BPF, NET_ADMIN and PERFMON)", action, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%s: %w (not enough memory for tables of this size; ask for smaller ones)", action, err)
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%s: %w (`nearlb check` lists what the kernel lacks; it must have BTF: CONFIG_DEBUG_INFO_BTF)", action, err)
	}
	return fmt.Errorf("%s: %w", action, err)
}

// defaultBpffs is where a bpffs is mounted by custom.
const defaultBpffs = "/sys/fs/bpf"

// prepareDirectory makes the directories for pins. They must be on a bpffs: the customary one is mounted when it is not;
// for any other place the error says how.
func prepareDirectory(pinPath string) error {
	on, err := onBpffs(pinPath)
	if err != nil {
		return err
	}
	if !on && within(pinPath, defaultBpffs) {
		if err := unix.Mount("bpf", defaultBpffs, "bpf", 0, ""); err != nil {
			return fmt.Errorf("mount a bpffs on %s: %w", defaultBpffs, err)
		}
		on = true
	}
	if !on {
		return fmt.Errorf("pin under %s: it is not on a bpffs (mount one: mount -t bpf bpf %s)", pinPath, filepath.Dir(pinPath))
	}
	for _, dir := range []string{mapDirectory(pinPath), programDirectory(pinPath), LinkDirectory(pinPath)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make pin directory: %w", err)
		}
	}
	return nil
}

func within(path, dir string) bool {
	relative, err := filepath.Rel(dir, filepath.Clean(path))
	return err == nil && filepath.IsLocal(relative)
}

// onBpffs looks at the nearest directory of the path that exists.
func onBpffs(path string) (bool, error) {
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		var fs unix.Statfs_t
		err := unix.Statfs(dir, &fs)
		if err == nil {
			return uint32(fs.Type) == unix.BPF_FS_MAGIC, nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return false, fmt.Errorf("look at pin path %s: %w", dir, err)
		}
	}
}
