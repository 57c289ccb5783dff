// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// suite is one line of the summary: a command, and what it may take.
type suite struct {
	name  string
	about string
	after []string // suites that must have ended well before
	dir   string   // of its module; "": nearlb's own
	env   []string
	ahead bool // it runs at a niceness of -5, where that is allowed: it computes from its beginning to its end, so others' turns make the run longer
	// warm and fresh are what it takes where everything was compiled before, and what it takes more with empty caches: seconds of
	// processor time of all its processes, as measured: those that are warm by CI, on two processors that did nothing else. The budget is a fifth more.
	warm, fresh int
	command     []string
}

const (
	cgo        = "CGO_ENABLED=1" // the race detector is C; everything else is compiled as the program is
	privileged = "NEARLB_REQUIRE_PRIVILEGED=1"
	roomy      = "GOGC=300"     // of tests with much garbage and little that they keep: collecting it was a fifth of their time
	deadline   = "-timeout=40m" // of one package's tests: against what hangs
)

// nothing is a template that prints nothing of a package; "" would stand for its path.
const nothing = "{{with .Error}}{{.}}{{end}}"

// compile is a command that compiles packages with all that they need, and links nothing.
func compile(arguments ...string) []string {
	return append([]string{"go", "list", "-export", "-deps", "-p=" + compilers, "-f", nothing}, arguments...)
}

// As many compilers run at once as there are processors, and each has one thread and a collector that may use memory: threads that wait for each
// other, and a collector that starts early, take a fifth of a compiler's time.
var (
	compilers = strconv.Itoa(runtime.GOMAXPROCS(0))
	alone     = []string{"GOMAXPROCS=1", "GOGC=200"}
)

// modules is a command that compiles the tests of the modules beside nearlb's own.
var modules = []string{"sh", "-ec", "for module in oracle dnsoracle manifests monitoring cluster; do cd tests/$module; " +
	"go list -export -deps -p=" + compilers + " -test -f '" + nothing + "' ./...; cd ../..; done"}

// test is a run of packages' tests one after the other: suites run side by side already. vet has seen them as part of lint.
func test(arguments ...string) []string {
	return append([]string{"go", "test", "-vet=off", "-count=1", "-p=1", "-ldflags=-s -w", deadline}, arguments...)
}

// concurrent are the packages with goroutines and memory that other processes write: the race detector watches their tests. Of
// pkg/maps and pkg/bpf it watches torn alone, as their other tests have one goroutine each and take up to eight times as long under it.
var concurrent = []string{"./pkg/attach", "./pkg/capability", "./pkg/demo", "./pkg/dns", "./pkg/health", "./pkg/kubectl", "./pkg/lab",
	"./pkg/metrics", "./pkg/watch"}

const agent = "./pkg/agent" // the same, and it waits for most of its time

// processes are those tests of the agent whose agents are processes that start, or start again, over real tables, which takes three times as
// long under the race detector. Here it watches what these do in others (starts over tables that are there, growth, and loaders); it watches
// these in `make fuzz`.
const processes = "TestARestart|TestTablesAreMadeAsLarge|TestAnAgentWorksWithTheTables|TestALoaderLoads|" +
	"TestASecondAgent|TestAColdStart|TestAfterAFirstPublication|TestAnAgentThatComesBack|TestAnAgentThatMayNotLook"

var torn = []string{"./pkg/maps", "./pkg/bpf", "-run=TestNoReaderSeesATornView|TestABarrier"}

// These stand for packages in commands: those of nearlb's own module that no other suite names; and those of other modules that
// it imports.
const (
	others   = "others"
	imported = "imported"
)

