// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/trace"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/tests/privileged"
)

// whyWorld is a Service as somebody wrote it, its endpoints, and a client of it. Drawn, nothing is wrong with it.
type whyWorld struct {
	kind        string // spec.type
	six         bool   // family of all
	ports       []string
	policies    map[string]string // fields of spec
	annotations map[string]string
	ranges      []string
	endpoints   []whyEndpoint
	portSuffix  string // of the endpoints' port names
	headless    bool
	absent      bool // there is no such Service

	door  trace.Door
	asked string // the port, as the client names it
	seen  seen   // what neither objects nor packets say
	late  func(*seen)
	fits  bool // the fault has a place in it
}

// whyEndpoint is one endpoint of all ports.
type whyEndpoint struct {
	node               string
	ready, terminating bool
}

var whyNodes = []struct{ name, zone string }{{"n1", "a"}, {"n2", "a"}, {"n3", "b"}}

func drawWhyWorld(t *rapid.T) *whyWorld {
	w := &whyWorld{
		kind: rapid.SampledFrom([]string{"ClusterIP", "NodePort", "LoadBalancer"}).Draw(t, "type"), six: rapid.Bool().Draw(t, "IPv6"),
		ports:    rapid.SampledFrom([][]string{{"http"}, {"http", "dns"}}).Draw(t, "ports"),
		policies: map[string]string{}, annotations: map[string]string{}, door: trace.FromPod,
	}
	if w.kind != "ClusterIP" && rapid.Bool().Draw(t, "from off the node") {
		w.door = trace.FromNetwork
	}
	if rapid.Bool().Draw(t, "prefers near") {
		w.annotations["nearlb.io/traffic-distribution"] = rapid.SampledFrom([]string{"PreferSameZone", "PreferSameNode"}).Draw(t, "distribution")
	}
	if rapid.Bool().Draw(t, "names a port") {
		w.asked = rapid.SampledFrom(w.ports).Draw(t, "port")
	}
	w.endpoints = append(w.endpoints, whyEndpoint{"n1", true, false}) // so that nothing is wrong, whatever the policies
	for range rapid.IntRange(0, 4).Draw(t, "more endpoints") {
		w.endpoints = append(w.endpoints, whyEndpoint{rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"), rapid.Bool().Draw(t, "ready"), rapid.Bool().Draw(t, "terminating")})
	}
	for _, policy := range []string{"internalTrafficPolicy", "externalTrafficPolicy"} {
		if (policy == "internalTrafficPolicy" || w.kind != "ClusterIP") && rapid.IntRange(0, 3).Draw(t, policy) == 0 {
			w.policies[policy] = "Local"
		}
	}
	return w
}

// pick is the address of a family.
func (w *whyWorld) pick(four, six string) string {
	if w.six {
		return six
	}
	return four
}

// objects are the world's, as YAML.
func (w *whyWorld) objects() string {
	var out strings.Builder
	for _, n := range whyNodes {
		fmt.Fprintf(&out, "apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n---\n",
			n.name, n.zone, w.pick("192.0.2."+n.name[1:], "2001:db8::"+n.name[1:]))
	}
	w.writeService(&out)
	w.writeSlice(&out)
	return out.String()
}

func (w *whyWorld) writeService(out *strings.Builder) {
	if w.absent {
		return
	}
	address := w.pick("10.96.0.10", "fd96::10")
	if w.headless {
		address = "None"
	}
	fmt.Fprintf(out, "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: prod\n  annotations: {made: by-test")
	for _, key := range slices.Sorted(maps.Keys(w.annotations)) {
		fmt.Fprintf(out, ", %s: %q", key, w.annotations[key])
	}
	fmt.Fprintf(out, "}\nspec:\n  type: %s\n  clusterIP: %q\n  clusterIPs: [%q]\n  ipFamilies: [%s]\n", w.kind, address, address, w.pick("IPv4", "IPv6"))
	for _, key := range slices.Sorted(maps.Keys(w.policies)) {
		fmt.Fprintf(out, "  %s: %s\n", key, w.policies[key])
	}
	if len(w.ranges) > 0 {
		fmt.Fprintf(out, "  loadBalancerSourceRanges: [%s]\n", strings.Join(w.ranges, ", "))
	}
	fmt.Fprintln(out, "  ports:")
	for i, name := range w.ports {
		fmt.Fprintf(out, "  - {name: %s, port: %d, protocol: %s", name, 80+i, whyProtocol(name))
		if w.kind != "ClusterIP" {
			fmt.Fprintf(out, ", nodePort: %d", 30080+i)
		}
		fmt.Fprintln(out, "}")
	}
	if w.kind == "LoadBalancer" {
		fmt.Fprintf(out, "status: {loadBalancer: {ingress: [{ip: %q}]}}\n", w.pick("203.0.113.9", "2001:db8:9::9"))
	}
	fmt.Fprintln(out, "---")
}

func whyProtocol(port string) string {
	if port == "dns" {
		return "UDP"
	}
	return "TCP"
}

func (w *whyWorld) writeSlice(out *strings.Builder) {
	fmt.Fprintf(out, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: prod, labels: {kubernetes.io/service-name: web}}\naddressType: %s\nports:\n",
		w.pick("IPv4", "IPv6"))
	for i, name := range w.ports {
		fmt.Fprintf(out, "- {name: %s, port: %d, protocol: %s}\n", name+w.portSuffix, 8080+i, whyProtocol(name))
	}
	fmt.Fprintln(out, "endpoints:")
	for i, e := range w.endpoints {
		fmt.Fprintf(out, "- {addresses: [%q], nodeName: %s, conditions: {ready: %v, serving: %v, terminating: %v}}\n",
			w.pick(fmt.Sprintf("10.244.%s.%d", e.node[1:], 10+i), fmt.Sprintf("fd24:%s::%d", e.node[1:], 10+i)), e.node, e.ready && !e.terminating, e.ready, e.terminating)
	}
}

// whyFaults are what may be wrong, by the cause that is to be named first. A fault that a world has no place for says so.
var whyFaults = []struct {
	cause string
	plant func(*whyWorld, *rapid.T) bool
}{
	{"nothing-wrong", func(*whyWorld, *rapid.T) bool { return true }},
	{"agent-dead", func(w *whyWorld, t *rapid.T) bool {
		how := rapid.IntRange(0, 2).Draw(t, "how the agent is dead")
		w.late = func(s *seen) {
			switch how {
			case 0:
				s.status, s.unknown = nil, errors.New("no agent status")
			case 1:
				s.status.Running = false
			default:
				s.status.Stale = true
			}
			s.answered, s.news = false, agent.ServiceNews{}
		}
		return true
	}},
	{"agent-starting", func(w *whyWorld, _ *rapid.T) bool {
		w.late = func(s *seen) { s.status.State = agent.Starting }
		return true
	}},
	{"publication-failed", func(w *whyWorld, _ *rapid.T) bool {
		w.late = func(s *seen) {
			s.status.Failing = []agent.FailingService{{Service: s.service, Error: "table slots is full"}}
		}
		return true
	}},
	{"no-such-service", func(w *whyWorld, t *rapid.T) bool {
		if w.absent = rapid.Bool().Draw(t, "absent"); !w.absent {
			w.headless, w.kind, w.policies, w.door = true, "ClusterIP", map[string]string{}, trace.FromPod
		}
		return true
	}},
	{"unknown-port", func(w *whyWorld, t *rapid.T) bool {
		w.asked = rapid.SampledFrom([]string{"https", "8443"}).Draw(t, "no such port")
		return true
	}},
	{"endpoints-not-ready", func(w *whyWorld, _ *rapid.T) bool {
		for i := range w.endpoints {
			w.endpoints[i].ready, w.endpoints[i].terminating = false, false
		}
		return len(w.policies) == 0
	}},
	{"no-endpoints", func(w *whyWorld, _ *rapid.T) bool {
		w.endpoints = nil
		return len(w.policies) == 0
	}},
	{"endpoints-of-other-ports", func(w *whyWorld, _ *rapid.T) bool {
		w.portSuffix = "-x"
		return len(w.policies) == 0
	}},
	{"no-local-endpoints", func(w *whyWorld, t *rapid.T) bool {
		w.policies = map[string]string{"internalTrafficPolicy": "Local"}
		if w.door == trace.FromNetwork {
			w.policies = map[string]string{"externalTrafficPolicy": "Local"}
		}
		w.endpoints = slices.DeleteFunc(w.endpoints, func(e whyEndpoint) bool { return e.node == "n1" })
		w.endpoints = append(w.endpoints, whyEndpoint{rapid.SampledFrom([]string{"n2", "n3"}).Draw(t, "where it is"), true, false})
		return true
	}},
	{"source-ranges", func(w *whyWorld, _ *rapid.T) bool {
		w.ranges = []string{w.pick("203.0.113.0/24", "2001:db8:77::/48")}
		w.policies = map[string]string{}
		return w.kind == "LoadBalancer" && w.door == trace.FromNetwork
	}},
	{"no-topology-match", func(w *whyWorld, _ *rapid.T) bool {
		w.policies, w.annotations = map[string]string{}, map[string]string{"nearlb.io/topology-keys": "kubernetes.io/hostname"}
		for i := range w.endpoints {
			w.endpoints[i] = whyEndpoint{"n3", true, false}
		}
		return true
	}},
	{"backends-do-not-answer", func(w *whyWorld, t *rapid.T) bool { return w.fail(t, func(r *failure) { r.unanswered = 3 }) }},
	{"backends-refuse", func(w *whyWorld, t *rapid.T) bool { return w.fail(t, func(r *failure) { r.refused = 3 }) }},
	{"backends-ejected", func(w *whyWorld, t *rapid.T) bool {
		return w.fail(t, func(r *failure) { r.unanswered, r.ejected = 3, true })
	}},
	{"wrong-annotation", func(w *whyWorld, t *rapid.T) bool {
		wrong := rapid.SampledFrom([][2]string{{"nearlb.io/local-fallback", "perhaps"}, {"nearlb.io/ejection", "sometimes"}, {"nearlb.io/traffic-distributon", "PreferSameZone"},
			{"nearlb.io/overflow", "much"}, {"nearlb.io/slow-start", "a while"}}).Draw(t, "wrong annotation")
		w.annotations[wrong[0]] = wrong[1]
		return true
	}},
	{"dropped-before", func(w *whyWorld, t *rapid.T) bool {
		reason := rapid.SampledFrom([]string{"no-endpoints", "no-port-left", "no-route"}).Draw(t, "reason")
		w.seen.drops = []journal.Drop{{Time: whyNow.Add(-time.Minute), Verdict: "drop", Reason: reason, Service: "prod/web"}}
		return true
	}},
}

var whyNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// failure is what the flow table and the health table say of the backend on this node, which new connections may get.
type failure struct {
	refused, unanswered uint64
	ejected             bool
}

func (w *whyWorld) fail(t *rapid.T, how func(*failure)) bool {
	var f failure
	how(&f)
	reply := rapid.Int64Range(0, 500).Draw(t, "last reply")
	w.late = func(s *seen) {
		for i := range s.backends {
			b := &s.backends[i]
			if len(b.Lists) == 0 || !s.wantsPort(b.Port) {
				continue
			}
			b.Refused, b.Unanswered, b.LastReplySeconds = f.refused, f.unanswered, &reply
			if f.ejected {
				b.EjectedUntil, b.EjectedBecause = "2026-01-02T03:05:05Z", "no answer to 3 connections of one client, nor to this node"
			}
		}
	}
	return true
}

// look is what nearlb why gathers of the world: the objects are read and decided upon as an agent does, and the packets go through the programs.
func (w *whyWorld) look(t *testing.T, tracer *trace.Tracer) *seen {
	source, err := watch.Load([]string{"-"}, strings.NewReader(w.objects()), watch.NodeConfig{Name: "n1"}, func(string) {})
	if err != nil {
		t.Fatalf("%v in\n%s", err, w.objects())
	}
	if _, err := tracer.Publish(command.Decisions(source), configuration(source)); err != nil {
		t.Fatal(err)
	}
	s := &w.seen
	s.now, s.port, s.answered = whyNow, w.asked, true
	s.status = &agent.Status{State: agent.Serving, Running: true, Written: whyNow, Node: agent.NodeStatus{Name: "n1", Zone: "a"}}
	if err := s.find(tracer.Reader(), "prod/web"); err != nil {
		t.Fatal(err)
	}
	s.news.Problems = slices.DeleteFunc(source.Problems(), func(p lb.Problem) bool { return p.Object != "Service prod/web" })
	var in lb.Input
	if in, s.news.Known = source.Input(s.service); s.news.Known {
		decision := decide.Decide(in, source.Node())
		s.news.Endpoints, s.news.Problems = decision.Endpoints, append(s.news.Problems, decision.Problems...)
	}
	client := w.pick("10.244.1.7", "fd24:1::7")
	if w.door == trace.FromNetwork {
		client = w.pick("198.51.100.7", "2001:db8:51::7")
	}
	s.client = client
	if err := s.tryBy(tracer, []netip.Addr{netip.MustParseAddr(client)}, []trace.Door{w.door}); err != nil {
		t.Fatal(err)
	}
	if w.late != nil {
		w.late(s)
	}
	return s
}

// planted is how many faults are planted: make fuzz wants a thousand.
var planted = flag.Int("planted", 100, "faults to plant for nearlb why")

// G1: whatever the Service and its client, the cause that was planted is the first one that is named.
func TestAPlantedFaultIsTheFirstCauseThatIsNamed(t *testing.T) {
	privileged.Require(t)
	tracer, err := trace.Private(bpf.Sizes{Frontends: 256, Records: 256, Slots: 1 << 16, Backends: 256, Services: 64, Names: 256, SourceRanges: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	seed := 0
	if os.Getenv("RAPID_SEED") == "0" {
		seed = int(time.Now().UnixNano() % 1e9)
		t.Logf("worlds from %d on", seed)
	}
	for i, found := 0, 0; found < *planted; i++ {
		fault := whyFaults[i%len(whyFaults)]
		w := rapid.Custom(func(t *rapid.T) *whyWorld {
			w := drawWhyWorld(t)
			w.fits = fault.plant(w, t)
			return w
		}).Example(seed + i)
		if !w.fits {
			continue
		}
		found++
		doc := diagnose(w.look(t, tracer))
		if first := doc.Causes[0]; first.What != fault.cause {
			t.Errorf("world %d: %s was planted, and %s is named first: %+v\n%+v\nof\n%s", seed+i, fault.cause, first.What, doc.Causes, doc.Tries, w.objects())
		}
	}
}
