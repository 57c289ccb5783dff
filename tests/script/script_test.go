// SPDX-License-Identifier: Apache-2.0

// Package script runs the scripts of tests/testdata: objects in, the plan, the tables' canonical dump and traces out.
//
// A script is a txtar archive (rogpeppe/go-internal/testscript). Beside testscript's own commands it has:
//
//	nearlb ARGS           the command line: in this process where it only reads (reading), and a process of its own in a shell or after isolated or onnode
//	tables -f FILE ...    publish what the node decides and print the tables' dump: flags of nearlb plan; with -pin PATH
//	                      into pinned tables, as an agent does
//	counted PIN BACKEND CONNECTIONS BYTES  the pinned tables' counters of a backend (address:port) say so, half of the bytes each way
//	exits STATUS COMMAND  the command must end with this exit status
//	eventually COMMAND    runs the command again and again until it ends with 0
//	isolated COMMAND      the command in a network namespace of its own
//	onnode ADDRESS COMMAND  the same, and the namespace has the address
//
// Tables are published into fake ones always, into the kernel's as well when privileged, and both must print the same dump. Scripts named
// trace_ or live_ want the kernel alone: BPF programs, or tables pinned under $PINS. A plan is asked of the plugin for kubectl, too, which must
// say the same. NEARLB_UPDATE=1 writes what came out into the scripts; read the difference before you commit it.
package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/cli"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/tests/privileged"
)

const disagree = 3 // an exit status that neither has

// asked gives what nearlb says to a plan, and sees that the plugin for kubectl says the same.
func asked(args []string, in io.Reader, out, errs io.Writer) int {
	objects, err := io.ReadAll(in)
	if err != nil {
		fmt.Fprintln(errs, "read objects:", err)
		return disagree
	}
	var said, saidAside, pluginsOut, pluginsErrs bytes.Buffer
	status := runCommand(args, bytes.NewReader(objects), &said, &saidAside)
	plugins := plan.Main(context.Background(), args[1:], bytes.NewReader(objects), &pluginsOut, &pluginsErrs)
	if status != plugins || said.String() != pluginsOut.String() || saidAside.String() != pluginsErrs.String() {
		fmt.Fprintf(errs, "plan: nearlb ends with %d and says\n%s%skubectl nearlb ends with %d and says\n%s%s", status, &said, &saidAside, plugins, &pluginsOut, &pluginsErrs)
		return disagree
	}
	_, wrote := said.WriteTo(out)
	_, wroteAside := saidAside.WriteTo(errs)
	if wrote != nil || wroteAside != nil {
		return disagree
	}
	return status
}

func runCommand(args []string, in io.Reader, out, errs io.Writer) int {
	return command.Run(context.Background(), cli.Root(), args, in, out, errs)
}

// kernelTables has the command tables publish into the kernel's as well.
const kernelTables = "NEARLB_KERNEL_TABLES"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == program {
		os.Exit(nearlb(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testscript.Main(withProgram{m}, map[string]func(){
		"isolated": func() { fail("isolated", isolated(os.Args[1:])) },
		"onnode":   func() { fail("onnode", onNode(os.Args[1], os.Args[2:])) },
	})
}

func TestScriptsOfPlansAndTables(t *testing.T) {
	run(t, scripts(t, false), func(env *testscript.Env) {
		if privileged.Here() {
			env.Setenv(kernelTables, "1")
		}
	})
}

func TestScriptsOfTheKernel(t *testing.T) {
	privileged.Require(t)
	run(t, scripts(t, true), func(env *testscript.Env) { env.Setenv("PINS", privileged.Bpffs(t)) })
}

// scripts are those of tests/testdata that want the kernel alone, or all others.
func scripts(t *testing.T, kernel bool) []string {
	t.Helper()
	dir, err := filepath.Abs("../testdata")
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(all) == 0 {
		t.Fatalf("list scripts: %d found, %v", len(all), err)
	}
	return slices.DeleteFunc(all, func(path string) bool {
		kind, _, _ := strings.Cut(filepath.Base(path), "_")
		return (kind == "trace" || kind == "live") != kernel
	})
}

func run(t *testing.T, files []string, prepare func(*testscript.Env)) {
	t.Helper()
	objects := fixtures(t) // before a command has another working directory
	testscript.Run(t, testscript.Params{
		Files:         files,
		UpdateScripts: os.Getenv("NEARLB_UPDATE") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "eventually": eventually,
			program: commandOf(func(ts *testscript.TestScript, args []string) int {
				return perform(ts, append([]string{program}, args...))
			}),
			"tables":  commandOf(tables),
			"counted": commandOf(counted),
		},
		Setup: func(env *testscript.Env) error {
			prepare(env)
			env.Setenv("FIXTURES", objects)
			return nil
		},
	})
}

func fixtures(t *testing.T) string {
	dir, err := filepath.Abs("../testdata/objects")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// exits runs a command and compares its exit status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARGUMENTS]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := perform(ts, args[1:])
	if got != want {
		ts.Fatalf("%s ended with %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

// eventually waits for a command to succeed; what it printed last can be looked at.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: eventually COMMAND [ARGUMENTS]")
	}
	deadline := time.Now().Add(patience)
	for {
		began := time.Now()
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s: still %v after %v", strings.Join(args, " "), err, patience)
		}
		time.Sleep(max(pause, time.Since(began)))
	}
}

const (
	patience = 2 * time.Minute       // how long a condition is waited for; then something is wrong
	pause    = 20 * time.Millisecond // between two tries at least, and as long as a try took: who is waited for wants the processor as well
)

// isolated goes on as the command in a new network namespace.
func isolated(command []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	return becomes(command)
}

// onNode is isolated with an address.
func onNode(address string, command []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	at, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(loopback), netlink.AddrAdd(loopback, at)); err != nil {
		return err
	}
	return becomes(command)
}

func becomes(command []string) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, command, os.Environ())
}

func fail(name string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(1)
}
