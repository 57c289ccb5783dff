// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// agentOptions in the environment make an agent of the test binary, so that it can be killed.
const agentOptions = "NEARLB_TEST_AGENT_OPTIONS"

func TestMain(m *testing.M) {
	if text := os.Getenv(agentOptions); text != "" {
		if len(os.Args) == 2 && os.Args[1] == loaderArgument {
			os.Exit(loaderMain(os.Stdin))
		}
		if len(os.Args) == 3 && os.Args[1] == slowLoaderArgument {
			os.Exit(loaderMain(heldBack(os.Stdin, os.Args[2])))
		}
		os.Exit(agentMain(text))
	}
	os.Exit(m.Run())
}

func agentMain(text string) int {
	var o Options
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err = Run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// machine is a network namespace that plays a node, with a directory of manifests.
type machine struct {
	*testing.T
	options Options
	own     *os.File
}

// inMachine runs the test on a thread of its own in a fresh network namespace.
func inMachine(t *testing.T, test func(m *machine)) {
	t.Helper()
	o := DefaultOptions()
	o.NodeName = "n1"
	o.PinPath, o.Cgroup = privileged.Bpffs(t), privileged.Cgroup(t)
	o.LockDir, o.Manifests = t.TempDir(), t.TempDir()
	o.Sizes = bpf.Sizes{Frontends: 256, Records: 256, Slots: 1 << 16, Backends: 256, FlowSets: 64, Affinity: 4096, Fragments: 4096,
		SourceRanges: 64, Services: 64, Names: 256}
	o.HealthAddress, o.MetricsAddress = "127.0.0.1:0", "127.0.0.1:0"
	m := &machine{T: t, options: o}
	privileged.Namespace(t, func(own *os.File) {
		m.own = own
		m.up("lo")
		test(m)
	})
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *machine) up(device string) {
	m.Helper()
	l, err := netlink.LinkByName(device)
	m.must(err)
	m.must(netlink.LinkSetUp(l))
}

// pod adds a pod's device; the pod's namespace lives as long as its device's file.
func (m *machine) pod(name string) {
	m.Helper()
	m.must(unix.Unshare(unix.CLONE_NEWNET))
	pod, err := os.Open("/proc/thread-self/ns/net")
	m.must(err)
	m.Cleanup(func() { pod.Close() })
	m.must(netns.Set(netns.NsHandle(m.own.Fd())))
	m.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(pod.Fd())}))
	m.up(name)
}

// manifest writes a file in one step.
func (m *machine) manifest(name, text string) {
	m.Helper()
	path := filepath.Join(m.options.Manifests, name)
	m.must(os.WriteFile(path+".new", []byte(text), 0o644))
	m.must(os.Rename(path+".new", path))
}

// process is an agent of its own process.
type process struct {
	m    *machine
	cmd  *exec.Cmd
	log  *bytes.Buffer
	wait func() error
	over chan struct{} // closed when it has ended
}

// patience is only there for a test to end that would hang: machines may be slow, and stand still for a while.
const patience = 5 * time.Minute

// agent starts an agent in the machine.
func (m *machine) agent(change func(*Options)) *process {
	m.Helper()
	o := m.options
	if change != nil {
		change(&o)
	}
	text, err := json.Marshal(o)
	m.must(err)
	p := &process{m: m, cmd: exec.Command("/proc/self/exe"), log: &bytes.Buffer{}, over: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), agentOptions+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	m.must(p.cmd.Start())
	p.wait = sync.OnceValue(p.cmd.Wait)
	go func() { p.wait(); close(p.over) }()
	m.Cleanup(func() {
		p.cmd.Process.Kill()
		p.wait()
		if m.Failed() {
			m.Logf("agent %d said:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// end sends a signal and waits. An agent that ended by itself did so with an error.
func (p *process) end(s syscall.Signal) error {
	p.m.Helper()
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		p.m.must(err)
	}
	return p.wait()
}

// await waits until this agent's status is as wanted.
func (p *process) await(what string, wanted func(Status) bool) Status {
	m := p.m
	m.Helper()
	watcher, err := fsnotify.NewWatcher()
	m.must(err)
	defer watcher.Close()
	m.must(watcher.Add(m.options.LockDir))
	limit := time.After(patience)
	for {
		s, err := ReadStatus(m.options.LockDir, m.options.PinPath)
		if err == nil && s.PID == p.cmd.Process.Pid && wanted(s) {
			return s
		}
		select {
		case <-watcher.Events:
		case <-watcher.Errors: // some events were lost
		case <-p.over:
			m.Fatalf("%s: the agent ended: %v; the status is %+v, %v", what, p.wait(), s, err)
		case <-limit:
			m.Fatalf("%s: the status is %+v, %v", what, s, err)
		}
	}
}

// serving waits until the agent has nothing more to do: Services published and looked at, as many programs on devices, and those
// of sockets on the cgroup.
func (p *process) serving(programs int) Status {
	p.m.Helper()
	return p.await("serving", func(s Status) bool {
		return s.State == Serving && s.Dirty == 0 && onDevices(s) == programs && len(onSockets(s.Devices)) == socketPrograms && !s.LastAudit.IsZero()
	})
}

// onDevices counts the programs of devices, those of sockets left out.
func onDevices(s Status) (count int) {
	for _, row := range s.Devices {
		if row.Ifindex != 0 {
			count++
		}
	}
	return count
}

func (m *machine) dump() string {
	m.Helper()
	tables, err := bpf.OpenMaps(m.options.PinPath, true)
	m.must(err)
	defer tables.Close()
	reader, err := maps.NewReader(tables)
	m.must(err)
	defer reader.Close()
	var out strings.Builder
	m.must(reader.Dump(&out))
	return out.String()
}

func (m *machine) devices() []attach.DeviceRow {
	m.Helper()
	rows, err := attach.List(bpf.LinkDirectory(m.options.PinPath))
	m.must(err)
	return rows
}

// loads are the pinned sets of programs.
func (m *machine) loads() []string {
	m.Helper()
	dirs, err := filepath.Glob(filepath.Join(m.options.PinPath, "*", "programs", "*"))
	m.must(err)
	return dirs
}

// pins are all files of tables, programs and links.
func (m *machine) pins() (files []string) {
	m.Helper()
	err := filepath.WalkDir(m.options.PinPath, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.Contains(path, "/v") {
			files = append(files, path)
		}
		if errors.Is(err, fs.ErrNotExist) { // it is being made, or renamed
			return nil
		}
		return err
	})
	m.must(err)
	return files
}

// pinned waits until these files are there again, and no others. A status that says the same tells nothing of files, so they are looked for.
func (p *process) pinned(when string, files []string) {
	p.m.Helper()
	for limit := time.Now().Add(patience); !slices.Equal(files, p.m.pins()); time.Sleep(20 * time.Millisecond) {
		if closed(p.over) || time.Now().After(limit) {
			p.m.Fatalf("%s: pinned are\n%s\nwant\n%s", when, strings.Join(p.m.pins(), "\n"), strings.Join(files, "\n"))
		}
	}
}

// unpin removes what is pinned at the paths of a pattern.
func (m *machine) unpin(pattern string) []string {
	m.Helper()
	paths, err := filepath.Glob(filepath.Join(m.options.PinPath, pattern))
	m.must(err)
	for _, path := range paths {
		m.must(os.RemoveAll(path))
	}
	return paths
}
