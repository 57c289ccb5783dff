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
	for path, duplicate := range missing {
		if err := pinDuplicate(path, duplicate); err != nil {
			return made, explain("pin "+strings.TrimPrefix(path, o.pinPath+"/"), err)
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

// files are how the tables and programs that are pinned are opened once more, by their paths.
func (o *Objects) files() map[string]func() (pinner, error) {
	all := map[string]func() (pinner, error){}
	table := func(dir, name string, m *ebpf.Map) {
		all[filepath.Join(dir, name)] = func() (pinner, error) { return m.Clone() }
	}
	program := func(dir, name string, p *ebpf.Program) {
		all[filepath.Join(dir, name)] = func() (pinner, error) { return p.Clone() }
	}
	load := filepath.Join(o.generation.programs(), o.loaded)
	for name, m := range o.NearlbMaps.ByName() {
		if m.Type() == ebpf.ProgramArray {
			table(load, name, m)
		} else {
			table(o.maps(), name, m)
		}
	}
	for name, p := range o.NearlbPrograms.ByName() {
		program(load, name, p)
	}
	o.layer3Mu.Lock()
	defer o.layer3Mu.Unlock()
	if o.layer3 == nil {
		return all
	}
	for name, m := range o.layer3.Maps {
		if m.Type() == ebpf.ProgramArray {
			table(o.layer3Dir(), name, m)
		}
	}
	for name, p := range o.layer3.Programs {
		program(o.layer3Dir(), name, p)
	}
	return all
}

// withoutFile are those of files whose path leads nowhere.
func (o *Objects) withoutFile() map[string]func() (pinner, error) {
	all := o.files()
	for path := range all {
		if exists(path) {
			delete(all, path)
		}
	}
	return all
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
func pinDuplicate(path string, duplicate func() (pinner, error)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	object, err := duplicate()
	if err != nil {
		return err
	}
	return errors.Join(object.Pin(path), object.Close())
}
