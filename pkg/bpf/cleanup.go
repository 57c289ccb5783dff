// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Cleanup takes everything that is pinned under pinPath out of the kernel, links first, so that no program runs on tables
// that go away. It lists what it removed, deepest first; nothing there is no error. Filters attached by clsact are not
// pinned: pkg/attach removes those.
func Cleanup(pinPath string) ([]string, error) {
	var removed []string
	versions, err := os.ReadDir(pinPath)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	for _, v := range versions {
		for _, part := range []string{"links", "programs", "maps", ""} {
			gone, err := removeTree(filepath.Join(pinPath, v.Name(), part))
			removed = append(removed, gone...)
			if err != nil {
				return removed, err
			}
		}
	}
	if err := os.Remove(pinPath); err != nil {
		return removed, fmt.Errorf("remove pins: %w", err)
	}
	return append(removed, pinPath), nil
}

// removeTree removes a directory and what is in it, and lists it.
func removeTree(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var removed []string
	for _, e := range entries {
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
