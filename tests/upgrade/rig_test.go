// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
)

const (
	servicePort = 80
	nodePort    = 30080
	targetPort  = 8080
	// patience is how long a change may take: long, so that only what never comes is a failure. An upgrade loads two sets of programs, which
	// takes the verifier seconds of a processor that dozens of others may want.
	patience = 5 * time.Minute
)

// rig is a cluster of two nodes, of which the first changes its agent. Packets for its Services' addresses come to it.
type rig struct {
	*lab.Lab
	t         *testing.T
	flags     []string
	here      *lab.Node
	there     *lab.Node
	pod       *lab.Pod
	outside   *lab.Outside
	near, far *lab.Pod // servers here and there
	agent     *lab.Process
	container *container // that the agents here run in; nil: they run as root, with all that this machine has
}

func newRig(t *testing.T, flags ...string) *rig {
	t.Helper()
	privileged.Require(t)
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Lab: l, t: t, flags: flags}
	t.Cleanup(r.end)
	r.here, r.there = r.node("n1", "a"), r.node("n2", "b")
	r.pod, r.near, r.far = r.addPod(r.here, "pod"), r.server(r.here, "near"), r.server(r.there, "far")
	r.outside, err = r.AddOutside(lab.OutsideOptions{Name: "outside"})
	r.must(err)
	r.must(r.here.Sysctl("ipv4/ip_local_port_range=10000 29999")) // below --snat-ports
	r.must(r.here.Attract(netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("fd96::/64")))
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) node(name, zone string) *lab.Node {
	r.t.Helper()
	n, err := r.AddNode(lab.NodeOptions{Name: name, Zone: zone})
	r.must(err)
	r.must(r.Manifests.Write("node-"+name+".yaml", n.Object()))
	return n
}

func (r *rig) addPod(n *lab.Node, name string) *lab.Pod {
	r.t.Helper()
	p, err := n.AddPod(name)
	r.must(err)
	return p
}

func (r *rig) server(n *lab.Node, name string) *lab.Pod {
	r.t.Helper()
	p := r.addPod(n, name)
	_, err := p.Serve(targetPort)
	r.must(err)
	return p
}

// dropped are the packets that our layout's programs dropped here, by verdict.
func (r *rig) dropped() map[string]uint64 {
	found := map[string]uint64{}
	err := r.Mounted(func() error {
		tables, err := bpf.OpenMaps(r.pins(), true)
		if err != nil {
			return err
		}
		defer tables.Close()
		reader, err := maps.NewReader(tables)
		if err != nil {
			return err
		}
		for row, err := range reader.Verdicts() {
			if err != nil {
				return err
			}
			if row.Verdict == string(bpf.Drop) {
				found[row.Hook+" "+row.Reason] += row.Packets
			}
		}
		return nil
	})
	if err != nil {
		found[err.Error()] = 1
	}
	return found
}

func (r *rig) end() {
	if r.t.Failed() {
		r.t.Logf("dropped: %v", r.dropped())
		logs.Show(r.t, r.Dir)
	}
	if err := r.Close(); err != nil {
		r.t.Error(err)
	}
}

// start runs an agent on a node. It returns before the agent serves.
func (r *rig) start(n *lab.Node, of layout, flags ...string) *lab.Process {
	r.t.Helper()
	flags = slices.Concat(flags, r.flags, []string{"--snat-ports", "40000-65535"})
	if r.container != nil && n == r.here {
		p, err := r.container.start(n, of, flags)
		r.must(err)
		return p
	}
	program, err := of.command()
	r.must(err)
	p, err := n.StartAgent(lab.AgentOptions{Command: []string{program, "agent"}, Args: flags, Env: []string{runAsCLI + "=1"}})
	r.must(err)
	return p
}

// pins is where the agents here pin.
func (r *rig) pins() string {
	if r.container != nil {
		return r.container.pins()
	}
	return r.here.PinPath()
}

// status is that of the agent here.
func (r *rig) status() (agent.Status, error) {
	if r.container != nil {
		return r.container.status()
	}
	return agent.ReadStatus(r.LockDir(), r.here.PinPath())
}

// become kills the agent here and starts one of that layout, and waits until it has come to the end of whatever its start has
// to do.
func (r *rig) become(of layout, flags ...string) {
	r.t.Helper()
	if r.agent != nil {
		r.must(r.agent.Kill())
	}
	r.agent = r.start(r.here, of, flags...)
	r.awaitSettled(of)
}

// awaitSettled waits for an agent that has published everything and is alone.
func (r *rig) awaitSettled(of layout) {
	r.t.Helper()
	var seen string
	err := lab.Await(patience, func() bool {
		select {
		case <-r.agent.Ended():
			r.t.Fatalf("the agent of layout %s has ended", of.name)
		default:
		}
		status, err := r.status()
		generations := strings.Join(r.generations(), " ")
		seen = fmt.Sprintf("%s; %v %s", generations, err, status.State)
		return err == nil && status.PID == r.agent.PID() && status.State == agent.Serving && !status.LastSync.IsZero() && generations == of.name
	})
	if err != nil {
		r.t.Fatalf("an agent alone with layout %s: %v; last seen: %s", of.name, err, seen)
	}
}

