// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/kube"
	"github.com/nearlb/nearlb/tests/cluster/workload/client"
)

// A day in minutes: `make soak` asks for it, by a time.
//
// Pods scale, roll and die, Services change, nodes are drained, come and go, agents, kubelets and containerds are ended, while connections are held and made from pods,
// nodes and outside. None may be lost or refused, and in the end each node's books are what they were before.
func TestADayInMinutesLosesNothingAndLeavesNothing(t *testing.T) {
	wanted(t, "NEARLB_SOAK", "make soak")
	length, err := time.ParseDuration(os.Getenv("NEARLB_SOAK"))
	must(t, err)
	s := start(t, kube.PointToPoint)
	s.install()
	s.serve()
	s.kubectl("apply", "-f", "testdata/soak.yaml")
	s.kubectl("rollout", "status", "deployment/shop", limit)
	makers := newMakers(s)
	day := &day{smoke: s, chance: rand.New(rand.NewPCG(1, 1))}
	day.each() // once before the books are opened: what comes with the first change stays
	before := day.rest()
	day.until(time.Now().Add(length))
	after := day.restLike(before)
	s.awaitAnswers()
	makers.end(day.away)
	day.compare(before, after)
}

// day is what happens to a cluster.
type day struct {
	*smoke
	chance *rand.Rand
	counts [13]int // of each kind of event
	away   []span
}

// span is a time in which a node had no agent.
type span struct {
	node     string
	from, to time.Time
}

// events are its kinds.
func (d *day) events() []struct {
	what string
	do   func()
} {
	return []struct {
		what string
		do   func()
	}{
		{"scale", d.scale},
		{"roll", d.roll},
		{"end a pod", d.endPod},
		{"change a Service", d.change},
		{"end a Service and make it again", d.remake},
		{"kill an agent", d.killAgent},
		{"restart an agent's pod", d.restartAgent},
		{"evict an agent", d.evictAgent},
		{"drain a node", d.drain},
		{"starve agents of memory", d.starve},
		{"add a node and remove it", d.comeAndGo},
		{"restart a kubelet", func() { must(d.T, d.node().RestartKubelet()) }},
		{"restart a containerd", func() { must(d.T, d.node().RestartContainerd()) }},
	}
}

func (d *day) each() {
	for i := range d.counts {
		d.happen(i)
	}
}

func (d *day) until(end time.Time) {
	for time.Now().Before(end) && !d.Failed() {
		d.happen(d.chance.IntN(len(d.counts)))
	}
	for i, e := range d.events() {
		d.Logf("%4d times: %s", d.counts[i], e.what)
	}
}

func (d *day) happen(i int) {
	e := d.events()[i]
	d.counts[i]++
	d.Logf("%s: %s", time.Now().UTC().Format(time.TimeOnly), e.what)
	e.do()
	d.outside.goOn(d.T) // what is silent for three minutes is forgotten, of UDP
}

func (d *day) node() *kube.Node {
	n := d.Nodes[d.chance.IntN(len(d.Nodes))]
	d.Logf("%s: on %s", time.Now().UTC().Format(time.TimeOnly), n.Name)
	return n
}

func (d *day) scale() {
	d.kubectl("scale", "deployment/shop", fmt.Sprintf("--replicas=%d", 2+d.chance.IntN(6)))
	d.kubectl("rollout", "status", "deployment/shop", limit)
}

func (d *day) roll() {
	d.kubectl("rollout", "restart", "deployment/shop")
	d.kubectl("rollout", "status", "deployment/shop", limit)
}

func (d *day) endPod() {
	pods := strings.Fields(d.kubectl("get", "pods", "-l", "app=shop", "-o", "name"))
	d.kubectl("delete", "--wait=false", pods[d.chance.IntN(len(pods))])
	d.kubectl("rollout", "status", "deployment/shop", limit)
}

// drain has a node's pods made on others, but for those that hold connections, and lets it have pods again.
func (d *day) drain() {
	n := d.node()
	d.kubectl("drain", n.Name, "--ignore-daemonsets", "--pod-selector=app=shop", limit)
	d.kubectl("uncordon", n.Name)
	d.kubectl("rollout", "status", "deployment/shop", limit)
}

