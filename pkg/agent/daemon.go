// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
)

// daemon is the agent's process: what lasts while it works with one set of tables after the other.
type daemon struct {
	// Set by newDaemon, and not changed.
	options Options
	log     *slog.Logger
	diary   *diary
	source  watch.Source
	origin  string // of the objects, for people
	metrics *metrics.Metrics
	reader  *reader // of the tables that are worked with
	checks  *health.Servers
	names   *names // nil: nobody answers names
	drops   *drops
	changes *changes
	peers   *tunnelPeers // other nodes' sides of the tunnel

	heartbeats *heartbeats
	warming    *warming
	room       bpf.Room
	started    time.Time

	relay   relay                   // from the source to the loop at work
	now     atomic.Pointer[running] // the one at work; nil until the first tables are open
	garbage garbage

	// The start's, which is one goroutine: it runs again for larger tables.
	loader      *loader  // nil: the agent loads programs by itself
	dropped     bool     // privileges are settled: may says which are left
	may         []string // names of the capabilities that the process has kept
	saidStarted bool

	settled     chan struct{} // closed: privileges are, and objects may be read
	settledOnce sync.Once

	found        chan struct{} // closed: servedBefore is known
	foundOnce    sync.Once
	servedBefore map[lb.ServiceName]bool // what the tables served when the agent started; true for those with backends in use

	attached     chan struct{} // closed: programs serve
	attachedOnce sync.Once

	flowCount flowCount // of those who ask for bytes

	outdated atomic.Bool // the configuration changed: a restart is needed

	mu     sync.Mutex
	listen map[string]string // server -> address
	growth Growth

	made         time.Time // the tables, after the first list; zero: not by this agent
	growthTried  time.Time // zero: never
	growthFailed int       // times, one after the other
}

// newDaemon opens what needs no tables.
func newDaemon(o Options) (*daemon, error) {
	d := &daemon{options: o, log: o.Log, diary: newDiary(), metrics: metrics.New(o.Version), reader: &reader{}, started: time.Now(), listen: map[string]string{},
		settled: make(chan struct{}), found: make(chan struct{}), attached: make(chan struct{}), room: o.room()}
	if !o.Names.On || !o.Names.FastPath {
		d.room.Limits.Answers = 1
	}
	var err error
	config := o.nodeConfig()
	d.drops, d.changes, d.peers = newDrops(d), newChanges(d), newTunnelPeers(o.tunnelPort(), o.TunnelKeyFile)
	if o.leaving != nil {
		d.peers.cookies = o.leaving.cookies // unless there is a file of keys
	}
	d.heartbeats = newHeartbeats(o, d.peers.shown, d.peers.hearsayKeys)
	d.heartbeats.spoke = d.peers.spoke
	if _, err = d.peers.readKeys(); err != nil {
		return nil, err
	}
	d.warming = newWarming()
	if o.Names.On {
		d.names = newNames(o.Names, o.NodeName, d)
		config.Names, config.NamedPods = d.names.view, o.Names.Pods == dns.PodsVerified
	}
	if d.source, d.origin, err = source(o, config); err != nil {
		return nil, err
	}
	d.checks = health.New(health.Options{
		Addresses: func() []netip.Addr { return d.now.Load().node().NodePortIPs },
		Fresh:     func() bool { return !d.now.Load().stale(time.Now()) },
		Answered:  func(code int) { d.metrics.Answered("service", code) },
		Changed:   d.diary.tell,
		Log:       d.log,
	})
	d.metrics.Follow(func() metrics.State { return d.now.Load().count() })
	d.metrics.Read(metrics.Reading{Tables: d.reader, Fill: func() []tables.FillRow { return d.now.Load().tableFill() },
		Zone: func() string { return d.source.Node().Zone }, Limits: o.SeriesLimits, Looked: func(err error) { d.now.Load().looked(err) }})
	return d, nil
}

