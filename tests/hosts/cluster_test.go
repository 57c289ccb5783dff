// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
	"github.com/nearlb/nearlb/tests/rig"
)

const (
	servicePort = 80
	targetPort  = 8080
	// patience is how long a change may take to reach the sockets: long, so that only what never comes is a failure.
	patience = 10 * time.Minute
)

// cluster has nodes n1 and n2 in zone a, and n3 in zone b. A node and its agent exist from the node's first use on.
type cluster struct {
	*lab.Lab
	t       *testing.T
	options options
	nodes   []*lab.Node
	agents  []*lab.Process  // of the nodes, or of the first one alone
	dropped map[string]bool // verdicts that are to be: see mayDrop
	api     *apiServer      // where the nodes run kube-proxy

	outsiders map[string]*lab.Outside // see outsider

	mine         *mine // of a test that shares the cluster; nil: all is its own
	firstService int   // number before those of its Services
}

type options struct {
	lab    lab.Options
	bridge bool     // pods are on a bridge instead of point-to-point links
	agent  []string // further flags of the agents

	carries bool // those say that clients off the node keep their address towards backends on other nodes
	direct  bool // those say that the other nodes answer them: the router lets foreign sources pass

	alone     bool   // the first node alone has an agent: of the others the test wants no more than that their pods are there
	beside    bool   // another cluster of the same test
	kubeProxy string // program that has it, which the nodes run instead of agents
}

// podNetworks are how pods are connected, by whether that is a bridge.
var podNetworks = map[bool]string{false: "point-to-point", true: "bridge"}

// newCluster has the test run beside others: each has its own cluster, and waits for most of its time.
func newCluster(t *testing.T, o options) *cluster {
	t.Helper()
	if !o.beside {
		t.Parallel()
	}
	c := makeCluster(t, o)
	t.Cleanup(c.end)
	if o.kubeProxy != "" {
		c.serveAPI()
	}
	return c
}

// makeCluster makes a cluster without nodes.
func makeCluster(t *testing.T, o options) *cluster {
	t.Helper()
	privileged.Require(t)
	l, err := lab.New(o.lab)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Lab: l, t: t, options: o, dropped: map[string]bool{}, outsiders: map[string]*lab.Outside{}}
	if o.direct {
		if err := c.Router.Sysctl("ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=0"); err != nil {
			t.Fatal(errors.Join(err, c.Close()))
		}
	}
	return c
}

