// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// loaderArgument makes a loader of the test binary, for an agent that is the test binary, too.
const loaderArgument = "loader"

func loaderMain() int {
	if err := ServeLoader(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// unprivileged agents give away what only the start wants, as those of the command line do.
func unprivileged(o *Options) {
	unbounded(o)
	o.DropPrivileges, o.Loader = true, []string{"/proc/self/exe", loaderArgument}
	o.NetDevices = []string{"tun*"}
}

// loader is the number of the process that loads for an agent.
func (p *process) loader() int {
	m := p.m
	m.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
	m.must(err)
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread ended
		}
		for child := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(child)
			m.must(err)
			return pid
		}
	}
	m.Fatal("the agent has no loader")
	return 0
}

func (m *machine) layer3Loads() int {
	m.Helper()
	return len(slices.DeleteFunc(m.loads(), func(dir string) bool { return !strings.HasSuffix(dir, "_layer3") }))
}

// mayLoad tells whether an agent kept what it may load programs with.
func (s Status) mayLoad() bool { return slices.Contains(s.May, "CAP_PERFMON") }

func TestAnAgentThatWaitsForItsFirstListHasGivenItsPrivilegesAway(t *testing.T) {
	inMachine(t, func(m *machine) {
		kubeconfig := filepath.Join(m.TempDir(), "kubeconfig")
		m.must(os.WriteFile(kubeconfig, []byte(unreachable), 0o600))
		agent := m.agent(func(o *Options) { unprivileged(o); o.Manifests, o.Kubeconfig = "", kubeconfig })
		if s := agent.await("its status", func(s Status) bool { return s.State == Starting && len(s.May) > 0 }); s.mayLoad() {
			m.Errorf("it keeps %v", s.May)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}

// The tables of the first list, those that take their place, and the programs of a tunnel that comes: the loader loads them all.
func TestALoaderLoadsTheFirstTablesLargerOnesAndProgramsOfATunnel(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		agent := m.agent(unprivileged)
		if s := agent.serving(2); s.mayLoad() || m.layer3Loads() != 0 {
			m.Errorf("it keeps %v, and has %d sets of programs that no device wants", s.May, m.layer3Loads())
		}
		m.must(netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun1"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, NonPersist: false}))
		m.up("tun1")
		agent.serving(4)
		m.must(syscall.Kill(agent.loader(), syscall.SIGTERM)) // as systemd sends it to all of a unit: the loader ends with the agent
		m.manifest("many.yaml", manyServices(2100))
		agent.await("larger tables", func(s Status) bool {
			return s.State == Serving && s.Services == 2101 && s.Dirty == 0 && s.Growth.Times == 1 && len(m.generations()) == 1 && onDevices(s) == 4
		})
		if loads := m.layer3Loads(); loads != 1 {
			m.Errorf("%d sets of programs for one tunnel", loads)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}

func TestAnAgentWhoseLoaderEndedSaysSoAndServes(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.manifest("web.yaml", web)
		agent := m.agent(unprivileged)
		agent.serving(0)
		sizes := m.sizes()
		m.must(syscall.Kill(agent.loader(), syscall.SIGKILL))
		agent.await("what follows", func(s Status) bool {
			return slices.ContainsFunc(s.Trouble, func(text string) bool {
				return strings.Contains(text, "the process that may load programs ended (signal: killed)") && strings.Contains(text, "until the agent is started again")
			})
		})
		m.manifest("many.yaml", manyServices(2100))
		s := agent.await("tables that are too small", func(s Status) bool { return s.Growth.Error != "" && len(s.Failing) > 0 })
		if s.Growth.Times != 0 || s.Services < 2000 || m.sizes() != sizes {
			m.Errorf("tables of %+v, grown %d times, have %d Services", m.sizes(), s.Growth.Times, s.Services)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}
