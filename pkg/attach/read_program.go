// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// readProgram fills in what the kernel says of the program.
func readProgram(id ebpf.ProgramID, linkDir string, row *DeviceRow) error {
	program, err := openProgram(id, linkDir)
	if err != nil || program == nil {
		return err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("read program %d: %w", id, err)
	}
	row.Tag = info.Tag
	row.describe(info.Name)
	return nil
}

// openProgram gives nil when the program was replaced while we looked. To open by number wants CAP_SYS_ADMIN, which a container
// has not: an agent's programs are pinned beside its links, and found there.
func openProgram(id ebpf.ProgramID, linkDir string) (*ebpf.Program, error) {
	program, err := ebpf.NewProgramFromID(id)
	switch {
	case errors.Is(err, unix.EPERM):
		return pinnedProgram(id, linkDir), nil
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	return program, nil
}

func pinnedProgram(id ebpf.ProgramID, linkDir string) *ebpf.Program {
	pinned, _ := filepath.Glob(filepath.Join(filepath.Dir(linkDir), "programs", "*", "*")) // the pattern is good
	for _, path := range pinned {
		program, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			continue // a table, or removed meanwhile
		}
		if info, err := program.Info(); err == nil {
			if found, ok := info.ID(); ok && found == id {
				return program
			}
		}
		program.Close()
	}
	return nil
}
