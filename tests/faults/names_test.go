// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/trace"
	"github.com/nearlb/nearlb/tests/rig"
)

// The lifetimes of answers say whose they are.
const (
	nodesTTL    = 5
	clustersTTL = 7
)

// resolverTime is how long a resolver waits before it asks again (resolv.conf(5), timeout).
const resolverTime = 5 * time.Second

// clusterDNS is a pod with a server of names and its Service, which is in the manifests.
func (c *cluster) clusterDNS(n *lab.Node, flags ...string) service {
	c.t.Helper()
	pod := c.pod(n, "coredns")
	_, err := pod.Start("dns", append([]string{"/proc/self/exe", "dns", "serve", "-f", c.Manifests.Dir, "--listen", ":53", "--ttl", fmt.Sprint(clustersTTL),
		"--zone", "cluster.local,example.test"}, flags...), runAsCLI+"=1")
	c.must(err)
	s := web(53, pod)
	s.Name, s.Ports = "kube-dns", ports(53)
	slices := lab.Slices{Service: s.Name, Ports: s.Ports, Endpoints: []lab.Endpoint{{Pod: pod}}}
	c.must(c.Manifests.Write("dns.yaml", append(slices.Objects(), s.Service)...))
	return s
}

// lookUp asks once, from a new socket, for the address of a Service in a zone.
func lookUp(from client, w way, to netip.AddrPort, name string, patience time.Duration) (*wire.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := from.Dial(ctx, w.network, to, lab.DialOptions{Patience: patience})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	query := new(wire.Msg)
	query.SetQuestion(name, wire.TypeA)
	over := &wire.Conn{Conn: conn.Conn}
	if err := over.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if err := over.WriteMsg(query); err != nil {
		return nil, err
	}
	return over.ReadMsg()
}

// resolve is a resolver's way: it asks a second time when the first question was not answered or was refused, and no third time. A process
// that ends closes its sockets one after the other, its listeners before connections: who was told by a connection finds no listener.
func resolve(from client, w way, to netip.AddrPort, name string) (ttl int, err error) {
	m, err := lookUp(from, w, to, name, resolverTime)
	if refusedOrReset(err) {
		time.Sleep(pace)
	}
	if err != nil {
		if m, err = lookUp(from, w, to, name, patience); err != nil {
			return 0, err
		}
	}
	if m.Rcode != wire.RcodeSuccess || len(m.Answer) != 1 {
		return 0, fmt.Errorf("%s: %v", name, m)
	}
	return int(m.Answer[0].Header().Ttl), nil
}

// refusedOrReset tells of a server whose process is gone.
func refusedOrReset(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNABORTED)
}

const webName = "web-1.default.svc.cluster.local."

func TestAPodsQuestionsAreAnsweredWhateverBecomesOfTheAgent(t *testing.T) {
	asksWhateverBecomesOfTheAgent(t, "--dns-fast-path=false")
}

// The programs answer while the agent's heart beats, and then as little as its responder.
func TestAPodsQuestionsAreAnsweredInTheKernelWhileTheAgentLives(t *testing.T) {
	c, n := asksWhateverBecomesOfTheAgent(t)
	if got := c.answeredInTheKernel(n); got == 0 {
		t.Error("the programs answered no question")
	}
}

// answeredInTheKernel is how many questions the programs of a node answered since their tables were made.
func (c *cluster) answeredInTheKernel(n *lab.Node) uint64 {
	c.t.Helper()
	verdicts, err := rig.Verdicts(c.Lab, n)
	c.must(err)
	return verdicts["reject_name"]
}

func asksWhateverBecomesOfTheAgent(t *testing.T, flags ...string) (*cluster, *lab.Node) {
	t.Helper()
	c, n, pod, _ := oneNode(t)
	other := c.node()
	dns := c.clusterDNS(n)
	at := func(six bool) netip.AddrPort { return netip.AddrPortFrom(dns.address(six).Addr(), 53) }
	further := map[bool]netip.AddrPort{false: netip.MustParseAddrPort("169.254.20.10:53"), true: netip.MustParseAddrPort("[fd00:20::10]:53")}
	start := func() *running {
		a := c.agent(n, append([]string{"--dns", "--dns-service=default/kube-dns", "--dns-address=169.254.20.10,fd00:20::10"}, flags...)...)
		a.serving()
		a.await("a responder", func(s agent.Status) bool { return s.Listen["dns"] != "" })
		return a
	}
	answered := func(who string, ttl int) {
		t.Helper()
		for _, from := range []client{pod, n} {
			for _, w := range ways() {
				for _, to := range []netip.AddrPort{at(w.six), further[w.six]} {
					c.await(fmt.Sprintf("%s answers %s by %s at %s", who, from, w, to), func() bool {
						got, err := resolve(from, w, to, webName)
						return err == nil && got == ttl
					})
				}
			}
		}
	}
	a := start()
	answered("the node", nodesTTL)
	inTheNode := trace.WayKernel
	if slices.Contains(flags, "--dns-fast-path=false") {
		inTheNode = trace.WayResponder
	}
	c.traces(n, pod, at, webName, inTheNode, web(1).address(false).Addr().String())
	for _, w := range ways() { // what is not ours is asked of the cluster's DNS
		if got, err := resolve(pod, w, at(w.six), "web-1.default.svc.example.test."); err != nil || got > clustersTTL { // less: it was kept
			t.Errorf("%s: a name of another zone: lifetime %d, %v", w, got, err)
		}
		own := netip.AddrPortFrom(n.Address(w.six), 10053)
		if m, err := lookUp(other, w, own, webName, time.Second); err == nil {
			t.Errorf("%s: another node was answered: %v", w, m)
		}
	}

	load := c.traffic()
	for _, w := range ways() {
		load.repeat("questions by "+w.String(), func() error {
			_, err := resolve(pod, w, at(w.six), webName)
			return err
		})
	}
	load.more(100)
	c.must(syscall.Kill(a.PID(), syscall.SIGSTOP))
	c.await("all of the agent's threads stop", a.stopped)
	answered("the cluster's DNS", clustersTTL)
	load.more(100)
	c.must(syscall.Kill(a.PID(), syscall.SIGCONT))
	answered("the node", nodesTTL)

	c.must(syscall.Kill(a.PID(), syscall.SIGKILL))
	<-a.Ended()
	load.more(100)
	answered("the cluster's DNS", clustersTTL)
	c.traces(n, pod, at, webName, trace.WayService)
	a = start()
	answered("the node", nodesTTL)

	c.must(syscall.Kill(a.PID(), syscall.SIGTERM))
	<-a.Ended()
	answered("the cluster's DNS", clustersTTL)
	load.more(100)
	load.end(t)
	return c, n
}

