// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
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
	o.PinPath = privileged.Bpffs(t)
	o.LockDir, o.Manifests = t.TempDir(), t.TempDir()
	o.Sizes = bpf.Sizes{Frontends: 256, Records: 256, Slots: 1 << 16, Backends: 256, FlowSets: 64, Affinity: 64, Fragments: 64,
		SourceRanges: 64, Services: 64, Names: 256}
	o.HealthAddress, o.MetricsAddress = "127.0.0.1:0", "127.0.0.1:0"
	m := &machine{T: t, options: o}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the namespace ends with the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make network namespace: %v", err)
			return
		}
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		defer own.Close()
		m.own = own
		m.up("lo")
		test(m)
	}()
	<-done
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
}

// agent starts an agent in the machine.
func (m *machine) agent(change func(*Options)) *process {
	m.Helper()
	o := m.options
	if change != nil {
		change(&o)
	}
	text, err := json.Marshal(o)
	m.must(err)
	p := &process{m: m, cmd: exec.Command("/proc/self/exe"), log: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), agentOptions+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	m.must(p.cmd.Start())
	p.wait = sync.OnceValue(p.cmd.Wait)
	m.Cleanup(func() {
		p.cmd.Process.Kill()
		p.wait()
		if m.Failed() {
			m.Logf("agent %d said:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// end sends a signal and waits.
func (p *process) end(s syscall.Signal) error {
	p.m.Helper()
	p.m.must(p.cmd.Process.Signal(s))
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
	limit := time.After(20 * time.Second)
	for {
		s, err := ReadStatus(m.options.LockDir, m.options.PinPath)
		if err == nil && s.PID == p.cmd.Process.Pid && wanted(s) {
			return s
		}
		select {
		case <-watcher.Events:
		case <-limit:
			m.Fatalf("%s: the status is %+v, %v", what, s, err)
		}
	}
}

func (p *process) serving(programs int) Status {
	p.m.Helper()
	return p.await("serving", func(s Status) bool {
		return s.State == Serving && s.Dirty == 0 && len(s.Devices) == programs && !s.LastAudit.IsZero()
	})
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

const web = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.1], nodeName: n1}
- {addresses: [10.244.2.1], nodeName: n2}
`

func TestARestartMovesNothing(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		for _, method := range []attach.Method{attach.TCX, attach.Clsact} {
			t.Run(name+" "+string(method), func(t *testing.T) {
				inMachine(t, func(m *machine) { m.restart(end, method) })
			})
		}
	}
}

func (m *machine) restart(signal syscall.Signal, method attach.Method) {
	m.pod("pod1")
	m.manifest("web.yaml", web)
	forced := func(o *Options) { o.AttachMethod = method }
	first := m.agent(forced)
	first.serving(2)
	dump, devices := m.dump(), m.devices()
	if !strings.Contains(dump, "10.96.0.10") || !strings.Contains(dump, "10.244.1.1") {
		m.Errorf("the service is not in the tables:\n%s", dump)
	}
	if err := first.end(signal); (err == nil) != (signal == syscall.SIGTERM) {
		m.Errorf("the agent ended with %v", err)
	}
	if s, err := ReadStatus(m.options.LockDir, m.options.PinPath); err != nil || s.Running {
		m.Errorf("after the end: running %v, %v", s.Running, err)
	}
	if diff := cmp.Diff(devices, m.devices()); diff != "" {
		m.Errorf("the end changed what is attached (-before +after):\n%s", diff)
	}
	second := m.agent(forced)
	second.serving(2)
	if diff := cmp.Diff(dump, m.dump()); diff != "" {
		m.Errorf("the restart changed the tables (-before +after):\n%s", diff)
	}
	for i, row := range m.devices() {
		if row.Link != devices[i].Link || row.ID == devices[i].ID {
			m.Errorf("%s: was %+v, is %+v; want the new program under the old link", row.Program, devices[i], row)
		}
	}
	if loads := m.loads(); len(loads) != 1 {
		m.Errorf("programs of %d loads are pinned, want the last one's", len(loads))
	}
	m.must(second.end(syscall.SIGTERM))
}

func TestASecondAgentIsRefused(t *testing.T) {
	inMachine(t, func(m *machine) {
		first := m.agent(nil)
		first.serving(0)
		second := m.agent(nil)
		var exit *exec.ExitError
		if err := second.wait(); !errors.As(err, &exit) {
			m.Errorf("the second agent ended with %v", err)
		}
		if want := fmt.Sprint(first.cmd.Process.Pid); !strings.Contains(second.log.String(), want) {
			m.Errorf("the second agent said %q, want the process %s named", second.log, want)
		}
		m.must(first.end(syscall.SIGTERM))
	})
}

// An API server that cannot be reached: what was published goes on serving, and new pods are served too.
func TestAnOutageOfTheAPIServerLeavesTrafficAndServesNewPods(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		first := m.agent(nil)
		first.serving(2)
		dump := m.dump()
		first.end(syscall.SIGKILL)
		kubeconfig := filepath.Join(m.TempDir(), "kubeconfig")
		m.must(os.WriteFile(kubeconfig, []byte(unreachable), 0o600))
		second := m.agent(func(o *Options) { o.Manifests, o.Kubeconfig = "", kubeconfig })
		second.await("old devices", func(s Status) bool { return s.State == Starting && len(s.Devices) == 2 })
		m.pod("pod2")
		second.await("a new pod", func(s Status) bool { return s.State == Starting && len(s.Devices) == 4 })
		if diff := cmp.Diff(dump, m.dump()); diff != "" {
			m.Errorf("the tables changed (-before +after):\n%s", diff)
		}
		m.must(second.end(syscall.SIGTERM))
	})
}

// 127.0.0.1 of the machine's namespace: nobody listens.
const unreachable = `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
`

// C19
func TestAnAuditRepairsWhatSomebodyDeleted(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.manifest("web.yaml", web)
		agent := m.agent(func(o *Options) { o.AuditEvery = 200 * time.Millisecond })
		agent.serving(0)
		dump := m.dump()
		tables, err := bpf.OpenMaps(m.options.PinPath, false)
		m.must(err)
		defer tables.Close()
		var key bpf.NearlbFrontendKey
		m.must(tables.Frontends.NextKey(nil, &key))
		m.must(tables.Frontends.Delete(&key))
		agent.await("drift", func(s Status) bool { return s.Drift > 0 })
		if diff := cmp.Diff(dump, m.dump()); diff != "" {
			m.Errorf("the audit left a difference (-before +after):\n%s", diff)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}

func TestServersAnswerAndAnAddressThatIsTakenIsNoReasonToStop(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.manifest("web.yaml", web)
		agent := m.agent(func(o *Options) { o.MetricsAddress = "192.0.2.77:1" }) // nobody's
		s := agent.await("serving and trouble", func(s Status) bool {
			return s.State == Serving && s.Services == 1 && s.Listen["health"] != "" && len(s.Trouble) > 0
		})
		if !strings.Contains(s.Trouble[0], "192.0.2.77:1") {
			m.Errorf("trouble is %q", s.Trouble)
		}
		if got := get(m, "http://"+s.Listen["health"]+"/livez"); !strings.Contains(got, `"healthy":true`) {
			m.Errorf("/livez says %s", got)
		}
		m.must(agent.end(syscall.SIGTERM))
		agent = m.agent(nil)
		s = agent.await("metrics", func(s Status) bool { return s.State == Serving && s.Services == 1 && s.Listen["metrics"] != "" })
		got := get(m, "http://"+s.Listen["metrics"]+"/metrics")
		for _, line := range []string{"nearlb_services 1", `nearlb_backends{state="active"} 2`, `nearlb_table_entries{table="frontends"}`,
			"nearlb_network_programming_duration_seconds_bucket", "nearlb_audits_total"} {
			if !strings.Contains(got, line) {
				m.Errorf("no %s in the metrics:\n%s", line, got)
			}
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}
