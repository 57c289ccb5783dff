// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// programReader reads programs by number for rows, each once, however many devices have it.
type programReader struct {
	linkDir string
	known   map[ebpf.ProgramID]*ebpf.ProgramInfo // nil: it was replaced while we looked
	pinned  bool                                 // those pinned beside linkDir are known
}

func newProgramReader(linkDir string) *programReader {
	return &programReader{linkDir: linkDir, known: map[ebpf.ProgramID]*ebpf.ProgramInfo{}}
}

// describe fills in what the kernel says of the program.
func (r *programReader) describe(id ebpf.ProgramID, row *DeviceRow) error {
	info, err := r.info(id)
	if err != nil || info == nil {
		return err
	}
	row.Tag = info.Tag
	row.describe(info.Name)
	return nil
}

// info gives nil when the program was replaced while we looked. To open by number wants CAP_SYS_ADMIN, which a container
// has not: an agent's programs are pinned beside its links, and found there.
func (r *programReader) info(id ebpf.ProgramID) (*ebpf.ProgramInfo, error) {
	if info, known := r.known[id]; known {
		return info, nil
	}
	info, err := infoOf(id)
	switch {
	case errors.Is(err, unix.EPERM):
		r.readPinned()
		return r.known[id], nil
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read program %d: %w", id, err)
	}
	r.known[id] = info
	return info, nil
}

// infoOf is what the kernel says of a program.
func infoOf(id ebpf.ProgramID) (*ebpf.ProgramInfo, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	return program.Info()
}

func (r *programReader) readPinned() {
	if r.pinned {
		return
	}
	r.pinned = true
	eachPinned(r.linkDir, func(id ebpf.ProgramID, info *ebpf.ProgramInfo, program *ebpf.Program) bool {
		r.known[id] = info
		program.Close()
		return true
	})
}

// pinnedProgram opens a program that is pinned beside the links; nil: it is not there.
func pinnedProgram(id ebpf.ProgramID, linkDir string) (found *ebpf.Program) {
	eachPinned(linkDir, func(other ebpf.ProgramID, _ *ebpf.ProgramInfo, program *ebpf.Program) bool {
		if other == id {
			found = program
			return false
		}
		program.Close()
		return true
	})
	return found
}

// eachPinned opens the programs that are pinned beside the links, one after the other, for yield to close, until that gives false.
func eachPinned(linkDir string, yield func(ebpf.ProgramID, *ebpf.ProgramInfo, *ebpf.Program) bool) {
	pinned, _ := filepath.Glob(filepath.Join(filepath.Dir(linkDir), "programs", "*", "*")) // the pattern is good
	for _, path := range pinned {
		program, err := ebpf.LoadPinnedProgram(path, nil)
		if err != nil {
			continue // a table, or removed meanwhile
		}
		info, err := program.Info()
		if err != nil {
			program.Close()
			continue
		}
		if id, ok := info.ID(); ok && !yield(id, info, program) {
			return
		} else if !ok {
			program.Close()
		}
	}
}

// ProgramName is a program's name as the kernel has it, cut at 15 bytes; "" where it may not be asked, or there is none.
func ProgramName(id uint32) string {
	info, err := infoOf(ebpf.ProgramID(id))
	if err != nil {
		return ""
	}
	return info.Name
}
