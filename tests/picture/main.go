// SPDX-License-Identifier: Apache-2.0

// Command picture runs `nearlb demo` and draws what it printed as SVG, in light and dark: `make picture` writes docs/demo-light.svg and docs/demo-dark.svg.
// What is of one run on one machine alone (process numbers, times, rates) is left out, so that the picture does not go stale with the machine.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	program := flag.String("nearlb", "bin/nearlb", "the program whose demo is run")
	out := flag.String("out", "docs", "directory of the pictures")
	flag.Parse()
	if err := run(*program, *out); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(program, out string) error {
	var printed bytes.Buffer
	cmd := exec.Command(program, "demo")
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&printed, os.Stdout), os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s demo: %w", program, err)
	}
	lines := lasting(printed.String())
	if len(lines) == 0 {
		return fmt.Errorf("%s demo printed nothing to draw", program)
	}
	for name, colours := range themes {
		file := filepath.Join(out, "demo-"+name+".svg")
		if err := os.WriteFile(file, []byte(svg(lines, colours)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
