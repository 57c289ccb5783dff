// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/apifaults"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// outages is a cluster whose control plane is about to fail, and clients on two nodes that use a Service all the time. The agent
// of n1 logs in with a certificate, which is good whatever the storage holds, that of n2 with its token, through a proxy.
type outages struct {
	*rig.Cluster
	t       *testing.T
	nodes   []*rig.Node
	clients []rig.Host
	web     *rig.Service
	at      rig.At
	load    *rig.Load
	faults  *apifaults.Server
	wire    *apifaults.Listener
	login   []string // kubeconfig by node
}

func newOutages(t *testing.T) *outages {
	o := &outages{Cluster: rig.New(t, rig.Options{Refusals: true, Breath: 200 * time.Millisecond}), t: t}
	o.startProxy()
	certificate, err := o.Plane.Certify("system:kube-proxy")
	must(t, err)
	token, err := o.Plane.Login(t.Context(), "kube-system", "nearlb")
	must(t, err)
	o.login = []string{certificate, o.throughProxy(token)}
	for i := range 2 {
		o.nodes = append(o.nodes, o.NewNode(rig.NodeOptions{NodeOptions: lab.NodeOptions{Zone: "a"}, NoAgent: true}))
		o.clients = append(o.clients, o.Client(i, "client"))
	}
	return o
}

// impatient agents notice a frozen server in seconds, not in 45, and do not give one up that the machine leaves no time for.
var impatient = []string{"NEARLB_TEST_RUN_CLI=1", "HTTP2_READ_IDLE_TIMEOUT_SECONDS=2", "HTTP2_PING_TIMEOUT_SECONDS=5"}

// startAgent runs the agent of a node, again if it was killed, and waits until it serves.
func (o *outages) startAgent(node int, flags ...string) {
	o.t.Helper()
	o.launchAgent(node, flags...)
	o.Await(o.nodes[node].Name+" serves", func() bool { return o.serves(node) })
}

// launchAgent is startAgent without the wait.
func (o *outages) launchAgent(node int, flags ...string) {
	o.t.Helper()
	n := o.nodes[node]
	var err error
	n.Agent, err = n.Node.StartAgent(lab.AgentOptions{
		Command: []string{"/proc/self/exe", "agent"}, Args: flags, Env: impatient, Kubeconfig: o.login[node]})
	must(o.t, err)
}

// serves tells whether the agent that runs says that it serves.
func (o *outages) serves(node int) bool {
	s := o.status(node)
	return s.PID == o.nodes[node].Agent.PID() && s.State == agent.Serving
}

// settled waits until the agent of a node says that it has published all that it knows: the word about backends that are chosen no
// more is its last, and clients see nothing of it.
func (o *outages) settled(node int) {
	o.t.Helper()
	from := time.Now()
	o.Await(o.nodes[node].Name+" has published everything", func() bool {
		s := o.status(node)
		return o.serves(node) && s.Written.After(from) && s.Dirty == 0
	})
}

