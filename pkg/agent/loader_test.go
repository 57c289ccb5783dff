// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/lab"
)

// loaderArgument makes a loader of the test binary, for an agent that is the test binary, too.
const loaderArgument = "loader"

func loaderMain(requests io.Reader) int {
	if err := ServeLoader(requests, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// slowLoaderArgument makes a loader that makes tables, and does nothing else until there is a file, whose name follows.
const slowLoaderArgument = "slow-loader"

// heldBack passes the first request on, and the others once the file is there. It ends with the parent.
func heldBack(requests io.Reader, file string) io.Reader {
	parent := os.Getppid()
	passed, pass := io.Pipe()
	go func() {
		defer pass.Close()
		each := json.NewDecoder(requests)
		for first := true; ; first = false {
			var request json.RawMessage
			if each.Decode(&request) != nil {
				return
			}
			for _, err := os.Stat(file); !first && err != nil; _, err = os.Stat(file) {
				if os.Getppid() != parent {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			if _, err := pass.Write(request); err != nil {
				return
			}
		}
	}()
	return passed
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

// slowlyLoading is an agent that has published everything, and whose programs are loaded once the file is there.
func (m *machine) slowlyLoading(file string, services int) *process {
	m.Helper()
	agent := m.agent(func(o *Options) {
		unprivileged(o)
		o.Loader = []string{"/proc/self/exe", slowLoaderArgument, file}
	})
	agent.await("a publication without programs", func(s Status) bool { return s.State == Starting && s.Services == services && s.Dirty == 0 })
	if rows := m.devices(); len(rows) > 0 {
		m.Errorf("attached before programs are loaded: %v", rows)
	}
	return agent
}

func TestNewTablesArePublishedToWhileProgramsAreLoaded(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		file := filepath.Join(m.TempDir(), "load")
		agent := m.slowlyLoading(file, 1)
		m.must(os.WriteFile(file, nil, 0o600))
		agent.serving(2)
		m.must(agent.end(syscall.SIGTERM))
	})
}

func TestAnAgentThatIsToEndDoesNotWaitForItsPrograms(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.manifest("web.yaml", web)
		m.must(m.slowlyLoading(filepath.Join(m.TempDir(), "never"), 1).end(syscall.SIGTERM))
	})
}

// Tables with Services to which no program is attached are those of a first publication that did not come to its end.
func TestAfterAFirstPublicationThatWasKilledProgramsAreAttachedToACompleteOne(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		killed := m.slowlyLoading(filepath.Join(m.TempDir(), "never"), 1)
		_ = killed.end(syscall.SIGKILL)
		agent := m.agent(unprivileged)
		agent.serving(2)
		m.must(agent.end(syscall.SIGTERM))
		files, err := filepath.Glob(filepath.Join(m.options.LockDir, "*.changes.jsonl"))
		if err != nil || len(files) != 1 {
			m.Fatalf("journals: %v (%v)", files, err)
		}
		text, err := os.ReadFile(files[0])
		m.must(err)
		if told := string(text); strings.Contains(told, "agent-took-over") || !strings.Contains(told, "agent-started") {
			m.Errorf("the second agent took the first one for one that served:\n%s", told)
		}
	})
}

// An agent that is ended, or killed, while programs are loaded for it may be followed by another one at once, which looks at what is pinned: the
// loader that it leaves pins nothing any more.
func TestALoaderWhoseAgentEndsPinsNothingMore(t *testing.T) {
	inMachine(t, func(m *machine) {
		loader := exec.Command("/proc/self/exe", loaderArgument)
		loader.Env, loader.Stderr = append(os.Environ(), agentOptions+"={}"), os.Stderr
		in, err := loader.StdinPipe()
		m.must(err)
		out, err := loader.StdoutPipe()
		m.must(err)
		m.must(loader.Start())
		m.must(json.NewEncoder(in).Encode(m.options.request(plan{sizes: m.options.Sizes})))
		m.must(lab.Await(patience, func() bool { return hasTables(loader.Process.Pid) }))
		m.must(in.Close())
		m.must(out.Close())
		_ = loader.Wait() // however it ended
		if pins := m.pins(); len(pins) > 0 {
			m.Errorf("it went on, and pinned %d files", len(pins))
		}
	})
}

// hasTables tells whether a process has made tables.
func hasTables(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(files, func(file string) bool {
		to, _ := os.Readlink(file)
		return to == "anon_inode:bpf-map"
	})
}
