// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
)

// scripted is a source whose objects the test sets.
type scripted struct {
	mu     sync.Mutex
	inputs map[lb.ServiceName]lb.Input
	held   map[lb.ServiceName]bool
	node   lb.Node
	nodes  map[string][]netip.Addr
	cidrs  []netip.Prefix
}

func newScripted() *scripted {
	return &scripted{inputs: map[lb.ServiceName]lb.Input{},
		node: lb.Node{Name: "n1", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
}

func (s *scripted) Run(ctx context.Context, ev watch.Events) error {
	ev.Synced()
	<-ctx.Done()
	return nil
}

func (s *scripted) Input(name lb.ServiceName) (lb.Input, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, found := s.inputs[name]
	handed := in
	in.Triggered = time.Time{} // handed out once
	if found {
		s.inputs[name] = in
	}
	return handed, found
}

func (s *scripted) Services() []lb.ServiceName {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []lb.ServiceName{}
	for name := range s.inputs {
		names = append(names, name)
	}
	slices.SortFunc(names, lb.ServiceName.Compare)
	return names
}

func (s *scripted) Node() lb.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

func (s *scripted) NodeEligible() bool { return true }

func (s *scripted) Nodes() map[string][]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes
}

func (s *scripted) ServiceCIDRs() []netip.Prefix { return s.cidrs }
func (s *scripted) Problems() []lb.Problem       { return nil }
func (s *scripted) Guard(watch.Guard)            {}
func (s *scripted) Announce([]watch.Trouble)     {}
func (s *scripted) Health() watch.Health         { return watch.Health{} }

func (s *scripted) Holds(name lb.ServiceName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[name]
}

// set gives a Service as many ready endpoints, on nodes n1, n2 ...; the address is made of its number.
func (s *scripted) set(number, endpoints int) lb.ServiceName {
	in := input(number, endpoints)
	s.put(in)
	return in.Service.Name
}

func (s *scripted) put(in lb.Input) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inputs[in.Service.Name] = in
}

func (s *scripted) remove(name lb.ServiceName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inputs, name)
}

func input(number, endpoints int) lb.Input {
	in := lb.Input{Service: lb.Service{
		Name:       serviceName(number),
		Type:       lb.TypeClusterIP,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(number >> 8), byte(number)})},
		Ports:      []lb.ServicePort{{Name: "http", Protocol: lb.TCP, Port: 80}},
		Internal:   lb.PolicyCluster, External: lb.PolicyCluster,
	}}
	for i := range endpoints {
		in.Endpoints = append(in.Endpoints, lb.Endpoint{
			Port:    lb.PortKey{Name: "http", Protocol: lb.TCP},
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + i/250), byte(number), byte(i%250 + 1)}), 8080),
			Ready:   true, Serving: true, Node: fmt.Sprintf("n%d", i+1), Slice: "s",
		})
	}
	return in
}

func serviceName(number int) lb.ServiceName {
	return lb.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", number)}
}

// witnessed are fake tables that note who asked for what, and fail when told to.
type witnessed struct {
	*maps.Tables
	mu      sync.Mutex
	calls   []string
	fail    map[lb.ServiceName]error
	block   chan struct{} // Apply waits for it, when there is one
	drift   []maps.Drift
	between atomic.Pointer[func()] // called between two tables of an audit
	config  []maps.Config
	again   []lb.ServiceName // that the next Reclaim finds
	applied map[lb.ServiceName]lb.Decision

	settling func() // called by Settle; may be nil
	swept    atomic.Int32
	tunneled atomic.Int32 // connections through the tunnel that walks find
}

// Sweep is Tables' in three pieces.
func (w *witnessed) Sweep() (tunneled int, more bool) {
	w.Tables.Sweep()
	return int(w.tunneled.Load()), w.swept.Add(1)%3 != 0
}

func (w *witnessed) Settle() {
	if w.settling != nil {
		w.settling()
	}
	w.Tables.Settle()
}

