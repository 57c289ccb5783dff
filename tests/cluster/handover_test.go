// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// Connections through the real kube-proxy survive nearlb's start and kube-proxy's end; new ones are nearlb's. And the other way round.
func TestConnectionsSurviveTheHandOverFromKubeProxyAndBack(t *testing.T) {
	c := rig.Shared(t)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			h := newHandover(c.For(t), mode)
			h.startKubeProxy()
			h.publish()
			old := h.hold()
			h.toNearlb(old)
			fresh := h.hold()
			h.checkNew(fresh, false)
			h.removeRules(old, fresh)
			h.toKubeProxy(fresh)
		})
	}
}

// handover is two nodes, the first of which has the clients.
type handover struct {
	*rig.Cluster
	mode    string
	nodes   []*rig.Node
	proxies []*lab.Process
	clients []rig.Host
	off     rig.Host
	web     *rig.Service
	onPort  rig.At
	servers []*rig.Pod
	ports   uint16 // local ports that connections had
	runs    int    // of the command line
}

func newHandover(c *rig.Cluster, mode string) *handover {
	h := &handover{Cluster: c, mode: mode, ports: 11000}
	for range 2 {
		h.nodes = append(h.nodes, c.NewNode(rig.NodeOptions{NodeOptions: lab.NodeOptions{Zone: "a"}, NoAgent: true}))
	}
	off, err := c.AddOutside(lab.OutsideOptions{Name: "outside-" + h.nodes[0].Name}) // whose ports nobody had
	h.must(err)
	h.off = off
	h.clients = []rig.Host{c.Client(h.nodes[0].Number, "client-"+mode), h.nodes[0], h.off}
	return h
}

func (h *handover) must(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

func (h *handover) startKubeProxy() {
	h.T.Helper()
	program, err := control.Program()
	h.must(err)
	login, err := h.Plane.Certify("system:kube-proxy")
	h.must(err)
	h.proxies = nil
	for _, n := range h.nodes {
		p, err := n.Start("kube-proxy", []string{program, "kube-proxy", "--kubeconfig=" + login, "--proxy-mode=" + h.mode, "--hostname-override=" + n.Name,
			"--cluster-cidr=10.244.0.0/16,fd24::/16", "--detect-local-mode=ClusterCIDR", "--conntrack-max-per-core=0", "--conntrack-min=0",
			"--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249", "--iptables-min-sync-period=100ms"})
		h.must(err)
		h.proxies = append(h.proxies, p)
	}
	h.Await("kube-proxy has rules of both families on every node", func() bool {
		for _, n := range h.nodes {
			if serving := h.serving(n); !serving.Takes(served[0]) || !serving.Takes(served[1]) {
				return false
			}
		}
		return true
	})
}

// served is the API server's Service, and an address of the other family: kube-proxy writes all Services of a family at once.
var served = [...]kubeproxy.Frontend{
	{Protocol: "TCP", Address: netip.MustParseAddrPort("10.96.0.1:443")},
	{Protocol: "TCP", Address: netip.MustParseAddrPort("[fd96::1]:443")},
}

func (h *handover) serving(n *rig.Node) (serving kubeproxy.Serving) {
	h.T.Helper()
	rules := h.rules(n)
	h.must(n.Do(func() (err error) { serving, err = rules.Serving(); return err }))
	return serving
}

func (h *handover) rules(n *rig.Node) (rules kubeproxy.Rules) {
	h.T.Helper()
	h.must(n.Do(func() (err error) { rules, err = kubeproxy.Look(); return err }))
	return rules
}

func (h *handover) publish() {
	h.T.Helper()
	h.servers = []*rig.Pod{h.Server("web", "near-"+h.mode, h.nodes[0].Number), h.Server("web", "far-"+h.mode, h.nodes[1].Number)}
	h.web = h.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })
	h.onPort = rig.AtHost(h.nodes[0], uint16(h.web.Get().Spec.Ports[0].NodePort))
	h.web.Update(func(s *corev1.Service) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = s.Spec.Ports[0].NodePort
		}
	})
	h.answers()
}

// answers waits until new connections of every client reach both servers, everywhere.
func (h *handover) answers() {
	h.T.Helper()
	for _, client := range h.clients {
		for _, at := range h.ats(client) {
			h.AwaitServers(client, at, rig.Ways(), h.servers...)
		}
	}
}

// ats are where a client asks: hosts off the cluster know no ClusterIP.
func (h *handover) ats(client rig.Host) []rig.At {
	if client == h.off {
		return []rig.At{h.onPort}
	}
	return []rig.At{h.web.OnClusterIP(), h.onPort}
}

// held is a connection that is used all along.
type held struct {
	*lab.Conn
	asks   sync.Mutex // one question at a time
	client rig.Host
	at     rig.At
	way    rig.Way
	server string
}

// Who asks as lab.Conn does, while another goroutine may ask, too.
func (c *held) Who() (lab.Answer, error) {
	c.asks.Lock()
	defer c.asks.Unlock()
	return c.Conn.Who()
}

