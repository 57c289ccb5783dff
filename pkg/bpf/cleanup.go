// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Cleanup takes what is pinned under pinPath, by this nearlb or one of another layout, out of the kernel: links first, so that
// no program runs on tables that go away. It lists what it removed, deepest first; nothing there is no error. What is not
// nearlb's stays, and so does any directory that is not on a bpffs. Filters attached by clsact are not pinned: pkg/attach
// removes those.
func Cleanup(pinPath string) ([]string, error) {
	entries, err := os.ReadDir(pinPath)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	if on, err := onBpffs(pinPath); err != nil || !on {
		return nil, errors.Join(fmt.Errorf("clean up %s: it is not on a bpffs, so nothing is pinned there", pinPath), err)
	}
	var removed []string
	for _, e := range entries {
		if !e.IsDir() || !generationName.MatchString(e.Name()) {
			continue
		}
		g := generation{path: filepath.Join(pinPath, e.Name())}
		detachAll(g.links())
		gone, err := removeGeneration(g.path)
		removed = append(removed, gone...)
		if err != nil {
			return removed, err
		}
	}
	gone, err := removeTree(QdiscDirectory(pinPath))
	removed = append(removed, gone...)
	if err != nil {
		return removed, err
	}
	gone, err = removeMade(pinPath)
	return append(removed, gone...), err
}

// removeGeneration takes the links first, so that no program runs on tables that go away.
func removeGeneration(dir string) ([]string, error) {
	var removed []string
	g := generation{path: dir}
	for _, part := range []string{g.links(), g.programs(), g.maps(), dir} {
		gone, err := removeTree(part)
		removed = append(removed, gone...)
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// detachAll has the kernel let go of the links of a directory at once, which it does by itself some time after their files are
// gone. Last names go first: of the links of a device that is ingress, so that requests stop being translated before replies do.
func detachAll(dir string) {
	entries, _ := os.ReadDir(dir) // removeTree says what is wrong with it
	for _, e := range slices.Backward(entries) {
		l, err := link.LoadPinnedLink(filepath.Join(dir, e.Name()), nil)
		if err != nil {
			continue // something else
		}
		_ = l.Detach() // who cannot now ends with its file
		_ = l.Close()
	}
}

// removeTree removes a directory and what is in it, and lists it, last names first.
func removeTree(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, unix.ENOTDIR) { // somebody put a pin in its place
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove pin: %w", err)
		}
		return []string{path}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var removed []string
	for _, e := range slices.Backward(entries) {
		child := filepath.Join(path, e.Name())
		if e.IsDir() {
			gone, err := removeTree(child)
			removed = append(removed, gone...)
			if err != nil {
				return removed, err
			}
			continue
		}
		if err := os.Remove(child); err != nil {
			return removed, fmt.Errorf("remove pin: %w", err)
		}
		removed = append(removed, child)
	}
	if err := os.Remove(path); err != nil {
		return removed, fmt.Errorf("remove pins: %w", err)
	}
	return append(removed, path), nil
}