// alone tells whether there are tables of that layout and of no other.
func (r *rig) alone(of layout) bool { return strings.Join(r.generations(), " ") == of.name }

// awaitPods waits until the agent has its programs on the devices of these pods.
func (r *rig) awaitPods(pods ...*lab.Pod) {
	r.t.Helper()
	err := lab.Await(patience, func() bool {
		status, err := r.status()
		programs := map[string]int{}
		for _, row := range status.Devices {
			if row.Error == "" && row.Method != "" {
				programs[row.Device]++
			}
		}
		return err == nil && status.PID == r.agent.PID() && !slices.ContainsFunc(pods, func(p *lab.Pod) bool { return programs[p.Device] != 2 })
	})
	if err != nil {
		r.t.Fatalf("programs on the devices of %v: %v", pods, err)
	}
}

// generations are the directories of tables under the pin path of the first node.
func (r *rig) generations() []string {
	var names []string
	_ = r.Mounted(func() error {
		entries, err := os.ReadDir(r.pins())
		for _, e := range entries {
			if strings.Contains(e.Name(), "v") {
				names = append(names, e.Name())
			}
		}
		return err
	})
	return names
}

// host is who asks: a pod, a node, or a host outside.
type host interface {
	Dial(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (*lab.Conn, error)
	Ask(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (lab.Answer, error)
	String() string
}

// way is a protocol and a family.
type way struct {
	network string
	six     bool
}

func ways() []way { return []way{{"tcp", false}, {"udp", false}, {"tcp", true}, {"udp", true}} }

// service is a Service by number, which its addresses have.
func service(number int) lab.Service {
	return lab.Service{
		Name:       fmt.Sprintf("service-%d", number),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(number)}), netip.MustParseAddr(fmt.Sprintf("fd96::%x", number))},
		Ports: []lab.Port{{Name: "tcp", Protocol: "TCP", Port: servicePort, NodePort: nodePort + uint16(number)},
			{Name: "udp", Protocol: "UDP", Port: servicePort, NodePort: nodePort + uint16(number)}},
	}
}

func (r *rig) publish(s lab.Service, pods ...*lab.Pod) {
	r.t.Helper()
	written := lab.Slices{Service: s.Name, Ports: []lab.Port{{Name: "tcp", Protocol: "TCP", Port: targetPort}, {Name: "udp", Protocol: "UDP", Port: targetPort}}}
	for _, p := range pods {
		written.Endpoints = append(written.Endpoints, lab.Endpoint{Pod: p})
	}
	r.must(r.Manifests.Write(s.Name+".yaml", append(written.Objects(), s)...))
}

// address is where a client asks: those in the cluster at the ClusterIP, those outside at the node's port.
func (r *rig) address(s lab.Service, client host, w way) netip.AddrPort {
	if client == host(r.outside) {
		return netip.AddrPortFrom(r.here.Address(w.six), s.Ports[0].NodePort)
	}
	if w.six {
		return netip.AddrPortFrom(s.ClusterIPs[1], servicePort)
	}
	return netip.AddrPortFrom(s.ClusterIPs[0], servicePort)
}

func (r *rig) clients() []host { return []host{r.pod, r.here, r.outside} }

// awaitServers waits until new connections of everybody are answered by these and none other.
func (r *rig) awaitServers(s lab.Service, names ...string) {
	r.t.Helper()
	for _, client := range r.clients() {
		for _, w := range ways() {
			seen, wrong := map[string]bool{}, 0
			err := lab.Await(patience, func() bool {
				answer, err := client.Ask(context.Background(), w.network, r.address(s, client, w), lab.DialOptions{Patience: time.Second})
				if err != nil || !strings.Contains(" "+strings.Join(names, " ")+" ", " "+answer.Server+" ") {
					seen, wrong = map[string]bool{}, wrong+1
					return false
				}
				seen[answer.Server] = true
				return len(seen) == len(names)
			})
			if err != nil {
				r.t.Fatalf("%s asks %s %v: answered by %v, wants %v: %v", client, s.Name, w, seen, names, err)
			}
		}
	}
}

// held is a connection that is to go on as it began.
type held struct {
	*lab.Conn
	name   string
	answer lab.Answer
}

// hold opens a connection that this server answers.
func (r *rig) hold(s lab.Service, client host, w way, server string) *held {
	r.t.Helper()
	for range 200 {
		conn, err := client.Dial(context.Background(), w.network, r.address(s, client, w), lab.DialOptions{})
		r.must(err)
		answer, err := conn.Who()
		r.must(err)
		if answer.Server == server {
			r.t.Cleanup(func() { _ = conn.Close() })
			return &held{conn, fmt.Sprintf("%s to %s by %v", client, server, w), answer}
		}
		_ = conn.Close()
	}
	r.t.Fatalf("%s is never answered by %s", client, server)
	return nil
}

// same asks again: by the same server, which sees the same client.
func (h *held) same() error {
	answer, err := h.Who()
	if err == nil && answer != h.answer {
		err = fmt.Errorf("answered %+v, was %+v", answer, h.answer)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	return nil
}
