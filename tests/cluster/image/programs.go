// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// library finds the files in what ldd prints.
var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// Programs are those of this machine as files of an image, with the libraries that they need, by their path there: /usr/bin/NAME.
func Programs(names ...string) (map[string]string, error) {
	files := map[string]string{}
	for _, name := range names {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("make e2e and make kube-handover install what is missing: %w", err)
		}
		if program, err = filepath.EvalSymlinks(program); err != nil {
			return nil, err
		}
		files["/usr/bin/"+name] = program
		out, err := exec.Command("ldd", program).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
			return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
		}
		for _, match := range library.FindAllStringSubmatch(string(out), -1) {
			files[match[1]] = match[1]
		}
	}
	return files, nil
}
