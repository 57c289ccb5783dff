// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What an agent made beside its pins is noted under the pin path, for Cleanup: by directories, as a bpffs has no files.
const (
	mountedNote = "mounted" // the bpffs itself
	madeNote    = "made_"   // and how many directories, the pin path and those above it
)

func note(pinPath, name string) error {
	if err := os.Mkdir(filepath.Join(pinPath, name), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("note what was made: %w", err)
	}
	return nil
}

// missingLevels is how many directories MkdirAll would make.
func missingLevels(path string) int {
	for levels := 0; ; levels++ {
		if exists(path) {
			return levels
		}
		path = filepath.Dir(path)
	}
}

// madeLevels reads the note; an agent of an earlier version left none.
func madeLevels(pinPath string) (levels int, noted bool) {
	entries, err := os.ReadDir(pinPath)
	if err != nil {
		return 0, false
	}
	for _, e := range entries {
		if number, found := strings.CutPrefix(e.Name(), madeNote); found {
			if levels, err := strconv.Atoi(number); err == nil {
				return levels, true
			}
		}
	}
	return 0, false
}

// isSomebodys tells of an entry of a bpffs that was not there when it was mounted: some kernels put two files of their own into a new one
// (CONFIG_BPF_PRELOAD).
func isSomebodys(e os.DirEntry) bool { return e.Name() != "maps.debug" && e.Name() != "progs.debug" }

// removeMade takes away what the notes say, and the notes. Directories where others have something stay.
func removeMade(pinPath string) (removed []string, err error) {
	levels, noted := madeLevels(pinPath)
	notes := []string{mountedNote}
	if noted {
		notes = append(notes, madeNote+strconv.Itoa(levels))
	} else {
		levels = 1
	}
	mounted := os.Remove(filepath.Join(pinPath, notes[0])) == nil
	for _, name := range notes[1:] {
		if err := os.Remove(filepath.Join(pinPath, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove note: %w", err)
		}
	}
	for dir := pinPath; levels > 0; dir, levels = filepath.Dir(dir), levels-1 {
		if os.Remove(dir) != nil {
			break
		}
		removed = append(removed, dir)
	}
	if !mounted {
		return removed, nil
	}
	if rest, err := os.ReadDir(defaultBpffs); err != nil || slices.ContainsFunc(rest, isSomebodys) {
		return removed, err
	}
	if err := unix.Unmount(defaultBpffs, 0); err != nil {
		return removed, fmt.Errorf("unmount %s: %w", defaultBpffs, err)
	}
	return append(removed, "bpffs on "+defaultBpffs), nil
}
