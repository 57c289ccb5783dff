// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
)

// publisher is what the loop writes to: *maps.Tables. Configuring apart, one goroutine uses it.
type publisher interface {
	Config() (maps.Config, error)
	Configure(maps.Config) error
	Apply(lb.Decision) (maps.Stats, error)
	Remove(lb.ServiceName) (maps.Stats, error)
	Published() []lb.ServiceName
	Problems() []lb.Problem
	Reclaim(now time.Time) int
	Audit(repair bool) ([]maps.Drift, error)
}

// Back-off of what failed. The longest is shorter than staleAfter: a Service that fails again and again is no sign of an
// agent that hangs.
const (
	retryFirst   = 200 * time.Millisecond
	retryLongest = 30 * time.Second
)

// loopOptions are the loop's part of Options.
type loopOptions struct {
	loopback4, loopback6               netip.Addr
	auditEvery, reclaimEvery, debounce time.Duration
	namespace                          uint64 // cookie of the host's network namespace
	snatPorts                          maps.PortRange
	nodeConfig                         watch.NodeConfig
	nodeChanged                        func() // told when the node's addresses may have changed; may be nil
	checks                             checks
}

// checks are the health check node ports: *health.Servers.
type checks interface {
	Set(name lb.ServiceName, port uint16, endpoints health.Endpoints)
	Lower(name lb.ServiceName, port uint16, endpoints health.Endpoints)
	Remove(name lb.ServiceName)
}

// loop takes what changed from a queue and publishes it, one Service at a time, in one goroutine. It implements
// watch.Events.
type loop struct {
	loopOptions
	source  watch.Source
	tables  publisher
	metrics *metrics.Metrics
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[task]
	*progress
	network network

	left      chan struct{}                // gets something when UDP clients may have been left with a backend that serves no more
	triggered map[lb.ServiceName]time.Time // changes handed out by the source and not published yet
}

// task is an item of the queue.
type task struct {
	kind    taskKind
	service lb.ServiceName // of publish
}

type taskKind int

const (
	publish    taskKind = iota // one Service
	everything                 // put every Service into the queue, those that only the tables have included
	configure                  // what every program is told
	audit
	reclaim
)

func newLoop(source watch.Source, tables publisher, m *metrics.Metrics, log *slog.Logger, o loopOptions) *loop {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[task](retryFirst, retryLongest)
	return &loop{
		loopOptions: o,
		source:      source,
		tables:      tables,
		metrics:     m,
		log:         log,
		queue:       workqueue.NewTypedRateLimitingQueue(limiter),
		progress:    newProgress(),
		left:        make(chan struct{}, 1),
		triggered:   map[lb.ServiceName]time.Time{},
		network:     network{minds: map[lb.ServiceName]bool{}},
	}
}

// ServiceChanged puts the Service into the queue: at once, or, if it was published a moment ago, when the debounce time is
// over.
func (l *loop) ServiceChanged(name lb.ServiceName) {
	l.queue.AddAfter(task{publish, name}, l.mark(name, l.debounce))
}

// NodeChanged has the programs told what does not belong to one Service, once the first publication is complete, which ends with that.
func (l *loop) NodeChanged() {
	l.network.forget()
	if l.done() {
		l.queue.Add(task{kind: configure})
	}
	if l.nodeChanged != nil {
		l.nodeChanged()
	}
}

// Synced starts the loop. What there is to do is in the queue before the loop begins, so that it does the same whoever is faster.
func (l *loop) Synced() {
	l.queue.Add(task{kind: everything})
	l.NodeChanged()
	l.startedListing()
}

// run publishes until ctx ends. It writes nothing before everything was listed once.
func (l *loop) run(ctx context.Context) error {
	defer l.queue.ShutDown()
	select {
	case <-ctx.Done():
		return nil
	case <-l.listed:
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { l.every(ctx, l.auditEvery, audit); return nil })
	group.Go(func() error { l.every(ctx, l.reclaimEvery, reclaim); return nil })
	group.Go(func() error { <-ctx.Done(); l.queue.ShutDown(); return nil })
	group.Go(func() error { l.work(ctx); return nil })
	return group.Wait()
}

// every puts a task into the queue again and again.
func (l *loop) every(ctx context.Context, d time.Duration, kind taskKind) {
	ticker := time.NewTicker(d)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.queue.Add(task{kind: kind})
		}
	}
}

func (l *loop) work(ctx context.Context) {
	for {
		t, stopped := l.queue.Get()
		if stopped || ctx.Err() != nil {
			return
		}
		if err := l.do(t); err != nil {
			l.queue.AddRateLimited(t)
		} else {
			l.queue.Forget(t)
		}
		l.queue.Done(t)
	}
}

func (l *loop) do(t task) error {
	switch t.kind {
	case publish:
		return l.publish(t.service)
	case everything:
		l.enqueueAll()
	case configure:
		return l.configure()
	case audit:
		return l.audit()
	case reclaim:
		if l.tables.Reclaim(time.Now()) > 0 {
			l.retry()
		}
	}
	return nil
}

// retryAtOnce is how many Services are tried before their back-off ends: a few seconds' work next to changes of others.
const retryAtOnce = 100

// retry has Services that found a table full tried again at once, as something was freed.
func (l *loop) retry() {
	for _, name := range l.short(retryAtOnce) {
		l.queue.Add(task{publish, name})
	}
}

// enqueueAll marks every Service there is, and every one that the tables still have.
func (l *loop) enqueueAll() {
	names := append(l.source.Services(), l.tables.Published()...)
	if l.begin(names) {
		l.firstDone()
	}
	for _, name := range names {
		l.mark(name, 0)
		l.queue.Add(task{publish, name})
	}
}