// node is the node of a number, from 0. Its agent runs; it may not serve yet.
func (c *cluster) node(number int) *lab.Node {
	c.t.Helper()
	for i := len(c.nodes); i <= number; i++ {
		n, err := c.AddNode(lab.NodeOptions{Name: fmt.Sprintf("n%d", i+1), Zone: []string{"a", "a", "b"}[i], Bridge: c.options.bridge})
		if err != nil {
			c.t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
		c.writeNode(n)
		if i == 0 || !c.options.alone {
			c.agents = append(c.agents, c.startAgent(i))
		}
	}
	return c.nodes[number]
}

func (c *cluster) writeNode(n *lab.Node) { c.write(nodeFile(n), n.Object()) }

func nodeFile(n *lab.Node) string { return "node-" + n.Name + ".yaml" }

// startAgent runs the agent of a node, or kube-proxy.
func (c *cluster) startAgent(node int) *lab.Process {
	c.t.Helper()
	started, err := c.startProxy(c.nodes[node])
	if err != nil {
		c.t.Fatal(err)
	}
	return started
}

func (c *cluster) startProxy(n *lab.Node) (*lab.Process, error) {
	if c.api != nil {
		return rig.StartKubeProxy(n, c.options.kubeProxy, c.api.kubeconfig)
	}
	return n.StartAgent(lab.AgentOptions{
		Command: []string{"/proc/self/exe", "agent"},
		Args:    c.options.agent,
		Env:     []string{runAsCLI + "=1"},
	})
}

// mayDrop says that the test asks for packets with that verdict.
func (c *cluster) mayDrop(verdict string) { c.dropped[verdict] = true }

// end takes the cluster down, but not before it has seen that no packet was dropped other than those that a test asked for.
// What the agents said is shown if the test failed.
func (c *cluster) end() {
	c.checkDrops()
	if c.t.Failed() {
		logs.Show(c.t, c.Dir)
	}
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
}

// sampled are the packets that the kernel told of one by one, by a verdict.
func (c *cluster) sampled(n *lab.Node, verdict string) (lines string) {
	reason := strings.ReplaceAll(strings.TrimPrefix(verdict, "drop_"), "_", "-")
	err := agent.ReadDrops(context.Background(), c.LockDir(), n.PinPath(), false, func(news agent.News) error {
		if news.Line != nil && strings.Contains(string(*news.Line), reason) {
			lines += string(*news.Line) + "\n"
		}
		return nil
	})
	if err != nil {
		lines += err.Error()
	}
	return lines
}

func (c *cluster) write(file string, objects ...lab.Object) {
	c.t.Helper()
	if err := c.Manifests.Write(file, objects...); err != nil {
		c.t.Fatal(err)
	}
	c.takeAtEnd(file)
	if c.api == nil {
		return
	}
	if err := c.api.put(filepath.Join(c.Manifests.Dir, file)); err != nil {
		c.t.Fatal(err)
	}
}

// writeText is write for objects as text.
func (c *cluster) writeText(file, text string) {
	c.t.Helper()
	if err := c.Manifests.WriteText(file, text); err != nil {
		c.t.Fatal(err)
	}
	c.takeAtEnd(file)
}

// takeAtEnd has a file be taken out of a cluster that others share; that of a node becomes what it was.
func (c *cluster) takeAtEnd(file string) {
	if c.mine != nil && !slices.Contains(c.mine.files, file) {
		c.mine.files = append(c.mine.files, file)
	}
}

// pod adds a pod to a node.
func (c *cluster) pod(node int, name string) *lab.Pod {
	c.t.Helper()
	p, err := c.node(node).AddPod(name)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.mine != nil {
		c.mine.pods = append(c.mine.pods, p)
	}
	return p
}

// outsider is a host off the nodes, which all tests that share a cluster have by that name.
func (c *cluster) outsider(o lab.OutsideOptions) *lab.Outside {
	c.t.Helper()
	if c.outsiders[o.Name] == nil {
		added, err := c.AddOutside(o)
		if err != nil {
			c.t.Fatal(err)
		}
		c.outsiders[o.Name] = added
	}
	return c.outsiders[o.Name]
}

// server adds a pod that serves on the target port.
func (c *cluster) server(node int, name string) *lab.Pod {
	c.t.Helper()
	p := c.pod(node, name)
	if _, err := p.Serve(targetPort); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// host is who asks: a pod, a node, or a host outside of the cluster.
type host interface {
	Dial(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (*lab.Conn, error)
	Ask(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (lab.Answer, error)
	DatagramSocket(six bool, port uint16) (*net.UDPConn, error)
	Ping(to netip.Addr) error
	Address(six bool) netip.Addr
	String() string
}

// service is one Service of the cluster with an address of each family.
type service struct {
	*cluster
	lab.Service
	number int
	kind   frontend  // of the address where it is asked
	on     *lab.Node // whose NodePort is asked
	hints  bool      // as for trafficDistribution PreferSameNode
}

// service names a Service by number: its addresses are of that number. Nothing is written before publish.
func (c *cluster) service(number int) *service {
	if c.mine != nil {
		c.mine.services = max(c.mine.services, number)
	}
	number += c.firstService
	s := &service{cluster: c, number: number, kind: clusterIP}
	s.Service = lab.Service{
		Name: fmt.Sprintf("service-%d", number),
		ClusterIPs: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 96, 0, byte(number)}),
			netip.MustParseAddr(fmt.Sprintf("fd96::%x", number)),
		},
		Ports: ports(servicePort),
	}
	return s
}

func ports(number uint16) []lab.Port {
	return []lab.Port{{Name: "tcp", Protocol: "TCP", Port: number}, {Name: "udp", Protocol: "UDP", Port: number}}
}

// address is where the service is asked.
func (s *service) address(six bool) netip.AddrPort {
	switch {
	case s.kind != clusterIP:
		return s.of(s.kind, six)
	case six:
		return netip.AddrPortFrom(s.ClusterIPs[1], servicePort)
	}
	return netip.AddrPortFrom(s.ClusterIPs[0], servicePort)
}

// publish writes the Service with these endpoints.
func (s *service) publish(endpoints ...lab.Endpoint) {
	s.t.Helper()
	slices := lab.Slices{Service: s.Name, Ports: ports(targetPort), Endpoints: endpoints, SameNode: s.hints}
	s.write(s.Name+".yaml", append(slices.Objects(), s.Service)...)
}

// ready makes endpoints of pods that are ready.
func ready(pods ...*lab.Pod) []lab.Endpoint {
	var out []lab.Endpoint
	for _, p := range pods {
		out = append(out, lab.Endpoint{Pod: p})
	}
	return out
}

// notReady is the endpoint of a pod whose readiness probe fails (C5).
func notReady(p *lab.Pod) lab.Endpoint { return lab.Endpoint{Pod: p, NotReady: true, NotServing: true} }

// way is a protocol and a family.
type way struct {
	network string
	six     bool
}

func (w way) String() string {
	if w.six {
		return w.network + "6"
	}
	return w.network + "4"
}

func ways() []way { return []way{{"tcp", false}, {"udp", false}, {"tcp", true}, {"udp", true}} }

// await polls until the condition holds; what it is for is named in the failure.
func (c *cluster) await(what string, condition func() bool) {
	c.t.Helper()
	if err := lab.Await(patience, condition); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// awaitServer polls until new connections of the client are answered by that server and none other, on every way. All
// agents serve by then: the backend's node has its programs too, if it has an agent. And they have all frontends, not only the one that is asked.
func (s *service) awaitServer(client host, want string) {
	s.t.Helper()
	for i := range s.agents {
		s.awaitServing(i)
	}
	s.awaitFrontends()
	for _, w := range ways() {
		s.await(fmt.Sprintf("%s asks %s over %s, wants %s", client, s.Name, w, want), func() bool {
			for range 5 {
				if answer, err := s.try(client, w); err != nil || answer.Server != want {
					return false
				}
			}
			return true
		})
	}
}

func (s *service) ask(client host, w way) (lab.Answer, error) {
	return client.Ask(context.Background(), w.network, s.address(w.six), lab.DialOptions{})
}

// try is ask for those who will ask again: before a Service is served nobody answers, and waiting long is a waste.
func (s *service) try(client host, w way) (lab.Answer, error) {
	return client.Ask(context.Background(), w.network, s.address(w.six), lab.DialOptions{Patience: time.Second})
}

// inVain is ask for those who expect no answer.
func (s *service) inVain(client host, w way) (lab.Answer, error) {
	return client.Ask(context.Background(), w.network, s.address(w.six), lab.DialOptions{Patience: 300 * time.Millisecond})
}

// dial opens a connection to the service.
func (s *service) dial(client host, w way) *lab.Conn {
	s.t.Helper()
	return dial(s.t, client, w.network, s.address(w.six), 0)
}

func dial(t *testing.T, client host, network string, to netip.AddrPort, localPort uint16) *lab.Conn {
	t.Helper()
	conn, err := client.Dial(context.Background(), network, to, lab.DialOptions{LocalPort: localPort})
	if err != nil {
		t.Fatalf("%s dials %s %s: %v", client, network, to, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// mustBe asks over an open connection and compares who answers.
func mustBe(t *testing.T, conn *lab.Conn, want string) {
	t.Helper()
	answer, err := conn.Who()
	if err != nil || answer.Server != want {
		t.Fatalf("%s -> %s: answer %+v, %v; want %s", conn.Local(), conn.Remote(), answer, err, want)
	}
}

// mustBecome asks over an open connection until want answers; until then old may, and each question must be answered.
func mustBecome(t *testing.T, conn *lab.Conn, old, want string) {
	t.Helper()
	var answer lab.Answer
	var err error
	_ = lab.Await(patience, func() bool {
		answer, err = conn.Who()
		return err != nil || answer.Server != old
	})
	if err != nil || answer.Server != want {
		t.Fatalf("%s -> %s: answer %+v, %v; want %s", conn.Local(), conn.Remote(), answer, err, want)
	}
}
