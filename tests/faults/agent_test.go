// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// An agent that hangs: connections old and new go on, /healthz does not answer any more, `nearlb status` calls it stale, and when it goes on
// it catches up with what changed meanwhile.
func TestAnAgentThatHangsIsCalledStaleAndTrafficGoesOn(t *testing.T) {
	t.Parallel() // it waits for most of the time
	c, n, client, backend := oneNode(t)
	other := c.servers(n, "b")[0]
	a := c.agent(n, "--health-address=127.0.0.1:0")
	a.serving()
	s := a.await("health", func(s agent.Status) bool { return s.Listen["health"] != "" })
	if got := a.get("http://" + s.Listen["health"] + "/healthz"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("/healthz says %s", got)
	}
	load := c.traffic()
	load.hold(client, web(1).address)
	load.ask(client, web(1).address, backend, other)
	load.more(100)

	c.must(syscall.Kill(a.PID(), syscall.SIGSTOP))
	c.await("all of the agent's threads stop", a.stopped) // a thread goes on until it notices
	c.publish("web.yaml", web(1, other))
	conn, err := n.Dial(context.Background(), "tcp", netip.MustParseAddrPort(s.Listen["health"]), lab.DialOptions{})
	c.must(err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, "GET /healthz HTTP/1.0\r\n\r\n")
	c.must(err)
	var text string
	var code int
	c.await("nearlb status calls the agent stale", func() bool {
		text, code = c.run(n, "status")
		return strings.Contains(text, "stale: last seen")
	})
	if code != 1 || !strings.Contains(text, fmt.Sprintf("process %d hangs", a.PID())) {
		t.Errorf("nearlb status ends with %d:\n%s", code, text)
	}
	c.must(conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("/healthz answers with %d bytes", n)
	}
	load.more(100)

	c.must(syscall.Kill(a.PID(), syscall.SIGCONT))
	c.awaitAnswers(client, web(1).address, other)
	c.await("nearlb status is content", func() bool { _, code := c.run(n, "status"); return code == 0 })
	load.more(100)
	load.end(t)
}

// stopped tells whether no thread of the agent can run.
func (a *running) stopped() bool {
	a.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", a.PID()))
	a.must(err)
	return len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
		text, err := os.ReadFile(path)
		return err != nil || !strings.Contains(string(text), "\nState:\tT ")
	})
}

// The directory of the status file is full, before the agent starts and after: it publishes and serves, says so in its log, and writes its
// status when there is space.
func TestAFullDiskKeepsNobodyFromBeingServed(t *testing.T) {
	c, n, client, backend := oneNode(t)
	other := c.servers(n, "b")[0]
	small := filepath.Join(c.Dir, "small")
	c.must(os.Mkdir(small, 0o755))
	ballast := filepath.Join(small, "ballast")
	c.must(c.Mounted(func() error {
		if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=32k"); err != nil {
			return err
		}
		err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600)
		if err == nil {
			t.Error("a megabyte fits")
		}
		return nil
	}))
	a := c.agent(n, "--lock-dir="+small)
	c.awaitAnswers(client, web(1).address, backend)
	c.publish("web.yaml", web(1, other))
	c.awaitAnswers(client, web(1).address, other)
	c.await("the log tells", func() bool {
		text, err := os.ReadFile(a.Log)
		c.must(err)
		return strings.Contains(string(text), "no space left on device")
	})
	var s agent.Status
	c.must(c.Mounted(func() error { return os.Remove(ballast) }))
	c.await("the status is written", func() bool {
		var err error
		c.must(c.Mounted(func() error { s, err = agent.ReadStatus(small, n.PinPath()); return nil }))
		return err == nil && s.State == agent.Serving && len(s.Trouble) == 0
	})
	if s.PID != a.PID() || s.Services != 1 {
		t.Errorf("the status is %+v", s)
	}
}

// An agent that has no descriptors left for what comes next goes on with what it has, and says what it could not do.
func TestWithoutFileDescriptorsTheAgentSaysSoAndTrafficGoesOn(t *testing.T) {
	c, n, client, backend := oneNode(t)
	other := c.servers(n, "b")[0]
	a := c.agent(n)
	a.serving()
	c.awaitAnswers(client, web(1).address, backend)
	load := c.traffic()
	load.hold(client, web(1).address)
	load.ask(client, web(1).address, backend, other)
	before, err := limitFiles(a.PID(), 0) // those that it has stay open
	c.must(err)
	late := c.pod(n, "late")
	c.await("the log tells", func() bool {
		text, err := os.ReadFile(a.Log)
		c.must(err)
		return strings.Contains(string(text), "too many open files")
	})
	load.more(100)
	_, err = limitFiles(a.PID(), before)
	c.must(err)
	c.awaitAnswers(late, web(1).address, backend)
	c.publish("web.yaml", web(1, other))
	c.awaitAnswers(client, web(1).address, other)
	load.end(t)
}

// limitFiles sets how many descriptors another process may have, and tells how many it was.
func limitFiles(pid int, most uint64) (before uint64, err error) {
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return 0, err
	}
	before, limit.Cur = limit.Cur, most
	return before, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
}
