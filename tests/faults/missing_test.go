// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// without is an agent's command line in a world that lacks something: a shell prepares it, in mounts of its own.
type without struct {
	name    string
	prepare string   // shell commands
	limits  []string // of setpriv
	flags   []string
	want    string // what it says, in one line, as it ends with 1
}

// What nearlb cannot do without is told in one line that names it, and the agent ends.
func TestWhatIsMissingIsToldInOneLine(t *testing.T) {
	c := newCluster(t)
	n := c.node()
	c.publish("web.yaml", web(1))
	empty := filepath.Join(c.Dir, "empty")
	c.must(os.Mkdir(empty, 0o755))
	for _, w := range []without{
		{name: "CAP_BPF", limits: []string{"--bounding-set=-sys_admin,-bpf"}, want: "this process lacks CAP_BPF)"},
		{name: "CAP_NET_ADMIN", limits: []string{"--bounding-set=-net_admin"}, want: "this process lacks CAP_NET_ADMIN)"},
		{name: "CAP_PERFMON", limits: []string{"--bounding-set=-sys_admin,-perfmon"}, want: "this process lacks CAP_PERFMON)"},
		{name: "all capabilities", limits: []string{"--bounding-set=-all"}, want: "this process lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)"},
		{name: "another user than root", limits: []string{"--reuid=65534", "--regid=65534", "--clear-groups"}, want: "permission denied"},
		{name: "kernel BTF", prepare: "mount --bind " + empty + " /sys/kernel/btf", want: "CONFIG_DEBUG_INFO_BTF"},
		{name: "a bpffs at a place of its own", prepare: "umount " + c.BPFDir(), want: "it is not on a bpffs (mount one: mount -t bpf bpf " + c.BPFDir() + ")"},
		{name: "a bpffs that it may not mount", prepare: "umount -l /sys/fs/bpf 2>/dev/null; true", limits: []string{"--bounding-set=-sys_admin"},
			flags: []string{"--pin-path=/sys/fs/bpf/nearlb-test"}, want: "mount a bpffs on /sys/fs/bpf: operation not permitted"},
		{name: "file descriptors", prepare: "ulimit -n 24", want: "load the BPF programs: too many open files: it takes "},
		{name: "file descriptors for all programs", prepare: "ulimit -n 80", want: "the limit is 80 (raise it: ulimit -n)"},
		{name: "a directory for the lock", flags: []string{"--lock-dir=/proc/nowhere"}, want: "make lock directory: mkdir /proc/nowhere"},
		{name: "the manifests' kubeconfig", flags: []string{"--manifests=", "--kubeconfig=/nowhere"}, want: "--kubeconfig: open /nowhere: no such file or directory"},
	} {
		t.Run(w.name, func(t *testing.T) {
			p := c.startWithout(n, w)
			defer os.Remove(p.Log)
			select {
			case <-p.Ended():
			case <-time.After(patience):
				t.Fatal("it goes on")
			}
			text, err := os.ReadFile(p.Log)
			c.must(err)
			said := string(text)
			if code := p.ExitCode(); code == 0 || code > 2 || strings.Count(said, "\n") != 1 || len(said) > 600 ||
				!strings.HasPrefix(said, "nearlb: ") || !strings.Contains(said, w.want) {
				t.Errorf("it ends with %d and says:\n%s\nwant one line with %q", code, said, w.want)
			}
		})
	}
}

func (c *cluster) startWithout(n *lab.Node, w without) *lab.Process {
	c.t.Helper()
	self, err := os.Executable()
	c.must(err)
	command := append([]string{self, "agent", "--node-name", n.Name, "--manifests", c.Manifests.Dir, "--pin-path", n.PinPath(),
		"--lock-dir", c.LockDir(), "--cgroup", n.Cgroup()}, w.flags...)
	if len(w.limits) > 0 {
		command = append(append([]string{"setpriv"}, w.limits...), command...)
	}
	prepare := w.prepare
	if prepare == "" {
		prepare = "true"
	}
	argv := append([]string{"unshare", "--mount", "sh", "-c", prepare + ` && exec "$@"`, "sh"}, command...)
	p, err := n.Start("without", argv, runAsCLI+"=1")
	c.must(err)
	return p
}

