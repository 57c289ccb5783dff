// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/journal"
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
	Hold(lb.Decision) maps.Stats
	Published() []lb.ServiceName
	Problems() []lb.Problem
	Reclaim(now time.Time) int
	Again() []lb.ServiceName
	Waiting() bool
	Searching() bool
	Recount() (more bool)
	Sweep() (tunneled int, more bool)
	Settle()
	Note(on bool)
	AuditSteps(repair bool) iter.Seq2[[]maps.Drift, error]
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
	namespace                          uint64     // cookie of the host's network namespace
	offNode                            lb.OffNode // of Services that say nothing
	tunnelPort                         uint16     // 0: there is no tunnel
	peers                              *tunnelPeers
	leaving                            *leavingTunnel // the tunnel is there for its connections alone; nil: it is not, or there is none
	carriedOver                        func() bool    // no other tables have connections; nil where nobody asks
	snatPorts                          maps.PortRange
	snatWide                           bool // ports beyond these serve as well
	nodeConfig                         watch.NodeConfig
	nodeChanged                        func() // told when the node's addresses may have changed; may be nil
	checks                             checks
	names                              nameTables // nil: nobody answers names
	changes                            *changes   // nil: nobody is told
	warming                            *warming   // nil: this loop's own
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
	ways waysAsked
	loopOptions
	source  watch.Source
	named   watch.NameSource // nil: nobody answers names
	tables  publisher
	metrics *metrics.Metrics
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[task]
	*progress
	*diary
	network network
	passing shortcut

	full      chan string                  // gets the name of a table that had no room for a Service
	left      chan struct{}                // gets something when UDP clients may have been left with a backend that serves no more
	triggered map[lb.ServiceName]time.Time // changes handed out by the source and not published yet
	rest      []lb.ServiceName             // of everything: not in the queue yet
	auditing  auditing

	sweeping, sweepCounts bool          // of a tunnel that ends: a walk goes on, and counts
	leavingTold           atomic.Bool   // the programs know of it
	reclaiming            atomic.Bool   // a reclaim is in the queue
	memoryDue             chan struct{} // gets something when much work is over
	worked                int           // publications since then
}

// task is an item of the queue.
type task struct {
	kind    taskKind
	service lb.ServiceName // of publish and warm
}

type taskKind int

const (
	publish    taskKind = iota // one Service
	everything                 // put every Service into the queue, those that only the tables have included, a piece at a time
	configure                  // what every program is told
	audit
	reclaim
	recount
	sweep
	warm // one Service, whose endpoints that have become ready are due to more
)

func newLoop(source watch.Source, tables publisher, m *metrics.Metrics, j *diary, log *slog.Logger, o loopOptions) *loop {
	l := &loop{
		loopOptions: o,
		source:      source,
		tables:      tables,
		metrics:     m,
		log:         log,
		diary:       j,
		progress:    newProgress(j, allowance{o.debounce}, log.Enabled(context.Background(), slog.LevelDebug)),
		left:        make(chan struct{}, 1),
		memoryDue:   make(chan struct{}, 1),
		full:        make(chan string, 1),
		triggered:   map[lb.ServiceName]time.Time{},
		network:     network{minds: map[lb.ServiceName]bool{}},
	}
	if l.warming == nil {
		l.warming = newWarming()
	}
	if l.names != nil {
		l.named, _ = source.(watch.NameSource)
	}
	l.queue = newQueue(l.isLater)
	return l
}

// newQueue makes the loop's queue: two lanes, with back-off for what failed.
func newQueue(later func(task) bool) workqueue.TypedRateLimitingInterface[task] {
	inLanes := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[task]{Queue: newLanes(later)})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[task]{Queue: inLanes})
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[task](retryFirst, retryLongest)
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[task]{DelayingQueue: delaying})
}

// isLater tells whether a task belongs to the second lane (lanes.go), as no change of a Service waits for it.
func (l *loop) isLater(t task) bool {
	switch t.kind {
	case publish:
		return l.isBulk(t.service)
	case configure:
		return false
	}
	return true
}

// ServiceChanged puts the Service into the queue: at once, unless it changes so often that changes are gathered (allowance).
func (l *loop) ServiceChanged(name lb.ServiceName) {
	l.queue.AddAfter(task{publish, name}, l.mark(name, false))
}

// NodeChanged has the programs told what belongs to no single Service (configure). Before the first publication is complete nothing
// is told: its end does that.
func (l *loop) NodeChanged() {
	l.network.forget()
	l.tunnelChanged()
	if l.nodeChanged != nil {
		l.nodeChanged()
	}
}

// tunnelChanged has the programs told of it, once everything was published.
func (l *loop) tunnelChanged() {
	if l.done() {
		l.queue.Add(task{kind: configure})
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
	group.Go(func() error { l.every(ctx, recountEvery, recount); return nil })
	group.Go(func() error { l.every(ctx, sweepEvery, sweep); return nil })
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
	defer func() {
		l.tables.Settle()
		if l.auditing.stop != nil {
			l.auditing.stop()
		}
	}()
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
		l.reclaim()
	case recount:
		if l.tables.Recount() {
			l.queue.AddAfter(t, searchPause)
		}
	case sweep:
		tunneled, more := l.tables.Sweep()
		l.swept(tunneled, more)
		if more {
			l.queue.AddAfter(t, searchPause)
		}
	case warm:
		l.ServiceChanged(t.service)
	}
	return nil
}

// searchPause is the time between two pieces of a search of the tables of connections, each a millisecond or two: it is in no
// hurry.
const searchPause = 20 * time.Millisecond