// traces has nearlb trace say who answers a pod's question of either family. In the kernel it has these addresses. It waits for that: a heart that
// the machine leaves no time to beat for a second is taken for dead.
func (c *cluster) traces(n *lab.Node, pod *lab.Pod, at func(six bool) netip.AddrPort, name, way string, addresses ...string) {
	c.t.Helper()
	for _, is6 := range []bool{false, true} {
		var q trace.Asked
		if lab.Await(patience, func() bool {
			q = c.traceQuestion(n, pod.Address(is6), at(is6), name)
			if way == trace.WayKernel {
				return q.Way == way && q.Because == "" && q.Rcode == "NOERROR" && slices.Equal(q.Answers, addresses)
			}
			return q.Way == way && q.Because != ""
		}) != nil {
			c.t.Errorf("trace by %v: %+v, want %s %v", at(is6), q, way, addresses)
		}
	}
}

// traceQuestion is what nearlb trace says of a pod's question.
func (c *cluster) traceQuestion(n *lab.Node, pod netip.Addr, at netip.AddrPort, name string) trace.Asked {
	c.t.Helper()
	p, err := n.Start("trace", []string{"/proc/self/exe", "trace", "--pin-path", n.PinPath(), "--from", "pod", "--src", pod.String(),
		"--dst", at.String(), "--proto", "udp", "--question", name, "-o", "json"}, runAsCLI+"=1")
	c.must(err)
	<-p.Ended()
	said, err := os.ReadFile(p.Log)
	c.must(err)
	c.must(os.Remove(p.Log))
	var got trace.Answer
	if err := json.Unmarshal(said, &got); err != nil || got.Question == nil {
		c.t.Fatalf("trace: %d, %v:\n%s", p.ExitCode(), err, said)
	}
	return *got.Question
}

// A name is in force when the tables are: of a Service that comes and goes packets and names know at the same time.
func TestNamesFollowTheTables(t *testing.T) {
	followsTheTables(t, "--dns-fast-path=false")
}

func TestNamesInTheKernelFollowTheTables(t *testing.T) {
	c, n := followsTheTables(t)
	if got := c.answeredInTheKernel(n); got < 20 { // each name once while it is there, and once after
		t.Errorf("the programs answered %d questions", got)
	}
}

func followsTheTables(t *testing.T, flags ...string) (*cluster, *lab.Node) {
	t.Helper()
	c, n, pod, backend := oneNode(t)
	dns := c.clusterDNS(n)
	a := c.agent(n, append([]string{"--dns", "--dns-service=default/kube-dns"}, flags...)...)
	a.serving()
	at := netip.AddrPortFrom(dns.address(false).Addr(), 53)
	w := way{"udp", false}
	c.await("the node answers", func() bool {
		ttl, err := resolve(pod, w, at, webName)
		return err == nil && ttl == nodesTTL
	})
	for number := 2; number < 12; number++ {
		c.publish(fmt.Sprintf("web-%d.yaml", number), web(number, backend))
		name := fmt.Sprintf("web-%d.default.svc.cluster.local.", number)
		c.await(name, func() bool {
			m, err := lookUp(pod, w, at, name, resolverTime)
			return err == nil && len(m.Answer) == 1 && m.Answer[0].Header().Ttl == nodesTTL
		})
		if got, err := answer(pod, way{"tcp", false}, web(number).address(false)); err != nil || got != backend.Name {
			t.Errorf("%s has a name, and packets to it are answered by %q, %v", name, got, err)
		}
		c.must(c.Manifests.Remove(fmt.Sprintf("web-%d.yaml", number)))
		c.await(name+" goes", func() bool {
			m, err := lookUp(pod, w, at, name, resolverTime)
			return err == nil && m.Rcode == wire.RcodeNameError
		})
	}
	c.must(c.Manifests.Remove("dns.yaml"))
	a.await("nobody asks where the cluster's DNS is no Service", func(s agent.Status) bool {
		return s.Names != nil && !s.Names.Answering && strings.HasPrefix(s.Names.Because, "there is no such Service") && len(s.Names.Upstreams) == 0
	})
	return c, n
}