// startProxy stands on the control plane's host in front of the API server, with its certificate.
func (o *outages) startProxy() {
	o.t.Helper()
	config := o.Plane.Config()
	target, err := url.Parse(o.Plane.URL())
	must(o.t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{DialContext: config.Dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	var listener net.Listener
	must(o.t, o.Plane.Host.Do(func() (err error) {
		listener, err = net.Listen("tcp", o.proxyAddress().String())
		return err
	}))
	o.wire, o.faults = apifaults.Wrap(listener), &apifaults.Server{Next: proxy}
	file := func(name string) string { return filepath.Join(o.Plane.Dir, name) }
	server := &http.Server{Handler: o.faults, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(o.wire, file("apiserver.crt"), file("apiserver.key")) }()
	o.t.Cleanup(func() { _ = server.Close() })
}

func (o *outages) proxyAddress() netip.AddrPort { return netip.AddrPortFrom(o.Plane.Host.V4, 6444) }

func (o *outages) throughProxy(kubeconfig string) string {
	o.t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	must(o.t, err)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + o.proxyAddress().String()
	}
	must(o.t, clientcmd.WriteToFile(*config, kubeconfig+".proxy"))
	return kubeconfig + ".proxy"
}

func (o *outages) status(node int) agent.Status {
	s, _ := agent.ReadStatus(o.LockDir(), o.nodes[node].PinPath()) // none yet is as good as an empty one
	return s
}

// blind tells whether the agent says that it cannot read objects.
func (o *outages) blind(node int) bool {
	return strings.Contains(strings.Join(o.status(node).Trouble, "\n"), "objects cannot be read from the API server")
}

// said counts lines of the nodes' logs, of all agents that ran there.
func (o *outages) said(text string) (counts []int) {
	o.t.Helper()
	for i := range o.nodes {
		counts = append(counts, o.saidOn(i, text))
	}
	return counts
}

func (o *outages) saidOn(node int, text string) int {
	o.t.Helper()
	log, err := os.ReadFile(o.nodes[node].Agent.Log)
	must(o.t, err)
	return strings.Count(string(log), text)
}

// followed waits until both nodes choose from these pods.
func (o *outages) followed(pods ...*rig.Pod) {
	o.t.Helper()
	for _, client := range o.clients {
		o.AwaitServers(client, o.at, rig.Ways(), pods...)
	}
	o.load.Round()
}

// dumps are the tables of the nodes.
func (o *outages) dumps() (out []string) {
	for _, n := range o.nodes {
		out = append(out, o.Dump(o.t, n))
	}
	return out
}

func (o *outages) unchanged(when string, before []string) {
	o.t.Helper()
	for i := range o.nodes {
		o.unchangedOn(i, when, before[i])
	}
}

func (o *outages) unchangedOn(node int, when, before string) {
	o.t.Helper()
	if now := o.Dump(o.t, o.nodes[node]); now != before {
		o.t.Errorf("%s: the tables of %s are others:\n%s\nbefore:\n%s", when, o.nodes[node].Name, now, before)
	}
}

const (
	outageSaid   = "objects cannot be read from the API server: those known stay in force"
	recoverySaid = "objects can be read from the API server again"
)

// Whatever the API server does, no connection is lost, no table is touched meanwhile, and what changed is followed afterwards. It waits for
// minutes: by its file's name it runs before the cluster of the others, which would cost something all the time.
func TestTheAPIServerMayFailAsItLikesWhileConnectionsGoOn(t *testing.T) {
	o := newOutages(t)
	one, two, three := o.Server("web", "one", 0), o.Server("web", "two", 1), o.Server("web", "three", 1)
	o.startAgent(0)
	o.web = o.Service("web", nil)
	o.at = o.web.OnClusterIP()
	o.web.AwaitChoiceOf(o.nodes[0], one, two, three)
	o.isPartlyListedAtFirst()
	for _, client := range o.clients {
		o.AwaitServers(client, o.at, rig.Ways(), one, two, three)
	}
	o.load = o.StartLoad(o.at, rig.Ways(), o.clients...)
	o.load.Round()

	o.isKilled()
	three.SetReady(false)
	o.followed(one, two)
	o.isFrozen()
	three.SetReady(true)
	o.followed(one, two, three)
	there := true
	for name, f := range map[string]behind{
		"slow":        {fault: apifaults.Slowly(time.Second)},
		"429":         {fault: apifaults.Answer(429, "TooManyRequests", time.Second), deaf: true},
		"503":         {fault: apifaults.Answer(503, "ServiceUnavailable", 0), deaf: true},
		"cut answers": {fault: apifaults.Cut(1000)}, // an event may be shorter
	} {
		there = !there
		o.isBehind(name, f, func() { three.SetReady(there) })
		if there {
			o.followed(one, two, three)
		} else {
			o.followed(one, two)
		}
	}
	o.isPartlyListed(func() {
		three.SetReady(false)
		o.web.AwaitChoiceOf(o.nodes[0], one, two)
	})
	o.followed(one, two)
	three.SetReady(true)
	o.followed(one, two, three)
	o.isEmptied()
	three.SetReady(false)
	o.followed(one, two)
	o.load.End()
}

// isKilled: gone for a minute, and back with a history that nobody can go on from.
func (o *outages) isKilled() {
	o.t.Helper()
	before, said, ended := o.dumps(), o.said(outageSaid), o.said(recoverySaid)
	must(o.t, o.Plane.APIServer.Kill())
	since := time.Now()
	for i := range o.nodes {
		o.Await("an outage", func() bool { return o.blind(i) })
	}
	compactEtcd(o.t, o.Cluster)
	o.load.Round()
	for time.Since(since) < time.Minute {
		o.load.Round()
	}
	o.unchanged("without an API server", before)
	for i, now := range o.said(outageSaid) {
		// There is nobody, whatever is tried. Of what was under way the proxy says another thing than of what it cannot pass on.
		if times, most := now-said[i], 1+i; times < 1 || times > most {
			o.t.Errorf("%s said %d times that it cannot read objects, want once or %d times", o.nodes[i].Name, times, most)
		}
	}
	must(o.t, o.Plane.StartAPIServer(o.t.Context()))
	for i := range o.nodes {
		o.Await("the end of the outage", func() bool { return !o.blind(i) })
		// A server that starts refuses in several ways, as what it does not know the role for yet, and each is another thing to say.
		times, again := o.saidOn(i, outageSaid)-said[i], o.saidOn(i, recoverySaid)-ended[i]
		if again < 1 || again > times {
			o.t.Errorf("%s said %d times that it cannot read objects, and %d times that it can", o.nodes[i].Name, times, again)
		}
	}
	o.load.Round()
	o.unchanged("after the lists", before)
}

// isFrozen: it holds its connections and says nothing.
func (o *outages) isFrozen() {
	o.t.Helper()
	must(o.t, syscall.Kill(o.Plane.APIServer.PID(), syscall.SIGSTOP))
	o.Await("an outage", func() bool { return o.blind(0) })
	o.load.Round()
	must(o.t, syscall.Kill(o.Plane.APIServer.PID(), syscall.SIGCONT))
	o.Await("the end of the outage", func() bool { return !o.blind(0) && !o.blind(1) })
}

// behind is a fault of the proxy of n2; deaf: nothing that the API server says gets through.
type behind struct {
	fault apifaults.Fault
	deaf  bool
}

// isBehind: the proxy of n2 has a fault when something changes.
func (o *outages) isBehind(name string, f behind, change func()) {
	o.t.Helper()
	o.t.Log("fault: " + name)
	o.settled(1)
	before := o.Dump(o.t, o.nodes[1])
	o.faults.Set(f.fault)
	o.wire.Reset()
	change()
	o.Await(name+": requests", func() bool { return o.faults.Asked() >= 4 })
	o.load.Round()
	if f.deaf {
		o.unchangedOn(1, name, before)
	}
	o.faults.Set(nil)
}

// isPartlyListedAtFirst: the first agent of n2 is told everything but endpoints, and makes no tables until it is told these.
func (o *outages) isPartlyListedAtFirst() {
	o.t.Helper()
	o.withoutSlices(1, func() {}, func() {
		if rows := o.rows(1); rows >= 0 {
			o.t.Errorf("a node whose agent was told only a part has tables, with %d frontends and backends", rows)
		}
		for _, w := range rig.Ways() {
			if seen := rig.Seen(o.clients[1], w, o.at(w.Six), 1); !strings.HasPrefix(seen, "(") {
				o.t.Errorf("a client of this node is answered over %s by %s", w, seen)
			}
		}
	})
}

// isPartlyListed: the agent of n2 is killed, and the next one is told everything but endpoints for a while, in which these change.
func (o *outages) isPartlyListed(change func()) {
	o.t.Helper()
	o.settled(1)
	before := o.Dump(o.t, o.nodes[1])
	must(o.t, o.nodes[1].Agent.Kill())
	o.withoutSlices(1, change, func() {
		o.load.Round()
		o.unchangedOn(1, "with a part of the lists", before)
	})
}

// withoutSlices starts an agent behind the proxy and does something; when the agent has asked for EndpointSlices several times in
// vain, it is judged. Then it is told.
func (o *outages) withoutSlices(node int, do, judge func()) {
	o.t.Helper()
	var refused atomic.Int32
	slices := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/endpointslices") }
	refuse := apifaults.Answer(500, "InternalError", 0)
	o.faults.Set(apifaults.Only(slices, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		refused.Add(1)
		refuse(w, r, next)
	}))
	o.launchAgent(node)
	do()
	o.Await("requests for slices", func() bool { return refused.Load() >= 3 })
	judge()
	if o.serves(node) {
		o.t.Errorf("%s serves and was never told of any endpoints", o.nodes[node].Name)
	}
	o.faults.Set(nil)
	o.Await(o.nodes[node].Name+" serves", func() bool { return o.serves(node) })
}