// keep asks once a second until the connection is closed: connection tracking forgets UDP that is silent for 30 seconds, and on a slow
// machine agents may take as long to start.
func (c *held) keep() {
	for range time.Tick(time.Second) {
		if _, err := c.Who(); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// hold opens connections of every kind, of each as many as it takes until both servers have one: they are chosen by chance.
func (h *handover) hold() (all []*held) {
	h.T.Helper()
	for _, client := range h.clients {
		for _, at := range h.ats(client) {
			for _, w := range rig.Ways() {
				all = append(all, h.openToBoth(client, at, w)...)
			}
		}
	}
	return all
}

// tries are so many that chance alone leaves a server out once in a trillion times.
const tries = 40

func (h *handover) openToBoth(client rig.Host, at rig.At, w rig.Way) (opened []*held) {
	h.T.Helper()
	servers := map[string]bool{}
	for len(servers) < len(h.servers) {
		if len(opened) == tries {
			h.T.Fatalf("%s over %s to %s: %d connections are answered by %v alone", client, w, at(w.Six), tries, servers)
		}
		c := h.open(client, at, w)
		opened, servers[c.server] = append(opened, c), true
	}
	return opened
}

func (h *handover) open(client rig.Host, at rig.At, w rig.Way) *held {
	h.T.Helper()
	h.ports++ // no port twice: kube-proxy's NAT and nearlb would both have to change it
	conn, err := client.Dial(context.Background(), w.Network, at(w.Six), lab.DialOptions{LocalPort: h.ports})
	h.must(err)
	h.T.Cleanup(func() { _ = conn.Close() })
	answer, err := conn.Who()
	h.must(err)
	opened := &held{Conn: conn, client: client, at: at, way: w, server: answer.Server}
	if w.Network == "udp" {
		go opened.keep()
	}
	return opened
}

// goOn asks over every connection: the same server answers as ever, and nothing is lost.
func (h *handover) goOn(when string, all []*held) {
	h.T.Helper()
	for _, c := range all {
		for range 3 {
			if answer, err := c.Who(); err != nil || answer.Server != c.server {
				h.T.Errorf("%s: %s over %s to %s: %q, %v; %s before", when, c.client, c.way, c.Remote(), answer.Server, err, c.server)
				break
			}
		}
	}
	if h.T.Failed() {
		h.T.FailNow()
	}
}

// toNearlb starts nearlb beside kube-proxy, and ends kube-proxy.
func (h *handover) toNearlb(old []*held) {
	h.T.Helper()
	for _, n := range h.nodes {
		h.StartAgent(n)
	}
	h.AwaitServing()
	h.goOn("nearlb beside kube-proxy", old)
	if text := h.run(h.nodes[0], "check"); !strings.Contains(text, "delete daemonset kube-proxy") {
		h.T.Errorf("nearlb check does not say that kube-proxy is to end:\n%s", text)
	}
	for _, p := range h.proxies {
		_ = p.Stop()
	}
	h.goOn("kube-proxy has ended", old)
	h.answers()
	h.goOn("others have come and gone", old)
	state := h.state()
	if state.KubeProxy.Connections.TCP == 0 || state.Draining || len(state.KubeProxy.Rules) == 0 {
		h.T.Errorf("nearlb handover says %+v", state)
	}
}

// checkNew says whether kube-proxy's rules translate these connections, of pods and of clients off the node: connection tracking
// knows their frontend.
func (h *handover) checkNew(all []*held, kubeProxys bool) {
	h.T.Helper()
	known := map[netip.AddrPort]bool{}
	h.must(h.nodes[0].Do(func() error {
		connections, err := kubeproxy.Connections()
		for _, c := range connections {
			known[c.Client] = true
		}
		return err
	}))
	for _, c := range all {
		if known[c.Local()] != kubeProxys {
			h.T.Errorf("%s over %s to %s: kube-proxy translates it: %t, want %t", c.client, c.way, c.Remote(), known[c.Local()], kubeProxys)
		}
	}
}

// removeRules ends kube-proxy's connections, and then does what nearlb says.
func (h *handover) removeRules(old, fresh []*held) {
	h.T.Helper()
	for _, c := range old {
		if c.way.Network == "tcp" {
			_ = c.Close()
		}
	}
	var state handoverState
	h.Await("no TCP connection of kube-proxy is left", func() bool {
		state = h.state()
		return state.KubeProxy.Connections.TCP == 0
	})
	for _, n := range h.nodes {
		h.follow(n)
		if h.rules(n).Any() {
			h.T.Errorf("%s: still there: %v", n.Name, h.rules(n).Marks())
		}
	}
	h.goOn("kube-proxy's rules are gone", fresh)
	for _, c := range old {
		if c.way.Network == "udp" {
			h.follows(c)
		}
	}
	if text := h.run(h.nodes[0], "check"); !strings.Contains(text, "no rules of it") {
		h.T.Errorf("nearlb check:\n%s", text)
	}
}

// follow runs the commands that nearlb handover prints on a node.
func (h *handover) follow(n *rig.Node) {
	h.T.Helper()
	for _, step := range h.stateOf(n).Next {
		for _, command := range step.Commands {
			if arguments, own := strings.CutPrefix(command, "nearlb "); own {
				h.run(n, strings.Fields(arguments)...)
				continue
			}
			h.must(n.Do(func() error {
				if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
					return fmt.Errorf("%s: %w: %s", command, err, out)
				}
				return nil
			}))
		}
	}
}

// follows waits until a UDP socket is served by nearlb. Those of the node were ended, so that their owners notice.
func (h *handover) follows(c *held) {
	h.T.Helper()
	h.Await(fmt.Sprintf("%s over %s to %s is answered", c.client, c.way, c.Remote()), func() bool {
		_, err := c.Who()
		ended := errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EDESTADDRREQ)
		return err == nil || c.client == rig.Host(h.nodes[0]) && ended
	})
}

