// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/cli"
	"github.com/nearlb/nearlb/pkg/command"
)

// reading are the commands that say something and end, and leave the process that they run in as it was: this process runs them for scripts, as
// starting another takes most of what they take. All others are processes, and so are these where a script has a shell, a namespace or
// standard input for them.
var reading = []string{"plan", "trace", "why", "explain", "dns", "services", "backends", "flows", "affinity", "zones", "verdicts", "drops", "changes",
	"status", "version", "--version", "help", "__complete"}

// others tells whether an argument has one of those read standard input, stay, or write.
func others(arg string) bool {
	return slices.Contains([]string{"-", "-f", "--follow", "serve", "readmit"}, arg)
}

// inside tells whether this process runs a command.
func inside(args []string) bool {
	return len(args) > 1 && args[0] == "nearlb" && slices.Contains(reading, args[1]) && !slices.ContainsFunc(args, others)
}

// perform runs a command of a script and gives its exit status.
func perform(ts *testscript.TestScript, args []string) int {
	if inside(args) {
		return asProcess(ts, func() int { return nearlb(args[1:], strings.NewReader(""), ts.Stdout(), ts.Stderr()) })
	}
	err := ts.Exec(args[0], args[1:]...)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return ended.ExitCode()
	}
	ts.Check(err)
	return 0
}

var one sync.Mutex // the working directory and the environment are the process's

// asProcess calls a function with what a process of the script would have: its working directory, and its variables that set flags.
func asProcess(ts *testscript.TestScript, call func() int) int {
	one.Lock()
	defer one.Unlock()
	before, err := os.Getwd()
	ts.Check(errors.Join(err, os.Chdir(ts.MkAbs("."))))
	defer func() { ts.Check(os.Chdir(before)) }()
	for _, name := range variables() {
		had := os.Getenv(name)
		ts.Check(os.Setenv(name, ts.Getenv(name)))
		defer func() { ts.Check(os.Setenv(name, had)) }()
	}
	return call()
}

// variables are those that set flags: an empty one counts as unset.
var variables = sync.OnceValue(func() (all []string) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			all = append(all, command.Variable(f.Name))
		})
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(cli.Root())
	slices.Sort(all)
	return slices.Compact(all)
})

// commandOf makes one of a script of a function that gives an exit status.
func commandOf(call func(ts *testscript.TestScript, args []string) int) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		switch status := call(ts, args); {
		case status == 0 && neg:
			ts.Fatalf("unexpected command success")
		case status != 0 && !neg:
			ts.Fatalf("unexpected command failure: exit status %d", status)
		}
	}
}

// withProgram runs the tests with nearlb in $PATH: this program, which does what its name says.
type withProgram struct{ *testing.M }

const program = "nearlb"

func (m withProgram) Run() int {
	dir, err := os.MkdirTemp("", "nearlb-script-")
	if err == nil {
		defer os.RemoveAll(dir)
		var self string
		if self, err = os.Executable(); err == nil {
			err = errors.Join(os.Symlink(self, filepath.Join(dir, program)), os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH")))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "put nearlb into the path:", err)
		return 1
	}
	return m.M.Run()
}

// nearlb is the command line.
func nearlb(args []string, in io.Reader, out, errs io.Writer) int {
	if len(args) > 0 && args[0] == "plan" {
		return asked(args, in, out, errs)
	}
	return runCommand(args, in, out, errs)
}