// rows are the frontends and backends in the tables of a node; -1: it has no tables.
func (o *outages) rows(node int) int {
	rows := -1
	err := o.Read(o.nodes[node], func(r *maps.Reader) error {
		rows = 0
		for _, err := range r.Frontends() {
			if err != nil {
				return err
			}
			rows++
		}
		for _, err := range r.Backends() {
			if err != nil {
				return err
			}
			rows++
		}
		return nil
	})
	must(o.t, err)
	return rows
}

// isEmptied: it lists nothing for a while, and then what it had, in versions that are of the past. An agent that starts meanwhile leaves the
// tables as they are, until the grace is over.
func (o *outages) isEmptied() {
	o.t.Helper()
	third := o.thirdNode()
	before := o.dumps()
	backup := o.swapEtcd("")
	o.Await("n1 holds what is missing", func() bool { h := o.status(0).Held; return h.Services > 0 && h.Nodes == 1 }) // of the Nodes it reads its own
	o.Await("n2 is refused", func() bool { return o.blind(1) })                                                       // its ServiceAccount is gone
	o.saysHeld(0, "1 Services, the endpoints of 0 others and 1 Nodes")
	o.load.Round()
	o.unchanged("with an empty API server", before)
	o.isEmptyFromTheStart(before[0])
	o.isEmptyForGood(third)
	o.swapEtcd(backup)
	must(o.t, o.Plane.StartControllers(o.t.Context()))
	o.Await("the objects are back", func() bool { return !o.status(0).Held.Any() && !o.blind(1) })
	o.load.Round()
	o.unchanged("after the objects came back", before)
	if text := o.run(0, "status"); strings.Contains(text, "\nheld ") {
		o.t.Errorf("after the objects came back nearlb status says:\n%s", text)
	}
}

