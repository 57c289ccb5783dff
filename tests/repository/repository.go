// SPDX-License-Identifier: Apache-2.0

// Package repository finds the repository from within a test: the tests are compiled with -trimpath, as the program is, so that
// a source's name as compiled is not where it lies.
package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Root is the directory of nearlb's own module, above the working directory. In a test that is the package's directory, in
// whichever module of the repository.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.Contains("\n"+string(text), "\nmodule github.com/nearlb/nearlb\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no go.mod of nearlb in or above %s", start)
		}
	}
}
