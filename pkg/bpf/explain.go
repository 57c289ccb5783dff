// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/capability"
)

// explain adds to a kernel's answer what a person can do about it.
func explain(action string, err error) error {
	var verifier *ebpf.VerifierError
	refused := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	switch lacks := lacking(); {
	case refused && len(lacks) > 0: // by the verifier, too: without PERFMON it allows less
		return fmt.Errorf("%s: %w", action, Permitted())
	case errors.As(err, &verifier):
		return fmt.Errorf("%s: this kernel's verifier refuses them (`nearlb check` lists what the kernel lacks): %w", action, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w (needs root, or the capabilities BPF, NET_ADMIN and PERFMON)", action, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%s: %w (not enough memory for tables of this size; ask for smaller ones)", action, err)
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%s: %w (`nearlb check` lists what the kernel lacks; it must have BTF: CONFIG_DEBUG_INFO_BTF)", action, err)
	}
	return fmt.Errorf("%s: %w", action, err)
}

// Permitted names the capabilities that this process lacks for loading, attaching and following devices; nil: none.
func Permitted() error {
	lacks := lacking()
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("%w (needs root, or the capabilities BPF, NET_ADMIN and PERFMON; this process lacks %s)", unix.EPERM, strings.Join(lacks, ", "))
}

// lacking are the capabilities that loading takes and this process has not.
func lacking() (names []string) {
	has, err := capability.Effective()
	if err != nil || has.Has(unix.CAP_SYS_ADMIN) && has.Has(unix.CAP_NET_ADMIN) {
		return nil
	}
	for _, number := range []uint{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON} {
		if !has.Has(number) && (number == unix.CAP_NET_ADMIN || !has.Has(unix.CAP_SYS_ADMIN)) {
			names = append(names, capability.Of(number).Names()...)
		}
	}
	return names
}

// defaultBpffs is where a bpffs is mounted by custom.
const defaultBpffs = "/sys/fs/bpf"

// prepareDirectory makes the directories for pins. They must be on a bpffs: the customary one is mounted when it is not;
// for any other place the error says how.
func prepareDirectory(pinPath string) (err error) {
	on, err := onBpffs(pinPath)
	if err != nil {
		return err
	}
	if !on && within(pinPath, defaultBpffs) {
		if err := unix.Mount("bpf", defaultBpffs, "bpf", 0, ""); err != nil {
			return fmt.Errorf("mount a bpffs on %s: %w", defaultBpffs, err)
		}
		on = true
		defer func() {
			if err == nil {
				err = note(pinPath, mountedNote)
			}
		}()
	}
	if !on {
		return fmt.Errorf("pin under %s: it is not on a bpffs (mount one: mount -t bpf bpf %s)", pinPath, filepath.Dir(pinPath))
	}
	missing := missingLevels(pinPath)
	if err := os.MkdirAll(pinPath, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if _, noted := madeLevels(pinPath); noted {
		return nil
	}
	return note(pinPath, madeNote+strconv.Itoa(missing))
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
