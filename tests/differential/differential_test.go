// SPDX-License-Identifier: Apache-2.0

// Package differential compares what the real BPF programs do to packets, by the library behind `nearlb trace`, with a small
// model: for random worlds, from a pod, the node and the network, to every frontend and beside it. -rapid.checks=N sets the
// number of worlds, -rapid.seed=N repeats what a failure printed.
package differential

import (
	"bytes"
	"cmp"
	"flag"
	"net/netip"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/trace"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/tests/privileged"
	"github.com/nearlb/nearlb/tests/worlds"
)

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "300"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// everywhere is what some packets meet at every door, by verdict and reason.
var everywhere = []string{"translate balance", "reject no-endpoints", "reject unknown-port", "drop no-local-endpoints", "drop source-range",
	"drop unallocated", "pass not-service"}

func TestProgramsDoWhatTheModelSaysFromAPod(t *testing.T) {
	compareMany(t, trace.FromPod, append([]string{"translate hairpin"}, everywhere...))
}

func TestProgramsDoWhatTheModelSaysFromTheNode(t *testing.T) {
	compareMany(t, trace.FromHost, everywhere)
}

func TestProgramsDoWhatTheModelSaysFromTheNetwork(t *testing.T) {
	compareMany(t, trace.FromNetwork, append([]string{"drop no-source"}, everywhere...))
}

// compareMany makes worlds until all are done or a packet fares otherwise, and sees that all of forms were met.
func compareMany(t *testing.T, from trace.Door, forms []string) {
	privileged.Require(t)
	tracer, err := trace.Private(bpf.Sizes{Backends: 1 << 12, Services: 1 << 12})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	met := map[string]bool{}
	worlds.Check(t, false, func(t *rapid.T, w worlds.World) {
		publish(t, tracer, w)
		m := newModel(w)
		for _, packet := range m.packets(t, from) {
			for _, o := range m.check(t, tracer, packet) {
				met[o.form()] = true
			}
		}
	})
	for _, form := range forms {
		if !met[form] {
			t.Errorf("no packet met %q: the worlds are too much alike", form)
		}
	}
}

// publish decides the world as an agent would and puts it into the tables.
func publish(t *rapid.T, tracer *trace.Tracer, w worlds.World) {
	cfg := watch.NodeConfig{Name: worlds.Self, NodePortAddresses: w.NodePortAddresses, ServiceCIDRs: serviceCIDRs}
	source, err := watch.Load([]string{"-"}, bytes.NewReader(w.Text()), cfg, nil)
	if err != nil {
		t.Fatalf("read the world: %v\n%v", err, w)
	}
	var decisions []lb.Decision
	for _, name := range source.Services() {
		in, _ := source.Input(name)
		decisions = append(decisions, decide.Decide(in, source.Node()))
	}
	config := maps.Config{ServiceCIDRs: source.ServiceCIDRs(), SNATPorts: maps.DefaultSNATPorts()}
	if _, err := tracer.Publish(decisions, config.WithNode(source.Node())); err != nil {
		t.Fatalf("publish the world: %v\n%v", err, w)
	}
}

// packets go to every frontend that TCP or UDP may use, and to some that only look like one.
func (m *model) packets(t *rapid.T, from trace.Door) []first {
	var targets []target
	for known, f := range m.doors {
		targets = append(targets, known)
		other := known
		other.address = netip.AddrPortFrom(known.address.Addr(), 9)
		targets = append(targets, other)
		if from == trace.FromHost && f.kind == nodePort {
			targets = append(targets, m.loopback(known))
		}
	}
	targets = append(targets, target{netip.MustParseAddrPort("10.96.0.99:80"), corev1.ProtocolTCP},
		target{netip.MustParseAddrPort("[2001:db8:96::99]:80"), corev1.ProtocolUDP},
		target{netip.MustParseAddrPort("198.18.0.9:80"), corev1.ProtocolTCP})
	targets = slices.DeleteFunc(targets, func(t target) bool { return t.protocol == corev1.ProtocolSCTP })
	slices.SortFunc(targets, func(a, b target) int {
		return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.protocol, b.protocol))
	})
	var out []first
	for _, to := range slices.Compact(targets) {
		out = append(out, first{from: from, src: m.client(t, from, to), target: to})
	}
	return out
}

func (m *model) loopback(t target) target {
	loopback := netip.IPv6Loopback()
	if t.address.Addr().Is4() {
		loopback = netip.MustParseAddr("127.0.0.1")
	}
	t.address = netip.AddrPortFrom(loopback, t.address.Port())
	return t
}

// client draws who sends the packet: some are in source ranges, one has a load balancer's address, a pod may be an endpoint.
func (m *model) client(t *rapid.T, from trace.Door, to target) netip.Addr {
	v4 := to.address.Addr().Is4()
	texts := []string{"10.1.9.9", "10.7.7.7", "172.16.0.9", "203.0.113.9", "192.0.2.77"}
	if !v4 {
		texts = []string{"2001:db8:1::99", "2001:db8:5::9", "2001:db8:9::9", "2001:db8:2::77"}
	}
	clients := addrs(texts)
	if f, ok := m.doors[to]; ok && from == trace.FromPod {
		for _, e := range m.endpoints(f) {
			clients = append(clients, e.address.Addr())
		}
	}
	if own := m.own(v4); own.IsValid() && from == trace.FromHost {
		clients = []netip.Addr{own, clients[0]}
	}
	return rapid.SampledFrom(clients).Draw(t, "client")
}
