// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nearlb/nearlb/pkg/cli"
	"github.com/nearlb/nearlb/tests/daemonset"
)

// runAsCLI has this test binary be the nearlb program.
const runAsCLI = "NEARLB_TEST_RUN_CLI"

// programs are where built agents are, for all tests of the package.
var programs string

func TestMain(m *testing.M) {
	if os.Getenv(runAsCLI) != "" {
		os.Exit(cli.Main(os.Args[1:]))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nearlb-upgrade-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	return m.Run()
}

// layout is one that agents here know.
type layout struct {
	name    string // as of its directory of pins
	command func() (string, error)
	image   func() (string, error) // the program that needs nothing beside it
}

var (
	ours         = layout{"v6", func() (string, error) { return "/proc/self/exe", nil }, daemonset.Program}
	other        = layout{"v7", otherProgram, otherProgram}
	otherProgram = sync.OnceValues(buildOther)
)

// buildOther compiles nearlb with the other layout's object in the place of its own.
func buildOther() (string, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, suffix := range []string{"go", "o"} {
		name := "nearlb_bpfel." + suffix
		replace[filepath.Join(root, "pkg", "bpf", name)] = filepath.Join(root, "tests", "upgrade", "testdata", "layout7", name)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay, program := filepath.Join(programs, "overlay.json"), filepath.Join(programs, "nearlb")
	if err := os.WriteFile(overlay, text, 0o644); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", program, "./cmd/nearlb")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nearlb of the other layout: %w: %s", err, out)
	}
	return program, nil
}