// firstDone goes on from the first complete publication: only now may the programs be told which addresses are Services'
// and drop the others.
func (l *loop) firstDone() {
	l.log.Info("published all services", "services", len(l.tables.Published()))
	l.queue.Add(task{kind: configure})
	l.queue.Add(task{kind: audit})
	l.leave() // while no agent ran, backends may have stopped serving
}

func (l *loop) leave() {
	select {
	case l.left <- struct{}{}:
	default:
	}
}

// publish brings one Service's part of the tables up to date, if it is marked.
func (l *loop) publish(name lb.ServiceName) error {
	version, marked := l.start(name)
	if !marked {
		return nil
	}
	began := time.Now()
	outcome, err := l.serve(name)
	result := l.finish(name, version, outcome, err)
	l.say(name, result, err)
	if result.first {
		l.firstDone()
	}
	if leavesClients(result.old, result.new) {
		l.leave()
	}
	if err != nil {
		l.metrics.Failed(cause(err))
		return err
	}
	l.metrics.Published(time.Since(began), outcome.stats)
	l.programmed(name)
	if result.caughtUp {
		l.metrics.Synced(time.Now())
	}
	return nil
}

// say logs what is news: a failure once, its end, and what changed.
func (l *loop) say(name lb.ServiceName, r result, err error) {
	switch {
	case err != nil && r.news:
		l.log.Error("publish service", "service", name.String(), "error", err)
	case err != nil:
		l.log.Debug("publish service", "service", name.String(), "error", err)
	case r.recovered:
		l.log.Info("published service again", "service", name.String())
	case l.log.Enabled(context.Background(), slog.LevelDebug):
		l.log.Debug("published service", "service", name.String(), "change", r.change().String())
	}
}

// serve decides and writes. Without the Service in the source, it is removed, unless the source holds that.
func (l *loop) serve(name lb.ServiceName) (outcome, error) {
	if l.source.Holds(name) {
		return outcome{held: true}, nil
	}
	in, exists := l.source.Input(name)
	if !exists {
		delete(l.triggered, name)
		l.checks.Remove(name)
		l.noteMinding(name, false)
		stats, err := l.tables.Remove(name)
		return outcome{stats: stats}, err
	}
	l.pending(name, in.Triggered)
	l.noteMinding(name, mindsHost(in.Service))
	node := l.node()
	decision := decide.Decide(in, node)
	decision.Problems = append(decision.Problems, l.portProblems(in.Service)...)
	stats, err := l.tables.Apply(decision)
	l.check(in, node, err == nil)
	return outcome{exists: true, decision: decision, stats: stats}, err
}

// check tells what the Service's health check node port answers now. Only a load balancer's Service with traffic policy Local has
// one: all nodes are alike for the others.
func (l *loop) check(in lb.Input, node lb.Node, published bool) {
	s := in.Service
	if s.HealthCheckPort == 0 || s.Type != lb.TypeLoadBalancer || s.External != lb.PolicyLocal {
		l.checks.Remove(s.Name)
		return
	}
	v4, served4 := decide.LocalReady(in, node, true)
	v6, served6 := decide.LocalReady(in, node, false)
	switch { // a Service of one family is asked for on the addresses of both
	case !served4:
		v4 = v6
	case !served6:
		v6 = v4
	}
	if published {
		l.checks.Set(s.Name, s.HealthCheckPort, health.Endpoints{V4: v4, V6: v6})
	} else {
		l.checks.Lower(s.Name, s.HealthCheckPort, health.Endpoints{V4: v4, V6: v6})
	}
}

// pending keeps the oldest change that is not published yet: the source hands each out once, and a publication may fail.
func (l *loop) pending(name lb.ServiceName, at time.Time) {
	if old := l.triggered[name]; old.IsZero() || !at.IsZero() && at.Before(old) {
		l.triggered[name] = at
	}
}

// programmed measures how long the endpoints' change took to get here. Changes before the start, of unknown time, or from a
// clock ahead of ours say nothing.
func (l *loop) programmed(name lb.ServiceName) {
	at := l.triggered[name]
	delete(l.triggered, name)
	if at.IsZero() || at.Before(l.started) {
		return
	}
	if latency := time.Since(at); latency >= 0 {
		l.metrics.Programmed(latency)
	}
}

// tableFull is the cause that goes by itself when something is freed.
const tableFull = "table_full"

// cause is one of a few words, for a metric's label.
func cause(err error) string {
	var full *maps.FullError
	if errors.As(err, &full) {
		return tableFull
	}
	return "kernel"
}

// configure tells the programs what does not belong to one Service.
func (l *loop) configure() error {
	l.network.configuring.Lock()
	defer l.network.configuring.Unlock()
	c, err := l.config()
	if err == nil {
		err = l.tables.Configure(c)
	}
	if l.trouble("configure programs", err) {
		l.log.Error("configure programs", "error", err)
	}
	return err
}

// audit compares the live tables with what was published and repairs them.
func (l *loop) audit() error {
	found, err := l.tables.Audit(true)
	for _, d := range found {
		l.log.Warn("repaired table", "map", d.Table, "entry", d.Entry, "problem", d.Problem, "repaired", d.Repaired)
	}
	if l.trouble("audit tables", err) {
		l.log.Error("audit tables", "error", err)
	}
	if err == nil {
		l.metrics.Audited(time.Now(), found)
		l.audited(len(found))
	}
	return err
}
