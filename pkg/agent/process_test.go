// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

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
			if method == attach.TCX && !privileged.TCX(t) {
				continue
			}
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
	if diff := cmp.Diff(devices, m.devices()); diff != "" || len(m.loads()) != 1 {
		m.Errorf("of the same programs %d loads are pinned; the restart changed what is attached (-before +after):\n%s", len(m.loads()), diff)
	}
	_ = second.end(signal)
	third := m.agent(func(o *Options) { forced(o); o.Reload = true })
	third.serving(2)
	if diff := cmp.Diff(dump, m.dump()); diff != "" {
		m.Errorf("a restart with other programs changed the tables (-before +after):\n%s", diff)
	}
	for i, row := range m.devices() {
		if row.Link != devices[i].Link || row.ID == devices[i].ID {
			m.Errorf("%s: was %+v, is %+v; want the new program under the old link", row.Program, devices[i], row)
		}
	}
	third.await("the end of the first one's programs", func(Status) bool { return len(m.loads()) == 1 })
	m.must(third.end(syscall.SIGTERM))
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
		second.await("old devices", func(s Status) bool { return s.State == Starting && onDevices(s) == 2 })
		m.pod("pod2")
		second.await("a new pod", func(s Status) bool { return s.State == Starting && onDevices(s) == 4 })
		if diff := cmp.Diff(dump, m.dump()); diff != "" {
			m.Errorf("the tables changed (-before +after):\n%s", diff)
		}
		m.must(second.end(syscall.SIGTERM))
	})
}

// Nothing was ever published: programs without tables would refuse or drop, so there are none.
func TestAColdStartAttachesAfterTheFirstPublication(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		kubeconfig := filepath.Join(m.TempDir(), "kubeconfig")
		m.must(os.WriteFile(kubeconfig, []byte(unreachable), 0o600))
		agent := m.agent(func(o *Options) { o.Manifests, o.Kubeconfig = "", kubeconfig })
		s := agent.await("health", func(s Status) bool { return s.Listen["health"] != "" })
		if rows := m.devices(); s.State != Starting || len(rows) != 0 {
			m.Errorf("the agent is %s and has %v attached", s.State, rows)
		}
		if got := get(m, "http://"+s.Listen["health"]+"/healthz"); !strings.Contains(got, "200 OK") {
			m.Errorf("an agent that starts is ill: %s", got)
		}
		if got := get(m, "http://"+s.Listen["health"]+"/readyz"); !strings.Contains(got, "503 ") {
			m.Errorf("an agent that serves nothing yet is ready: %s", got)
		}
		m.must(agent.end(syscall.SIGTERM))
		m.manifest("web.yaml", web)
		agent = m.agent(nil)
		agent.serving(2)
		s = agent.await("health", func(s Status) bool { return s.Listen["health"] != "" })
		if got := get(m, "http://"+s.Listen["health"]+"/readyz"); !strings.Contains(got, "200 OK") {
			m.Errorf("an agent that serves is not ready: %s", got)
		}
		m.must(agent.end(syscall.SIGTERM))
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

// Tables, programs and links whose files somebody removed are pinned again, so that they outlive the agent as before.
func TestPinsThatSomebodyRemovedAreMadeAgain(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		first := m.agent(nil)
		first.serving(2)
		dump, devices, files := m.dump(), m.devices(), m.pins()
		for _, some := range []string{"v*/[lm]*", "v*/programs/*/from_pod", "*"} { // of links alone the next full look is soon enough
			m.unpin(some)
			first.pinned("again after "+some, files)
		}
		generation := m.unpin("v*")[0]
		m.must(os.Symlink("nowhere", generation)) // in its place, as nothing can be pinned where no bpffs is mounted any more
		first.await("trouble", cannotPin)
		m.must(os.Remove(generation))
		first.pinned("once that is possible", files)
		first.await("no trouble", func(s Status) bool { return !cannotPin(s) })
		first.end(syscall.SIGKILL)
		if diff := cmp.Diff(devices, m.devices()); diff != "" {
			m.Errorf("with the agent went programs (-before +after):\n%s", diff)
		}
		second := m.agent(nil)
		second.serving(2)
		if diff := cmp.Diff(dump, m.dump()); diff != "" {
			m.Errorf("the tables changed (-before +after):\n%s", diff)
		}
		m.must(second.end(syscall.SIGTERM))
	})
}

func cannotPin(s Status) bool {
	return strings.Contains(strings.Join(s.Trouble, "\n"), "keep tables and programs pinned")
}

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
			taken := slices.ContainsFunc(s.Trouble, func(text string) bool { return strings.Contains(text, "192.0.2.77:1") })
			return s.State == Serving && s.Services == 1 && s.Listen["health"] != "" && taken
		})
		if s.Problems == nil || s.Devices == nil || s.Failing == nil {
			m.Errorf("the status has null where a list is empty: %+v", s)
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
