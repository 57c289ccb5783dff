// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netns"
)

// AbortEverywhere is Abort in every network namespace that a process of /proc is in.
func AbortEverywhere(chosen Chosen) (int, error) {
	paths, err := namespaces()
	if err != nil {
		return 0, err
	}
	ended := 0
	var errs []error
	for name, path := range paths {
		n, err := abortIn(path, chosen)
		ended += n
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // its process ended
			errs = append(errs, fmt.Errorf("look into %s: %w", name, err))
		}
	}
	return ended, errors.Join(errs...)
}

func abortIn(path string, chosen Chosen) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return Abort(netns.NsHandle(file.Fd()), chosen)
}

// namespaces are the network namespaces of all processes, each with one file that leads there.
func namespaces() (map[string]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	found := map[string]string{}
	for _, file := range files {
		if name, err := os.Readlink(file); err == nil { // else its process ended
			found[name] = file
		}
	}
	return found, nil
}