// saysHeld waits until nearlb status says that so much is held, and until when. What the API server makes by itself when it
// starts, as its own Service, is missing for a moment.
func (o *outages) saysHeld(node int, what string) {
	o.t.Helper()
	var text, row string
	err := lab.Await(rig.Patience, func() bool {
		row = fmt.Sprintf("\nheld      %s, which the API server suddenly lists no more; what is missing still is removed at %s\n",
			what, o.status(node).Held.Until.UTC().Format(time.RFC3339))
		text = o.run(node, "status")
		return strings.Contains(text, row)
	})
	if err != nil {
		o.t.Fatalf("nearlb status says %s, want the row %s: %v", text, row, err)
	}
}

// run runs nearlb on a node and gives what it says.
func (o *outages) run(node int, command string) string {
	o.t.Helper()
	n := o.nodes[node]
	p, err := n.Start("command", []string{"/proc/self/exe", command, "--pin-path", n.PinPath(), "--lock-dir", o.LockDir()}, "NEARLB_TEST_RUN_CLI=1")
	must(o.t, err)
	defer os.Remove(p.Log)
	<-p.Ended()
	text, err := os.ReadFile(p.Log)
	must(o.t, err)
	return string(text)
}

// isEmptyFromTheStart: the next agent of n1 holds what the tables have.
func (o *outages) isEmptyFromTheStart(before string) {
	o.t.Helper()
	must(o.t, o.nodes[0].Agent.Kill())
	o.startAgent(0)
	o.Await("n1 holds what is missing", func() bool { return o.status(0).Held.Services > 0 })
	o.saysHeld(0, "1 Services, the endpoints of 0 others and 0 Nodes")
	o.load.Round()
	o.unchangedOn(0, "with an API server that is empty from the start", before)
}

// thirdNode is one without clients, whose agent has followed and was killed.
func (o *outages) thirdNode() *rig.Node {
	o.t.Helper()
	n := o.NewNode(rig.NodeOptions{NodeOptions: lab.NodeOptions{Zone: "a"}})
	o.Await(n.Name+" has the Service", func() bool { return o.has(n) })
	must(o.t, n.Agent.Kill())
	n.Agent = nil
	return n
}

// has tells whether the tables of a node have the Service.
func (o *outages) has(n *rig.Node) bool {
	return strings.Contains(o.Dump(o.t, n), o.at(false).Addr().String())
}

// isEmptyForGood: the third node's next agent has little patience.
func (o *outages) isEmptyForGood(third *rig.Node) {
	o.t.Helper()
	if !o.has(third) {
		o.t.Error("the third node's tables have lost the Service without an agent")
	}
	certified, err := third.Node.StartAgent(lab.AgentOptions{Command: []string{"/proc/self/exe", "agent"}, Args: []string{"--mass-deletion-grace=2s"},
		Env: impatient, Kubeconfig: o.login[0]})
	must(o.t, err)
	o.Await("the Service is gone", func() bool { return !o.has(third) })
	must(o.t, certified.Kill())
}

// swapEtcd has the control plane start over other storage, and gives what it had. The controllers, whose caches are of another
// history, are ended.
func (o *outages) swapEtcd(with string) (backup string) {
	o.t.Helper()
	data := filepath.Join(o.Plane.Dir, "etcd", "data")
	backup = filepath.Join(o.Plane.Dir, "etcd", "backup")
	must(o.t, o.Plane.Controllers.Kill())
	must(o.t, o.Plane.APIServer.Kill())
	must(o.t, o.Plane.Etcd.Kill())
	// The storage is in the lab's own mounts.
	must(o.t, o.Mounted(func() error {
		if with != "" {
			return errors.Join(os.RemoveAll(data), os.Rename(with, data))
		}
		return errors.Join(os.RemoveAll(backup), os.Rename(data, backup))
	}))
	must(o.t, o.Plane.StartEtcd(o.t.Context()))
	must(o.t, o.Plane.StartAPIServer(o.t.Context()))
	return backup
}