// What nearlb can do with less of, it does, and says what is not served.
func TestWithLessTheAgentServesAndSaysWhatItLacks(t *testing.T) {
	for _, row := range []struct {
		without
		trouble string // in the status; "": none
		pin     string // instead of the node's
	}{
		{without{name: "CAP_SYS_ADMIN", limits: []string{"--bounding-set=-sys_admin"}}, "", ""},
		{without{name: "a cgroup2 mount", prepare: "umount -R -l /sys/fs/cgroup", flags: []string{"--cgroup="}}, "serve the node's own clients: ", ""},
		{without{name: "a bpffs where it is by custom", prepare: "umount -l /sys/fs/bpf 2>/dev/null; true", flags: []string{"--pin-path=/sys/fs/bpf/nearlb-test"}}, "",
			"/sys/fs/bpf/nearlb-test"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, n, client, backend := oneNode(t)
			p := c.startWithout(n, row.without)
			c.checkServes(p, n, client, backend, row.trouble, row.pin)
		})
	}
	t.Run("hooks of sockets", func(t *testing.T) {
		c, n, client, backend := oneNode(t)
		a := c.start(n, mortal{Lacking: true})
		c.checkServes(a.Process, n, client, backend, "serve the node's own clients: the kernel lacks what it takes, so that only pods and clients off the node are: no such hook", "")
		for _, six := range []bool{false, true} {
			_, err := n.Ask(context.Background(), "tcp", web(1).address(six), lab.DialOptions{Patience: time.Second})
			if err == nil {
				t.Error("the node's own client is served")
			}
		}
		text, _ := c.run(n, "status")
		if !strings.Contains(text, "trouble   serve the node's own clients: ") {
			t.Errorf("nearlb status does not say so:\n%s", text)
		}
	})
}

func oneNode(t testing.TB) (*cluster, *lab.Node, *lab.Pod, *lab.Pod) {
	t.Helper()
	c := newCluster(t)
	n := c.node()
	client, backend := c.pod(n, "client"), c.servers(n, "a")[0]
	c.publish("web.yaml", web(1, backend))
	return c, n, client, backend
}

// checkServes asks from a pod, and compares what troubles the agent.
func (c *cluster) checkServes(p *lab.Process, n *lab.Node, client, backend *lab.Pod, trouble, pin string) {
	c.t.Helper()
	if pin == "" {
		pin = n.PinPath()
	}
	var s agent.Status
	var err error
	if lab.Await(patience, func() bool {
		s, err = agent.ReadStatus(c.LockDir(), pin)
		return err == nil && s.PID == p.PID() && s.State == agent.Serving && (len(s.Trouble) > 0) == (trouble != "")
	}) != nil {
		text, _ := os.ReadFile(p.Log)
		c.t.Fatalf("the status is %+v, %v; it said:\n%s", s, err, text)
	}
	for _, said := range s.Trouble {
		if !strings.Contains(said, trouble) || strings.Contains(said, "\n") {
			c.t.Errorf("trouble %q, want %q", said, trouble)
		}
	}
	c.awaitAnswers(client, func(six bool) netip.AddrPort { return web(1).address(six) }, backend)
}

// An agent that ends before its first publication, again and again, leaves the programs of one start in the kernel, not of all.
func TestACrashLoopBeforeTheFirstPublicationPilesUpNothing(t *testing.T) {
	c, n, client, backend := oneNode(t)
	doom := filepath.Join(c.Dir, "doom")
	for range 3 {
		c.must(os.WriteFile(doom, []byte("1"), 0o600))
		a := c.mortal(n, doom, true)
		c.await("it dies", func() bool {
			select {
			case <-a.Ended():
				return true
			default:
				return false
			}
		})
		if loads := c.loads(n); len(loads) != 1 {
			t.Errorf("programs of %v are pinned, want one load", loads)
		}
	}
	last := c.mortal(n, doom, true)
	last.serving()
	c.awaitAnswers(client, web(1).address, backend)
	c.await("one load", func() bool { return len(c.loads(n)) == 1 })
}

// loads are the directories of pinned programs.
func (c *cluster) loads(n *lab.Node) (all []string) {
	c.t.Helper()
	c.must(c.Mounted(func() (err error) {
		all, err = filepath.Glob(filepath.Join(n.PinPath(), "v*", "programs", "*"))
		return err
	}))
	return all
}
