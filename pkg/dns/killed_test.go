// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/dns"
)

// asKilled has this test binary be a server that says where it listens, and waits to be killed.
const asKilled = "NEARLB_TEST_KILLED"

func TestMain(m *testing.M) {
	if os.Getenv(asKilled) != "" {
		fmt.Println(waitToBeKilled())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// waitToBeKilled has files between its listener and the connections that come, as an agent has tables, each of which takes Linux some
// milliseconds to end.
func waitToBeKilled() error {
	s := &dns.Server{Responder: responder(dns.Options{}, dns.ViewOptions{}, cluster()...), Address: "127.0.0.1:0"}
	s.Ready = func(at string) {
		for range 20 {
			watches, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err == nil {
				_, err = unix.InotifyAddWatch(watches, "/", unix.IN_CREATE)
			}
			if err != nil {
				fmt.Println(err)
				return
			}
		}
		fmt.Println(at)
	}
	return s.Run(context.Background())
}

// A client is told once at most that a server was killed: who asks again then finds nobody, and nearlb's programs send the question
// to the cluster's DNS.
func TestAServerThatIsKilledListensNoMoreWhenItsConnectionsEnd(t *testing.T) {
	server := exec.Command("/proc/self/exe")
	server.Env = append(os.Environ(), asKilled+"=1")
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	said, _ := bufio.NewReader(out).ReadString('\n')
	address := strings.TrimSpace(said)
	c := answeredBy(t, address)
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if m, err := c.ReadMsg(); err == nil {
		t.Errorf("an answer that nobody asked for: %v", m)
	}
	ended := time.Now()
	if another, err := net.Dial("tcp", address); err == nil {
		_ = another.Close()
		t.Errorf("it listens still, %s after a connection ended", time.Since(ended))
	}
}

// answeredBy is a connection to a server that has answered on it, so it has a descriptor there. A server hangs up on a client that the
// machine leaves no time to ask.
func answeredBy(t *testing.T, address string) *wire.Conn {
	t.Helper()
	for {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		c := &wire.Conn{Conn: conn}
		if c.WriteMsg(query("web.prod.svc.cluster.local", "A")) == nil {
			if _, err := c.ReadMsg(); err == nil {
				return c
			}
		}
	}
}
