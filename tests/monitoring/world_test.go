// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
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
)

const (
	targetPort = 8080
	patience   = 3 * time.Minute // only what never comes is a failure
)

// world is a cluster of network namespaces with a real agent on each node, and a client on the first.
type world struct {
	*lab.Lab
	t       *testing.T
	nodes   []*lab.Node
	agents  []*lab.Process
	client  *lab.Pod
	near    *lab.Pod // server on the first node
	far     *lab.Pod // server on the second node, in another zone
	outside *lab.Outside
	others  *lab.Process // server of names outside of the cluster
	asked   int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	privileged.Require(t)
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Lab: l, t: t}
	t.Cleanup(w.end)
	w.node("a", "--snat-ports", "61000-61003", "--snat-all-ports=false", "--dns", "--dns-service", "default/kube-dns")
	w.node("b")
	w.client, w.near, w.far = w.pod(0, "client"), w.server(0, "near"), w.server(1, "far")
	w.outside, err = l.AddOutside(lab.OutsideOptions{Name: "outside"})
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) end() {
	if w.t.Failed() {
		logs.Show(w.t, w.Dir)
	}
	if err := w.Close(); err != nil {
		w.t.Error(err)
	}
}

func (w *world) log(n *lab.Node) string {
	text, _ := os.ReadFile(w.Dir + "/log/" + n.Name + "-agent.log")
	return string(text)
}

// node adds a node and its agent, which logs JSON and audits all the time.
func (w *world) node(zone string, flags ...string) {
	w.t.Helper()
	n, err := w.AddNode(lab.NodeOptions{Name: fmt.Sprintf("n%d", len(w.nodes)+1), Zone: zone})
	w.must(err)
	w.nodes = append(w.nodes, n)
	w.must(w.Manifests.Write("node-"+n.Name+".yaml", n.Object()))
	flags = append([]string{"--log-format", "json", "--log-level", "debug", "--audit-interval", "2s", "--service-cidr", "10.96.0.0/16"}, flags...)
	p, err := n.StartAgent(lab.AgentOptions{Command: []string{"/proc/self/exe", "agent"}, Args: flags, Env: []string{runAsCLI + "=1"}})
	w.must(err)
	w.agents = append(w.agents, p)
	w.await("the agent of "+n.Name+" has published", func() bool {
		status, err := agent.ReadStatus(w.LockDir(), n.PinPath())
		return err == nil && status.PID == p.PID() && !status.LastSync.IsZero()
	})
}

func (w *world) pod(node int, name string) *lab.Pod {
	w.t.Helper()
	p, err := w.nodes[node].AddPod(name)
	w.must(err)
	return p
}

func (w *world) server(node int, name string) *lab.Pod {
	w.t.Helper()
	p := w.pod(node, name)
	_, err := p.Serve(targetPort)
	w.must(err)
	return p
}

func (w *world) await(what string, condition func() bool) {
	w.t.Helper()
	if err := lab.Await(patience, condition); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// scrape asks all agents, once each has added up what went on until now; one that ended is down.
func (w *world) scrape() scrape {
	w.t.Helper()
	s := newScrape()
	began := float64(s.at.UnixNano()) / 1e9
	for i, n := range w.nodes {
		select {
		case <-w.agents[i].Ended():
			w.must(s.add(n.Name, nil))
			continue
		default:
		}
		w.await("the agent of "+n.Name+" adds up its counters", func() bool {
			text, err := get(n, metricsPort, "/metrics")
			w.must(err)
			w.must(s.add(n.Name, text))
			return s.sum("nearlb_last_look_timestamp_seconds", "node", n.Name) > began
		})
	}
	s.at = time.Now()
	return s
}

// Where agents listen.
const (
	metricsPort = 10249
	healthPort  = 10256
)

// get asks the agent from its node: metrics are on the loopback address.
func get(n *lab.Node, port uint16, path string) ([]byte, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return n.Dial(ctx, "tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), lab.DialOptions{})
		},
	}}
	answer, err := client.Get("http://agent" + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

// service is a Service by its number: its address is of that number.
type service struct {
	number      int
	name        string
	annotations string   // YAML of one line each
	spec        string   // YAML of one line, after ports
	nodePort    int      // 0: none
	endpoints   []string // address,node,zone
	port        int      // of the endpoints; 0: targetPort
}

func (s service) address() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(s.number)}), 80)
}

func at(p *lab.Pod) string { return endpoint(p.V4.String(), p.Node) }

func endpoint(address string, n *lab.Node) string {
	return address + "," + n.Name + "," + n.Options.Zone
}

// publish writes the Service and its slice, with the time of now as the trigger.
func (w *world) publish(s service) {
	w.t.Helper()
	if s.port == 0 {
		s.port = targetPort
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n  namespace: default\n  annotations: {%s}\nspec:\n  clusterIP: 10.96.0.%d\n", s.name, s.annotations, s.number)
	for _, protocol := range []string{"TCP", "UDP"} {
		nodePort := ""
		if s.nodePort != 0 {
			nodePort = fmt.Sprintf(", nodePort: %d", s.nodePort)
		}
		if protocol == "TCP" {
			b.WriteString("  ports:\n")
		}
		fmt.Fprintf(&b, "  - {name: %s, port: 80, protocol: %s%s}\n", strings.ToLower(protocol), protocol, nodePort)
	}
	for line := range strings.SplitSeq(s.spec, ";") {
		b.WriteString("  " + strings.TrimSpace(line) + "\n")
	}
	fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-1\n  namespace: default\n  labels: {kubernetes.io/service-name: %s}\n", s.name, s.name)
	fmt.Fprintf(&b, "  annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}\n", time.Now().UTC().Format(time.RFC3339Nano))
	fmt.Fprintf(&b, "addressType: IPv4\nports: [{name: tcp, port: %d, protocol: TCP}, {name: udp, port: %d, protocol: UDP}]\nendpoints:\n", s.port, s.port)
	for _, e := range s.endpoints {
		part := strings.Split(e, ",")
		fmt.Fprintf(&b, "- {addresses: [%s], nodeName: %s, zone: %s}\n", part[0], part[1], part[2])
	}
	if len(s.endpoints) == 0 {
		b.WriteString("  []\n")
	}
	w.must(w.Manifests.WriteText(s.name+".yaml", b.String()))
}

// served waits until the Service is answered.
func (w *world) served(s service) {
	w.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		w.await("Service "+s.name+" is answered", func() bool { return ask(w.client, network, s.address()) == nil })
	}
}

type dialer interface {
	Ask(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (lab.Answer, error)
	Dial(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (*lab.Conn, error)
}

func ask(from dialer, network string, to netip.AddrPort) error {
	_, err := from.Ask(context.Background(), network, to, lab.DialOptions{Patience: 500 * time.Millisecond})
	return err
}

// damage takes a frontend out of a node's table behind its agent's back.
func (w *world) damage(node int) {
	w.t.Helper()
	w.must(w.Mounted(func() error {
		tables, err := bpf.OpenMaps(w.nodes[node].PinPath(), false)
		if err != nil {
			return err
		}
		defer tables.Close()
		var key bpf.NearlbFrontendKey
		if err := tables.Frontends.NextKey(nil, &key); err != nil {
			return err
		}
		return tables.Frontends.Delete(&key)
	}))
}

// nodePort is where the first node answers a Service.
func (w *world) nodePort(s service) netip.AddrPort {
	return netip.AddrPortFrom(w.nodes[0].V4, uint16(s.nodePort))
}