// toKubeProxy drains nearlb's connections, and takes it away.
func (h *handover) toKubeProxy(fresh []*held) {
	h.T.Helper()
	h.goOn("before the way back", fresh)
	h.startKubeProxy()
	h.goOn("kube-proxy beside nearlb", fresh)
	h.web.Update(func(s *corev1.Service) { s.Labels = map[string]string{"seen": "again"} })
	for _, n := range h.nodes {
		h.run(n, "handover", "--to", "kube-proxy")
	}
	h.checkReserved()
	h.Await("kube-proxy serves both servers", func() bool {
		return rig.Seen(h.clients[0], rig.Ways()[0], h.web.OnClusterIP()(false), 10) == h.servers[1].Host.Name+" "+h.servers[0].Host.Name
	})
	h.goOn("nearlb drains", fresh)
	h.answers()
	theirs := h.hold()
	h.checkNew(theirs, true)
	h.goOn("others have come and gone", fresh)
	if state := h.state(); !state.Draining || state.Nearlb.TCP == 0 {
		h.T.Errorf("nearlb handover says %+v", state)
	}
	h.must(h.nodes[0].Agent.Kill())
	h.StartAgent(h.nodes[0])
	h.AwaitServing()
	if !h.state().Draining {
		h.T.Error("an agent that starts takes new connections again")
	}
	h.goOn("an agent has started", append(fresh, theirs...))
	for _, n := range h.nodes {
		h.must(n.Agent.Stop())
		n.Agent = nil
		h.run(n, "cleanup")
	}
	h.goOn("nearlb is gone", theirs)
	var sockets []*held
	for _, c := range fresh {
		if c.client == rig.Host(h.nodes[0]) {
			sockets = append(sockets, c)
		}
	}
	h.goOn("nearlb is gone", sockets)
	h.answers()
}

// checkReserved looks for the ports that nearlb gave to clients off the node, towards the backend on the other one, in connection tracking:
// kube-proxy's masquerade takes others.
func (h *handover) checkReserved() {
	h.T.Helper()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		var flows []*netlink.ConntrackFlow
		h.must(h.nodes[0].Do(func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
			return err
		}))
		found := map[uint8]bool{}
		for _, f := range flows {
			if f.Forward.SrcPort >= 61000 && f.Forward.SrcPort == f.Reverse.DstPort && f.Forward.DstIP.Equal(f.Reverse.SrcIP) {
				found[f.Forward.Protocol] = true
			}
		}
		if !found[unix.IPPROTO_TCP] || !found[unix.IPPROTO_UDP] {
			h.T.Errorf("family %d: reserved are ports of protocols %v", family, found)
		}
	}
}

// handoverState is what nearlb handover -o json says, as far as it is asked for here.
type handoverState struct {
	Draining  bool
	KubeProxy struct {
		Rules       []string
		Connections struct{ TCP, UDP int }
	}
	Nearlb struct{ TCP, UDP int }
	Next   []struct{ Commands []string }
}

func (h *handover) state() handoverState { h.T.Helper(); return h.stateOf(h.nodes[0]) }

func (h *handover) stateOf(n *rig.Node) (state handoverState) {
	h.T.Helper()
	h.must(json.Unmarshal([]byte(h.run(n, "handover", "-o", "json")), &state))
	return state
}

// run runs nearlb on a node and gives what it prints.
func (h *handover) run(n *rig.Node, arguments ...string) string {
	h.T.Helper()
	if arguments[0] == "check" || arguments[0] == "cleanup" {
		arguments = append(arguments, "--lock-dir", h.LockDir())
	}
	h.runs++
	p, err := n.Start(fmt.Sprintf("nearlb-%d", h.runs), append([]string{"/proc/self/exe"}, append(arguments, "--pin-path", n.PinPath())...), "NEARLB_TEST_RUN_CLI=1")
	h.must(err)
	defer os.Remove(p.Log) // it is part of what fails
	<-p.Ended()
	text, err := os.ReadFile(p.Log)
	h.must(err)
	if p.ExitCode() != 0 {
		h.T.Fatalf("nearlb %s: status %d: %s", strings.Join(arguments, " "), p.ExitCode(), text)
	}
	return string(text)
}