// change is one of what people change of a Service that is in use.
func (d *day) change() {
	patches := []string{
		`{"spec":{"type":"NodePort"}}`, `{"spec":{"type":"ClusterIP"}}`,
		`{"spec":{"sessionAffinity":"ClientIP"}}`, `{"spec":{"sessionAffinity":"None"}}`,
		`{"spec":{"trafficDistribution":"PreferSameZone"}}`, `{"spec":{"trafficDistribution":null}}`,
		`{"metadata":{"annotations":{"nearlb.io/slow-start":"5s"}}}`, `{"metadata":{"annotations":{"nearlb.io/slow-start":null}}}`,
		`{"metadata":{"annotations":{"nearlb.io/traffic-distribution":"PreferSameNode"}}}`, `{"metadata":{"annotations":{"nearlb.io/traffic-distribution":null}}}`,
	}
	d.kubectl("patch", "service", "kiosk", "--type=merge", "-p", patches[d.chance.IntN(len(patches))])
}

// remake ends a Service that nobody uses, and makes it again.
func (d *day) remake() {
	d.kubectl("create", "service", "nodeport", "passing", "--tcp=80:8080")
	d.kubectl("patch", "service", "passing", "--type=merge", "-p", `{"spec":{"selector":{"app":"shop"}}}`)
	d.kubectl("delete", "service", "passing")
}

// killAgent leaves the node without one for as long as its kubelet waits: longer, the more often it ended.
func (d *day) killAgent() {
	d.without(func(n *kube.Node) {
		_, err := n.Run(d.Context(), nil, "sh", "-c", "kill -9 $(pidof nearlb)")
		must(d.T, err)
	})
}

func (d *day) restartAgent() {
	d.without(func(n *kube.Node) { d.kubectl("-n", "kube-system", "delete", "pod", d.agent(n.Name)) })
}

// evictAgent has the API end an agent's pod, which no budget keeps.
func (d *day) evictAgent() {
	d.without(func(n *kube.Node) {
		pod := d.agent(n.Name)
		must(d.T, d.API.PolicyV1().Evictions("kube-system").Evict(d.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: pod}}))
		d.kubectl("-n", "kube-system", "wait", "--for=delete", "pod/"+pod, limit)
	})
}

// starve rolls agents out that have too little memory: the kernel kills the first one, on one node, and the rollout goes no further.
func (d *day) starve() {
	from, node := time.Now(), ""
	d.kubectl("-n", "kube-system", "set", "resources", "daemonset/nearlb", "-c", "agent", "--requests=memory=20Mi", "--limits=memory=20Mi")
	d.await("an agent that is killed for its memory", func() error {
		pods, err := d.API.CoreV1().Pods("kube-system").List(d.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nearlb"})
		if err != nil {
			return err
		}
		var states []string
		for _, p := range pods.Items {
			for _, c := range p.Status.ContainerStatuses {
				states = append(states, fmt.Sprintf("%s: %+v, before: %+v", p.Spec.NodeName, c.State, c.LastTerminationState))
				for _, ended := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
					if ended != nil && ended.Reason == "OOMKilled" {
						node = p.Spec.NodeName
						return nil
					}
				}
			}
		}
		return fmt.Errorf("%s", strings.Join(states, "\n"))
	})
	d.Logf("%s: on %s", time.Now().UTC().Format(time.TimeOnly), node)
	d.outside.goOn(d.T) // without an agent there
	d.kubectl("-n", "kube-system", "rollout", "undo", "daemonset/nearlb")
	d.awaitAgents()
	d.away = append(d.away, span{node, from, time.Now()})
}