// suites is the gate. It would end with cluster, which waits for most of its time and begins after the compilation of Kubernetes: both come
// first, so that others compute while it waits. After them come those that take long by the clock, and at the end the short ones that compute.
var suites = []suite{
	{name: "compile-libraries", about: "what nearlb and its tests import", env: alone, fresh: 126, command: compile(imported)},
	{name: "compile", about: "nearlb, its tests and tools", after: []string{"compile-libraries"}, env: alone, fresh: 55, command: compile("-test", "./...", "tool")},
	{name: "compile-modules", about: "with Kubernetes, etcd, Helm, Prometheus and CoreDNS", after: []string{"compile"}, env: alone, fresh: 590, command: modules},
	{name: "cluster", about: "agents on a real control plane", after: []string{"compile-modules"}, dir: "tests/cluster", env: []string{privileged}, warm: 139,
		command: test("./...")},
	{name: "compile-race", about: "with the race detector", after: []string{"compile"}, env: append(slices.Clone(alone), cgo), fresh: 160,
		command: compile(append([]string{"-race", "-test", torn[0], torn[1], agent}, concurrent...)...)},
	{name: "race-agent", about: "the agent's goroutines, under the race detector", after: []string{"compile-race"}, env: []string{cgo, privileged}, warm: 55,
		command: test("-race", agent, "-skip="+processes)},
	{name: "hosts", about: "real agents and sockets in network namespaces", after: []string{"compile"}, env: []string{privileged}, warm: 137,
		command: test("-parallel=4", "./tests/hosts")}, // each test waits for most of its time
	{name: "kernels", about: "packets and sockets on Linux 6.1 and 6.12 under qemu", after: []string{"compile"}, ahead: true, warm: 160, fresh: 40,
		command: []string{"go", "run", "./tests/kernels", "-quick"}},
	{name: "packets", about: "packets through the real programs", after: []string{"compile"}, env: []string{privileged, roomy, "RAPID_CHECKS=25"}, warm: 135,
		command: test("./tests/packet", "./tests/sockets", "./tests/differential")},
	{name: "race", about: "other packages with goroutines, under the race detector", after: []string{"compile-race"}, env: []string{cgo, privileged}, warm: 35,
		command: append(test("-race"), concurrent...)},
	{name: "upgrade", about: "layouts in each other's place, under traffic", after: []string{"compile"}, env: []string{privileged}, warm: 115,
		command: test("./tests/upgrade")},
	{name: "faults", about: "killed agents, full tables, missing features", after: []string{"compile"}, env: []string{privileged}, warm: 66,
		command: test("./tests/faults")},
	{name: "units", about: "everything that is not concurrent", after: []string{"compile"}, env: []string{privileged, roomy}, warm: 138,
		command: test(others)},
	{name: "fresh", about: "what go generate writes is what is committed", warm: 30, fresh: 40, command: []string{"bash", "tests/fresh.sh"}},
	{name: "kube", about: "installed on a whole cluster with kubelets, updated and removed, under traffic", after: []string{"compile-modules"}, dir: "tests/cluster",
		env: []string{privileged, "NEARLB_KUBE=1"}, warm: 19, command: test("-v", "./kube")},
	{name: "compile-arm64", about: "the program for arm64", after: []string{"compile"}, env: append(slices.Clone(alone), "GOARCH=arm64"), fresh: 65,
		command: compile("./cmd/nearlb")},
	{name: "types", about: "kubectl nearlb for Windows and macOS, as far as types tell", after: []string{"compile"}, warm: 9,
		command: []string{"go", "run", "./tests/types", "-for", "windows/amd64,darwin/arm64", "./cmd/kubectl-nearlb"}},
	{name: "race-maps", about: "tables that are read while they are written, and the barrier, under the race detector", after: []string{"compile-race"}, env: []string{cgo, privileged}, warm: 8,
		command: append(test("-race"), torn...)},
	{name: "privileges", about: "agents that start again, and what they give away, with threads as the program has them: without cgo, unlike under the race detector",
		after: []string{"compile"}, env: []string{privileged}, warm: 22, command: test("./pkg/capability", agent, "-run=Loader|Privileges|WhatIsNotKept|"+processes)},
	{name: "monitoring", about: "dashboard and alerts over what real agents tell", after: []string{"compile-modules"}, dir: "tests/monitoring",
		env: []string{privileged}, warm: 11, command: test("./...")},
	{name: "daemonset", about: "the agent in its container", after: []string{"compile"}, env: []string{privileged}, warm: 10,
		command: test("./tests/daemonset")},
	{name: "oracle", about: "decisions beside kube-proxy's own code, 6,000 worlds", after: []string{"compile-modules"}, dir: "tests/oracle", warm: 9,
		command: test("./...", "-rapid.checks=3000")},
	{name: "dnsoracle", about: "answers to names beside CoreDNS's", after: []string{"compile-modules"}, dir: "tests/dnsoracle", warm: 6,
		command: test("./...", "-rapid.checks=40")},
	{name: "manifests", about: "every way to install, and the image's program for each architecture", after: []string{"compile-modules", "compile-arm64"},
		dir: "tests/manifests", warm: 14, command: test("./...")},
	{name: "lint", about: "gofmt, clang-format, vet, staticcheck, shellcheck", after: []string{"compile-modules"}, warm: 19, fresh: 70,
		command: []string{"make", "-s", "lint"}},
}

// beside are not part of `make test`: they say nothing about behaviour, or take a download of two kernels.
var beside = []string{"fresh", "lint", "kernels"}

// complete puts packages in the place of others.
func complete(all []suite) ([]suite, error) {
	left, err := withTests("./...")
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		named := slices.DeleteFunc(slices.Clone(s.command), func(arg string) bool { return !strings.HasPrefix(arg, "./") })
		if s.dir != "" || s.command[1] != "test" || len(named) == 0 || s.partial() {
			continue
		}
		packages, err := withTests(named...)
		if err != nil {
			return nil, err
		}
		left = slices.DeleteFunc(left, func(pkg string) bool { return slices.Contains(packages, pkg) })
	}
	libraries, err := imports()
	if err != nil {
		return nil, err
	}
	all = slices.Clone(all)
	for i, s := range all {
		for name, packages := range map[string][]string{others: left, imported: libraries} {
			if at := slices.Index(s.command, name); at >= 0 {
				all[i].command = slices.Replace(slices.Clone(s.command), at, at+1, packages...)
			}
		}
	}
	return all, nil
}

// partial tells whether a suite runs some tests of packages whose others are another suite's.
func (s suite) partial() bool {
	return slices.ContainsFunc(s.command, func(arg string) bool { return strings.HasPrefix(arg, "-run=") })
}

// imports gives the packages that nearlb's own module imports from others and from the standard library.
func imports() ([]string, error) {
	all, err := list("{{range .Imports}}{{.}} {{end}}{{range .TestImports}}{{.}} {{end}}{{range .XTestImports}}{{.}} {{end}}", "./...")
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(path string) bool {
		return path == "C" || strings.HasPrefix(path, "github.com/nearlb/nearlb/")
	}), err
}

// withTests gives those packages that match and have tests.
func withTests(patterns ...string) ([]string, error) {
	return list("{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", patterns...)
}

// list gives the words that a template makes of packages.
func list(template string, patterns ...string) ([]string, error) {
	cmd := exec.Command("go", append([]string{"list", "-f", template}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list %v: %w", patterns, err)
	}
	return strings.Fields(string(out)), nil
}
