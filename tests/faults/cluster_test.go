// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
	"github.com/nearlb/nearlb/tests/rig"
)

const (
	servicePort = 80
	targetPort  = 8080
	patience    = 2 * time.Minute // long, so that only what never comes is a failure, on a machine that stands still now and then as well
)

// cluster is nodes n1, n2, ... of one lab. Those with an agent are started by agent.
type cluster struct {
	*lab.Lab
	t       testing.TB
	dropped map[string]bool // drop verdicts that are to be
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	privileged.Require(t)
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Lab: l, t: t, dropped: map[string]bool{}}
	t.Cleanup(c.end)
	return c
}

// end sees that no packet was dropped but as the test asked for, and shows what the agents said if the test failed.
func (c *cluster) end() {
	for _, n := range c.Nodes() {
		verdicts, err := rig.Verdicts(c.Lab, n)
		if err != nil && !errors.Is(err, bpf.ErrNoAgent) {
			c.t.Errorf("read verdicts of %s: %v", n.Name, err)
		}
		for verdict, packets := range verdicts {
			if strings.HasPrefix(verdict, "drop_") && !c.dropped[verdict] {
				c.t.Errorf("%s: %d packets %s", n.Name, packets, verdict)
			}
		}
	}
	if c.t.Failed() {
		logs.Show(c.t, c.Dir)
	}
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// node adds a node, in zone a.
func (c *cluster) node() *lab.Node {
	c.t.Helper()
	n, err := c.AddNode(lab.NodeOptions{Name: fmt.Sprintf("n%d", len(c.Nodes())+1), Zone: "a"})
	c.must(err)
	c.must(c.Manifests.Write("node-"+n.Name+".yaml", n.Object()))
	return n
}

func (c *cluster) pod(n *lab.Node, name string) *lab.Pod {
	c.t.Helper()
	p, err := n.AddPod(name)
	c.must(err)
	return p
}

// servers adds pods that serve on the target port.
func (c *cluster) servers(n *lab.Node, names ...string) (all []*lab.Pod) {
	c.t.Helper()
	for _, name := range names {
		p := c.pod(n, name)
		_, err := p.Serve(targetPort)
		c.must(err)
		all = append(all, p)
	}
	return all
}

// running is an agent of a node.
type running struct {
	*lab.Process
	*cluster
	node *lab.Node
}

// agent starts `nearlb agent` on a node.
func (c *cluster) agent(n *lab.Node, flags ...string) *running {
	c.t.Helper()
	p, err := n.StartAgent(lab.AgentOptions{Command: []string{"/proc/self/exe", "agent"}, Args: flags, Env: []string{runAsCLI + "=1"}})
	c.must(err)
	return &running{p, c, n}
}

// await polls the agent's status.
func (a *running) await(what string, wanted func(agent.Status) bool) (last agent.Status) {
	a.t.Helper()
	var err error
	if lab.Await(patience, func() bool {
		last, err = agent.ReadStatus(a.LockDir(), a.node.PinPath())
		return err == nil && last.PID == a.PID() && wanted(last)
	}) != nil {
		a.t.Fatalf("%s: the status is %+v, %v", what, last, err)
	}
	return last
}

// serving waits until the agent has published every object and its programs are attached.
func (a *running) serving() agent.Status {
	a.t.Helper()
	return a.await("serving", func(s agent.Status) bool {
		return s.State == agent.Serving && !s.LastSync.IsZero() && s.Dirty == 0 && !s.LastAudit.IsZero()
	})
}

// run runs a command of nearlb on a node and gives what it said and its exit status.
func (c *cluster) run(n *lab.Node, args ...string) (string, int) {
	c.t.Helper()
	argv := append([]string{"/proc/self/exe"}, args...)
	argv = append(argv, "--pin-path", n.PinPath(), "--lock-dir", c.LockDir())
	p, err := n.Start("command", argv, runAsCLI+"=1")
	c.must(err)
	defer os.Remove(p.Log)
	<-p.Ended()
	text, err := os.ReadFile(p.Log)
	c.must(err)
	return string(text), p.ExitCode()
}

// scrape is what the agent's metrics say.
func (a *running) scrape() string {
	a.t.Helper()
	s := a.await("metrics", func(s agent.Status) bool { return s.Listen["metrics"] != "" })
	return a.get("http://" + s.Listen["metrics"] + "/metrics")
}

// get reads a page of the agent, on its node.
func (a *running) get(url string) string {
	a.t.Helper()
	dial := func(ctx context.Context, network, to string) (net.Conn, error) {
		address, err := netip.ParseAddrPort(to)
		if err != nil {
			return nil, err
		}
		return a.node.Dial(ctx, network, address, lab.DialOptions{})
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Get(url)
	a.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	a.must(err)
	return response.Status + "\n" + string(text)
}

func (c *cluster) await(what string, condition func() bool) {
	c.t.Helper()
	if err := lab.Await(patience, condition); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// dump is the canonical text of a node's tables, none before an agent made them.
func (c *cluster) dump(n *lab.Node) string {
	c.t.Helper()
	text, err := rig.Dump(c.Lab, n)
	if !errors.Is(err, bpf.ErrNoAgent) {
		c.must(err)
	}
	return text
}

// service is one with an address of each family and a TCP and a UDP port, and those of its endpoints that are ready.
type service struct {
	lab.Service
	pods []*lab.Pod
}

// web is a Service of a number.
func web(number int, pods ...*lab.Pod) service {
	return service{lab.Service{
		Name:       fmt.Sprintf("web-%d", number),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(number)}), netip.MustParseAddr(fmt.Sprintf("fd96::%x", number))},
		Ports:      ports(servicePort),
	}, pods}
}

func ports(number uint16) []lab.Port {
	return []lab.Port{{Name: "tcp", Protocol: "TCP", Port: number}, {Name: "udp", Protocol: "UDP", Port: number}}
}

// address is the Service's ClusterIP.
func (s service) address(six bool) netip.AddrPort {
	if six {
		return netip.AddrPortFrom(s.ClusterIPs[1], servicePort)
	}
	return netip.AddrPortFrom(s.ClusterIPs[0], servicePort)
}

func (s service) objects() []lab.Object {
	slices := lab.Slices{Service: s.Name, Ports: ports(targetPort)}
	for _, p := range s.pods {
		slices.Endpoints = append(slices.Endpoints, lab.Endpoint{Pod: p})
	}
	return append(slices.Objects(), s.Service)
}

// publish writes Services into one file, all at once.
func (c *cluster) publish(file string, services ...service) {
	c.t.Helper()
	var objects []lab.Object
	for _, s := range services {
		objects = append(objects, s.objects()...)
	}
	c.must(c.Manifests.Write(file, objects...))
}