// comeAndGo adds a node, which serves Services as the others do, drains it of what is in use, and takes it away.
func (d *day) comeAndGo() {
	n, err := d.AddNode(d.Context(), lab.NodeOptions{Name: "n4", Zone: "b"}, d.image("nearlb:latest"))
	must(d.T, err)
	d.awaitAgents()
	d.kubectl("rollout", "status", "daemonset/web", limit)
	d.awaitNodePorts(n)
	d.kubectl("drain", n.Name, "--ignore-daemonsets", "--pod-selector=app=shop", limit)
	must(d.T, d.RemoveNode(d.Context(), n))
	d.await("pods of a node that is gone", func() error {
		if left := d.kubectl("get", "pods", "-A", "--field-selector=spec.nodeName="+n.Name, "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// without ends a node's agent and waits for the next one.
func (d *day) without(end func(*kube.Node)) {
	n, from := d.node(), time.Now()
	end(n)
	d.awaitAgents()
	d.away = append(d.away, span{n.Name, from, time.Now()})
}

// agent is the pod of a node's agent.
func (d *day) agent(node string) string {
	return strings.TrimSpace(d.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=nearlb", "--field-selector=spec.nodeName="+node, "-o", "jsonpath={.items[*].metadata.name}"))
}

// books are what an agent and its tables have, by name.
type books map[string]int

// allowances are by how much an entry may be more than it was: pages that the runtime has not handed back, descriptors that a scrape has open.
var allowances = map[string]int{"memory, KiB": 24 << 10, "descriptors": 4}

// rest brings the cluster to the same state, and gives each node's books when nothing in them changes any more.
func (d *day) rest() map[string]books {
	d.outside.goOn(d.T)
	d.kubectl("scale", "deployment/shop", "--replicas=4")
	d.kubectl("patch", "service", "kiosk", "--type=merge", "-p",
		`{"metadata":{"annotations":null},"spec":{"type":"ClusterIP","sessionAffinity":"None","trafficDistribution":null}}`)
	d.kubectl("rollout", "status", "deployment/shop", limit)
	d.await("pods that end", func() error {
		pods := strings.Fields(d.kubectl("get", "pods", "-l", "app=shop", "-o", "name"))
		if len(pods) != 4 {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	d.kubectl("wait", "--for=condition=Ready", "nodes", "--all", limit)
	d.awaitAgents()
	all := map[string]books{}
	for _, n := range d.Nodes {
		d.await("the books of "+n.Name, func() error {
			now, err := d.open(n)
			if last := all[n.Name]; err == nil && !settled(last, now) {
				err = fmt.Errorf("they change: %v, %v", last, now)
			}
			all[n.Name] = now
			return err
		})
	}
	return all
}

// restLike is rest, once connections are forgotten whose backends have gone: as long as they are not, those keep their numbers.
func (d *day) restLike(before map[string]books) (after map[string]books) {
	d.await("what is kept for connections", func() error {
		after = d.rest()
		for _, n := range d.Nodes {
			if was, is := before[n.Name][backends], after[n.Name][backends]; is > was {
				return fmt.Errorf("%s has %d backends, %d before", n.Name, is, was)
			}
		}
		return nil
	})
	return after
}

// settled tells whether nothing differs but memory, descriptors and backends.
func settled(a, b books) bool {
	for name := range b {
		if allowances[name] == 0 && name != backends && a[name] != b[name] {
			return false
		}
	}
	return len(a) == len(b)
}

// backends has those that have gone and are still named by a connection, too.
const backends = "entries of backends"

// counted are the tables whose entries are of objects, not of traffic.
var counted = []string{"frontends", "records", "slots", "backends", "services", "names", "source_ranges"}

func (d *day) open(n *kube.Node) (books, error) {
	out, err := n.Run(d.Context(), nil, "sh", "-c", `find /sys/fs/bpf/nearlb -not -path '*/links*' | wc -l; for p in $(pidof nearlb); do ls /proc/$p/fd; done | wc -l
		for p in $(pidof nearlb); do grep RssAnon /proc/$p/status; done | awk '{ n += $2 } END { print n }' `)
	lines := strings.Fields(out)
	if err != nil || len(lines) < 3 {
		return nil, errors.Join(err, fmt.Errorf("%q", out))
	}
	all := books{}
	for i, name := range []string{"pins", "descriptors", "memory, KiB"} {
		if all[name], err = strconv.Atoi(lines[i]); err != nil {
			return nil, err
		}
	}
	text, err := d.scrape(n)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		table, rest, found := strings.Cut(strings.TrimPrefix(line, `nearlb_table_entries{table="`), `"} `)
		if !found || !strings.HasPrefix(line, "nearlb_table_entries") || !slices.Contains(counted, table) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if err != nil {
			return nil, err
		}
		all["entries of "+table] = int(value)
	}
	return all, nil
}

// scrape gives an agent's metrics.
func (d *day) scrape(n *kube.Node) (string, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = n.Do(func() error { conn, err = new(net.Dialer).DialContext(ctx, network, address); return err })
		return conn, err
	}}
	request, err := http.NewRequestWithContext(d.Context(), http.MethodGet, "http://127.0.0.1:10249/metrics", nil)
	must(d.T, err)
	response, err := (&http.Client{Transport: transport, Timeout: client.Attempt}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func (d *day) compare(before, after map[string]books) {
	for _, n := range d.Nodes {
		for name, was := range before[n.Name] {
			is := after[n.Name][name]
			d.Logf("%s: %s: %d before, %d after", n.Name, name, was, is)
			if is > was+allowances[name] || allowances[name] == 0 && name != backends && is != was {
				d.Errorf("%s: %s: %d before, %d after", n.Name, name, was, is)
			}
		}
	}
}

// makers make connections all day, from a pod, from a node, and, here, from outside.
type makers struct {
	*smoke
	stop   context.CancelFunc
	done   sync.WaitGroup
	made   int
	ports  client.Ports // from outside
	failed []failure    // from outside
}

// failure is a connection without an answer.
type failure struct {
	node  string // whose agent the connection was an affair of
	at    time.Time
	what  string // who made it, where to, and why it failed
	udp   bool
	known bool // its port was another connection's just before
}

// excuse: a datagram from a port that its client had a moment before goes where the one before went, as with kube-proxy's connection
// tracking, until somebody says that this backend has ended. While the node has no agent, nobody does. "": there is none.
func (f failure) excuse(away []span) string {
	switch {
	case f.known:
		return "from a port that it had just before"
	case f.udp && slices.ContainsFunc(away, func(s span) bool {
		return s.node == f.node && s.from.Before(f.at) && f.at.Add(-client.Attempt).Before(s.to)
	}):
		return "without an agent on " + f.node
	default:
		return ""
	}
}

func newMakers(s *smoke) *makers {
	ctx, cancel := context.WithCancel(s.Context())
	m := &makers{smoke: s, stop: cancel}
	s.Cleanup(m.halt)
	nodes := slices.Clone(s.Nodes) // others come and go
	m.done.Go(func() {
		for ctx.Err() == nil {
			for _, n := range nodes {
				for _, network := range []string{"tcp", "udp"} {
					for _, a := range []netip.Addr{n.V4, n.V6} {
						m.one(network, n.Name, netip.AddrPortFrom(a, 30090))
					}
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return m
}

func (m *makers) one(network, node string, to netip.AddrPort) {
	m.made++
	known, err := m.outside.makeOne(network, to, &m.ports)
	if err != nil {
		m.failed = append(m.failed, failure{node, time.Now(), fmt.Sprintf("from outside, %s %s: %v", network, to, err), network == "udp", known})
	}
}

// makeOne makes a connection, which any server may answer, and says whether its port was known from one before.
func (o *outside) makeOne(network string, to netip.AddrPort, ports *client.Ports) (known bool, err error) {
	conn, err := o.host.Dial(context.Background(), network, to, lab.DialOptions{Patience: client.Attempt})
	if err != nil {
		return false, err
	}
	c := client.New(conn.Conn)
	known = ports.Use(c, time.Now())
	_, asked := c.Ask(client.Attempt)
	return known, errors.Join(asked, c.Close())
}

// awaitNodePorts waits until a node serves the Service of the soak for clients from outside.
func (s *smoke) awaitNodePorts(n *kube.Node) {
	for _, network := range []string{"tcp", "udp"} {
		for _, a := range []netip.Addr{n.V4, n.V6} {
			s.await("from outside, "+network+" "+a.String(), func() error {
				_, err := s.outside.makeOne(network, netip.AddrPortFrom(a, 30090), &client.Ports{})
				return err
			})
		}
	}
}

func (m *makers) halt() {
	m.stop()
	m.done.Wait()
}

// end says how many were made, and which failed.
func (m *makers) end(away []span) {
	m.halt()
	m.Logf("from outside: %d connections", m.made)
	all := slices.Concat(m.failed, m.failedOf("make-from-pod", "n1"), m.failedOf("make-from-node", "n2"))
	for _, f := range all {
		at := f.at.UTC().Format(time.TimeOnly)
		if excuse := f.excuse(away); excuse != "" {
			m.Logf("%s: %s, no answer: %s", at, excuse, f.what)
		} else {
			m.Errorf("%s: no answer: %s", at, f.what)
		}
	}
}

// failedOf reads what a pod of a node says.
func (m *makers) failedOf(pod, node string) (all []failure) {
	log, err := m.API.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(m.Context())
	must(m.T, err)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	m.Logf("%s: %s", pod, lines[len(lines)-1])
	for _, line := range lines {
		text, found := strings.CutPrefix(line, "no answer ")
		if !found {
			continue
		}
		when, text, _ := strings.Cut(text, " ")
		port, what, _ := strings.Cut(text, " ")
		at, err := time.Parse(time.RFC3339, when)
		must(m.T, err)
		all = append(all, failure{node, at, pod + ", " + what, strings.HasPrefix(what, "udp"), port == client.KnownPort})
	}
	return all
}