// run works until ctx ends, or something fails that the agent cannot do without.
func (d *daemon) run(ctx context.Context) error {
	d.garbage.begin(d.room.Memory)
	defer d.garbage.end()
	first, err := d.firstPlan()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.follow(ctx) })
	r, err := d.next(ctx, &exchange{first})
	if err != nil {
		group.Go(func() error { return err }) // which ends the source
		return group.Wait()
	}
	d.serve(ctx, group)
	group.Go(func() error { return d.work(ctx, r) })
	return group.Wait()
}

// serve runs, in the group, what answers people and programs: from the first start's end on.
func (d *daemon) serve(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return d.answerChecks(ctx) })
	for _, s := range d.servers() {
		group.Go(func() error { return s.run(ctx) })
	}
	if d.names != nil {
		group.Go(func() error { return d.names.run(ctx) })
	}
	group.Go(func() error { return d.forPeople().run(ctx) })
	group.Go(func() error { d.changes.keep(ctx); return nil })
	group.Go(func() error { return d.followSettings(ctx) })
}

// work goes from one set of tables to the next as they have to grow.
func (d *daemon) work(ctx context.Context, r *running) error {
	for {
		next, err := follows(ctx, r.run(ctx))
		if next == nil {
			return errors.Join(err, r.close())
		}
		before := r
		r, err = d.next(ctx, next)
		if err := errors.Join(err, before.close()); err != nil { // closed last: a scrape reads one of the two
			return err
		}
	}
}

// follow runs the source, once objects may be read.
func (d *daemon) follow(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.settled:
	}
	d.source.Guard(d.guard(ctx))
	if err := d.source.Run(ctx, &d.relay); err != nil {
		return fmt.Errorf("follow %s: %w", d.origin, err)
	}
	<-ctx.Done() // a source that ends by itself has said all there is
	return nil
}

// answerChecks answers health check node ports as soon as the programs serve: a load balancer that is told of endpoints sends
// connections, which the host would refuse.
func (d *daemon) answerChecks(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.attached:
		return d.checks.Run(ctx)
	}
}

func (d *daemon) servers() []server {
	var all []server
	if d.options.HealthAddress != "" {
		health := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			r := d.now.Load()
			serving := func() bool { return r.stage().state == Serving }
			answers{progress: r.progress, eligible: d.source.NodeEligible, serving: serving, answered: d.metrics.Answered, now: time.Now}.handler().ServeHTTP(w, q)
		})
		all = append(all, server{"health", d.onTCP("health", d.options.HealthAddress), health, d})
	}
	if d.options.MetricsAddress != "" {
		all = append(all, server{"metrics", d.onTCP("metrics", d.options.MetricsAddress), d.measured(), d})
	}
	return all
}

// PagePath is where the page is, on the metrics' port.
const PagePath = "/ui/"

// measured serves the metrics, and the page where it is asked for.
func (d *daemon) measured() http.Handler {
	if d.options.Page == nil {
		return d.metrics.Handler()
	}
	mux := http.NewServeMux()
	mux.Handle(PagePath, http.StripPrefix(strings.TrimSuffix(PagePath, "/"), d.options.Page))
	mux.Handle("/", d.metrics.Handler())
	return mux
}

// listens notes where a server can be reached.
func (d *daemon) listens(server, address string) {
	d.mu.Lock()
	if d.listen[server] = address; address == "" {
		delete(d.listen, server)
	}
	d.mu.Unlock()
	d.diary.tell()
}

func (d *daemon) listening() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.listen)
}

// sayStarted tells of the first tables that the programs serve from.
func (d *daemon) sayStarted(r *running) {
	d.log.Info("agent started", "version", d.options.Version, "node", d.options.NodeName, "source", d.origin, "services", len(r.tables.Published()),
		"capabilities", strings.Join(d.may, ","))
	change := journal.Change{What: "agent-started", To: d.options.Version, Because: "no tables with Services were here"}
	if services := len(r.tables.Published()); r.warm {
		change.What, change.Because = "agent-took-over", fmt.Sprintf("an earlier agent left %d Services in force", services)
	}
	d.changes.tell(change)
}
