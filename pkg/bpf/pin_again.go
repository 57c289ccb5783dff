// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// PinAgain pins again what is in use and has lost its file: somebody removed it, or unmounted the bpffs. Without files nobody reads the tables, and
// they end with this process. It tells how many files it made, and leaves alone tables that are not in force, or that take others' place.
func (o *Objects) PinAgain() (made int, err error) {
	if o.loaded == "" || o.unfinished || len(o.former) > 0 {
		return 0, nil
	}
	missing := o.withoutFile()
	described := exists(o.layoutPin())
	if len(missing) == 0 && described {
		return 0, nil
	}
	if err := prepareDirectory(o.pinPath); err != nil {
		return 0, err
	}
	if !described {
		if err := o.describeAgain(); err != nil {
			return 0, err
		}
		made++
	}
	for _, p := range missing {
		if err := p.pinDuplicate(); err != nil {
			return made, explain("pin "+strings.TrimPrefix(filepath.Join(p.dir, p.name), o.pinPath+"/"), err)
		}
		made++
	}
	return made, nil
}

// pinner is a table or a program.
type pinner interface {
	Pin(path string) error
	Close() error
}

// pinnedFile is the file of a table or a program, and how that is opened once more.
type pinnedFile struct {
	dir, name string
	open      func() (pinner, error)
}

// files are the tables and programs that are pinned, those of a directory side by side.
func (o *Objects) files() (all []pinnedFile) {
	all = make([]pinnedFile, 0, 128)
	tables := func(dir string, of map[string]*ebpf.Map, calls bool) {
		for name, m := range of {
			if (m.Type() == ebpf.ProgramArray) == calls {
				all = append(all, pinnedFile{dir, name, func() (pinner, error) { return m.Clone() }})
			}
		}
	}
	programs := func(dir string, of map[string]*ebpf.Program) {
		for name, p := range of {
			all = append(all, pinnedFile{dir, name, func() (pinner, error) { return p.Clone() }})
		}
	}
	load, maps := filepath.Join(o.generation.programs(), o.loaded), o.NearlbMaps.ByName()
	tables(o.maps(), maps, false)
	tables(load, maps, true)
	programs(load, o.NearlbPrograms.ByName())
	o.layer3Mu.Lock()
	defer o.layer3Mu.Unlock()
	if o.layer3 != nil {
		tables(o.layer3Dir(), o.layer3.Maps, true)
		programs(o.layer3Dir(), o.layer3.Programs)
	}
	return all
}

// withoutFile are those of files that their directory does not have. A directory is read at once: mostly nothing is missing, and it is asked often.
func (o *Objects) withoutFile() (missing []pinnedFile) {
	dir, has := "", map[string]bool{}
	for _, p := range o.files() {
		if p.dir != dir {
			dir = p.dir
			clear(has)
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil // nobody can tell
			}
			for _, e := range entries {
				has[e.Name()] = true
			}
		}
		if !has[p.name] {
			missing = append(missing, p)
		}
	}
	return missing
}

// exists tells whether there is a file, or nobody can tell.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func (o *Objects) describeAgain() error {
	spec, err := tablesSpec()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.generation.path, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	return o.describe(spec)
}

// pinDuplicate pins by another descriptor, as the object's own remembers the file that is gone.
func (p *pinnedFile) pinDuplicate() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	object, err := p.open()
	if err != nil {
		return err
	}
	return errors.Join(object.Pin(filepath.Join(p.dir, p.name)), object.Close())
}