// recountEvery is how often connections that have expired are counted out where a Service balances by them.
const recountEvery = 10 * time.Second

// sweepEvery is how often entries of connections that are over are looked for.
const sweepEvery = 30 * time.Second

// reclaimLater schedules a reclaim of what a change left behind.
func (l *loop) reclaimLater() { l.reclaimAfter(l.reclaimEvery) }

func (l *loop) reclaimAfter(d time.Duration) {
	if l.reclaiming.CompareAndSwap(false, true) {
		l.queue.AddAfter(task{kind: reclaim}, d)
	}
}

// reclaim frees what is unused by now. It schedules another run as long as something waits to be freed.
func (l *loop) reclaim() {
	l.reclaiming.Store(false)
	if l.tables.Reclaim(time.Now()) > 0 {
		l.retry()
	}
	for _, name := range l.tables.Again() {
		l.ServiceChanged(name)
	}
	switch {
	case l.tables.Searching():
		l.reclaimAfter(searchPause)
	case l.tables.Waiting():
		l.reclaimLater()
	}
}

// retryAtOnce is how many Services are tried before their back-off ends: a few seconds' work next to changes of others.
const retryAtOnce = 100

// retry publishes Services again that found a table full, without waiting for their back-off: something was freed.
func (l *loop) retry() {
	for _, name := range l.short(retryAtOnce) {
		l.queue.Add(task{publish, name})
	}
}

// piece is how many Services are put into the queue before what changed gets its turn.
const piece = 256

// enqueueAll marks every Service of the source, and every one that only the tables still have. It does one piece, and puts itself
// into the queue again for the rest.
func (l *loop) enqueueAll() {
	if l.rest == nil {
		var named []lb.ServiceName
		if l.named != nil {
			named = l.named.NamedServices()
		}
		l.rest = distinct(l.source.Services(), l.tables.Published(), named)
		if len(l.rest) == 0 {
			l.tables.Settle()
		}
		if l.begin(l.rest) {
			l.firstDone()
		}
	}
	names := l.rest[:min(piece, len(l.rest))]
	for _, name := range names {
		l.mark(name, true)
		l.queue.Add(task{publish, name})
	}
	if l.rest = l.rest[len(names):]; len(l.rest) > 0 {
		l.queue.Add(task{kind: everything})
	} else {
		l.rest = nil
	}
}

// distinct are the names of several lists, each once.
func distinct(lists ...[]lb.ServiceName) (all []lb.ServiceName) {
	seen := make(map[lb.ServiceName]struct{}, len(lists[0]))
	for _, list := range lists {
		for _, name := range list {
			if _, known := seen[name]; !known {
				seen[name] = struct{}{}
				all = append(all, name)
			}
		}
	}
	return all
}

// firstDone runs when the first publication is complete. Only now may the programs be told which addresses are those of Services:
// they drop packets to the others.
func (l *loop) firstDone() {
	services := len(l.tables.Published())
	l.log.Info("published all services", "services", services)
	l.tables.Note(l.changes != nil) // of tables that were empty nothing was told before
	l.changes.tell(journal.Change{What: "services-published", To: fmt.Sprint(services), Because: "everything was listed, and is in force"})
	l.queue.Add(task{kind: configure})
	l.queue.Add(task{kind: audit})
	l.worked = 0 // memory is handed back when that is over
	if l.names != nil {
		l.names.Synced()
	}
	l.leave() // while no agent ran, backends may have stopped serving
	l.reclaimLater()
}

// muchWork is how many publications leave memory behind that is worth handing back.
const muchWork = 1000

// handBack tells handBackMemory that nothing is left to do for now.
func (l *loop) handBack() {
	l.worked = 0
	select {
	case l.memoryDue <- struct{}{}:
	default:
	}
}

func (l *loop) leave() {
	select {
	case l.left <- struct{}{}:
	default:
	}
}

// configure tells the programs what does not belong to one Service.
func (l *loop) configure() error {
	l.network.configuring.Lock()
	defer l.network.configuring.Unlock()
	c, err := l.config()
	if err == nil {
		err = l.tables.Configure(c)
		l.leavingTold.Store(err == nil && c.Tunnel.Leaving)
		l.changes.configured(l.node(), l.done())
		l.reclaimLater() // of sources that nobody names any more
	}
	if l.trouble("configure programs", err) {
		l.log.Error("configure programs", "error", err)
	}
	return err
}

// auditing is the audit that is going on, a table at a time; the zero value: none is.
type auditing struct {
	next  func() ([]maps.Drift, error, bool)
	stop  func()
	found []maps.Drift
}

// audit compares one of the live tables with what was published, and repairs it. It puts itself into the queue again for the next
// table.
func (l *loop) audit() error {
	a := &l.auditing
	if a.next == nil {
		a.next, a.stop = iter.Pull2(l.tables.AuditSteps(true))
	}
	found, err, more := a.next()
	for _, d := range found {
		l.log.Warn("repaired table", "map", d.Table, "entry", d.Entry, "problem", d.Problem, "repaired", d.Repaired)
	}
	a.found = append(a.found, found...)
	if more && err == nil {
		l.queue.Add(task{kind: audit})
		return nil
	}
	l.endAudit(err)
	return err
}

func (l *loop) endAudit(err error) {
	if l.trouble("audit tables", err) {
		l.log.Error("audit tables", "error", err)
	}
	if err == nil {
		l.metrics.Audited(time.Now(), l.auditing.found)
		l.audited(len(l.auditing.found))
	}
	l.auditing.stop()
	l.auditing = auditing{}
	l.handBack()
}