// Again is Tables', and what the test wants found.
func (w *witnessed) Again() []lb.ServiceName {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := append(w.again, w.Tables.Again()...)
	w.again = nil
	return found
}

var testSizes = bpf.Sizes{Frontends: 1024, Records: 1024, Slots: 1 << 16, Backends: 4096, FlowSets: 8, Affinity: 64,
	Fragments: 64, SourceRanges: 64, Services: 512, Names: 2048}

func newWitnessed() *witnessed {
	return &witnessed{Tables: maps.NewFake(testSizes), fail: map[lb.ServiceName]error{}, applied: map[lb.ServiceName]lb.Decision{}}
}

func (w *witnessed) note(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

// taken are the calls since the last question.
func (w *witnessed) taken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.calls
	w.calls = nil
	return calls
}

func (w *witnessed) failure(name lb.ServiceName) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fail[name]
}

func (w *witnessed) setFailure(name lb.ServiceName, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail[name] = err
}

func (w *witnessed) Apply(d lb.Decision) (maps.Stats, error) {
	w.note("apply " + d.Service.Name)
	if w.block != nil {
		<-w.block
	}
	if err := w.failure(d.Service); err != nil {
		return maps.Stats{}, err
	}
	w.mu.Lock()
	w.applied[d.Service] = d
	w.mu.Unlock()
	return w.Tables.Apply(d)
}

func (w *witnessed) Remove(name lb.ServiceName) (maps.Stats, error) {
	w.note("remove " + name.Name)
	if err := w.failure(name); err != nil {
		return maps.Stats{}, err
	}
	return w.Tables.Remove(name)
}

func (w *witnessed) Configure(c maps.Config) error {
	w.note("configure")
	w.config = append(w.config, c)
	return w.Tables.Configure(c)
}

func (w *witnessed) AuditSteps(repair bool) iter.Seq2[[]maps.Drift, error] {
	return func(yield func([]maps.Drift, error) bool) {
		w.note("audit")
		drift := w.drift
		for _, err := range w.Tables.AuditSteps(repair) {
			if !yield(drift, err) {
				return
			}
			drift = nil
			if between := w.between.Load(); between != nil {
				(*between)()
			}
		}
	}
}

func (w *witnessed) Reclaim(now time.Time) int {
	w.note("reclaim")
	return w.Tables.Reclaim(now)
}

// bench is a loop at work in a bubble of fake time.
type bench struct {
	*testing.T
	*loop
	source *scripted
	tables *witnessed
	asked  asked
	stop   func() // ends the loop and waits for it
}

const (
	testAudit    = 30 * time.Minute
	testReclaim  = 5 * time.Second
	testDebounce = 100 * time.Millisecond
)

// inBubble runs a loop that has not been told Synced yet.
func inBubble(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newScripted(), newWitnessed())
		test(b)
		b.stop()
	})
}

func newBench(t *testing.T, source *scripted, tables *witnessed) *bench {
	asked := asked{}
	l := newLoop(source, tables, metrics.New("test"), newDiary(), slog.New(slog.DiscardHandler),
		loopOptions{auditEvery: testAudit, reclaimEvery: testReclaim, debounce: testDebounce, checks: asked})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return &bench{T: t, loop: l, source: source, tables: tables, asked: asked, stop: stop}
}

// settle lets everything happen that needs no more time.
func (b *bench) settle() { synctest.Wait() }

// after lets time go by.
func (b *bench) after(d time.Duration) { time.Sleep(d); synctest.Wait() }

// want compares the calls since the last question, reclaims left out.
func (b *bench) want(calls ...string) {
	b.Helper()
	got := slices.DeleteFunc(b.tables.taken(), func(c string) bool { return c == "reclaim" })
	if !slices.Equal(got, calls) {
		b.Errorf("the tables saw %q, want %q", got, calls)
	}
}

// status is what describe says.
func (b *bench) status() Status {
	var s Status
	b.describe(&s)
	return s
}

func dump(t testing.TB, tables *witnessed) string {
	t.Helper()
	var out strings.Builder
	if err := tables.Dump(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
