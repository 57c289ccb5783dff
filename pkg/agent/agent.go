// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Run is `nearlb agent`. It returns nil when ctx ends, and leaves programs and tables serving. It works in the network
// namespace of the process.
//
// The order of the start keeps traffic whole. Tables found pinned are restored and verified first. If they hold Services, an
// earlier agent's programs serve from them: the new programs take their place at once, link by link, and devices are
// followed from then on, whether or not the objects can be read. If they are empty, or no program is attached (an agent was killed
// in its first publication), programs are attached after the first complete publication, so that no packet meets half of it. New tables
// are published to while the loader still loads the programs. Tables of another layout are carried over first, connections and
// all (see upgrade). Errors of the start are returned; later ones are tried again.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	lock, err := bpf.Lock(o.LockDir, o.PinPath)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := bpf.Permitted(); err != nil { // the kernel would say so late: some of the work can be done with less
		return fmt.Errorf("start agent: %w", err)
	}
	if o.leaving, err = o.findLeaving(); err != nil {
		return err
	}
	d, err := newDaemon(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.reader.close()) }()
	err = d.run(ctx)
	d.sayEnded(err)
	if err == nil {
		d.log.Info("agent stopped; programs and tables go on serving")
	}
	return err
}

// start opens everything that works with one set of tables, in steps of which each wants those before it. The first start has the
// source read objects from the moment that the privileges are settled: the first list takes as long as to restore tables.
func (d *daemon) start(ctx context.Context, p plan) (_ *running, err error) {
	r := &running{daemon: d, plan: p, loaded: make(chan struct{}), pulseNews: make(chan pulseNews), hostNews: make(chan struct{}, 1), shortcutNews: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for _, open := range []func(context.Context) error{r.load, r.settlePrivileges, r.openTables, r.openPlaces, r.openLoop, r.lookAround} {
		if err := open(ctx); err != nil {
			return nil, err
		}
	}
	if !p.waiting && !d.saidStarted {
		d.saidStarted = true
		d.sayStarted(r)
	}
	d.relay.turn(r.loop)
	return r, nil
}

// settlePrivileges gives away what the process needs no more now that programs are loaded, and has the source begin.
func (r *running) settlePrivileges(context.Context) error {
	err := r.daemon.dropPrivileges(r)
	if err == nil {
		r.daemon.settledOnce.Do(func() { close(r.daemon.settled) })
	}
	return err
}

// openTables reads what the tables hold.
func (r *running) openTables(context.Context) (err error) {
	r.boundMemory()
	attached := r.removeUnattachedPrograms()
	if r.tables, err = tables.Open(&r.objects.NearlbMaps); err != nil {
		return err
	}
	if r.daemon.options.Wrote != nil && !r.plan.waiting {
		r.tables.Watch(r.daemon.options.Wrote)
	}
	serving := r.tables.Serving()
	r.daemon.foundServing(serving)
	if r.warm = len(serving) > 0 && (attached || len(r.objects.Former()) > 0); r.warm {
		r.tables.Note(true)
		return r.takeOver()
	}
	if !r.plan.waiting && (r.plan.fresh || !attached) { // no program reads the tables yet
		r.tables.Defer(r.plan.fresh)
	}
	return nil
}

// openPlaces readies what attaches programs. Nothing is attached yet.
func (r *running) openPlaces(ctx context.Context) (err error) {
	if r.devices, err = attach.New(r.attachOptions(ctx)); err != nil {
		return err
	}
	if r.socketHooks, err = attach.NewSocketHooks(r.socketOptions()); err != nil || !r.objects.HasPrograms() {
		return err
	}
	return r.give(ctx, r.objects)
}

// loadPrograms has the loader load programs over new tables, while the loop publishes to these.
func (r *running) loadPrograms(ctx context.Context) error {
	if closed(r.loaded) {
		return nil
	}
	p := r.plan
	p.fresh = false
	q := r.daemon.options.request(p)
	loaded, err := r.daemon.loader.load(ctx, q)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	programs, err := bpf.Adopt(q.options(), loaded)
	if err != nil {
		return err
	}
	return r.give(ctx, programs)
}

// give gives what attaches programs those that are loaded.
func (r *running) give(ctx context.Context, loaded *bpf.Objects) error {
	r.programs = loaded
	defer close(r.loaded)
	devices := attach.Programs{FromPod: loaded.FromPod, ToPod: loaded.ToPod, FromNet: loaded.FromNet, ToNet: loaded.ToNet,
		Layer3: func() (*ebpf.Program, *ebpf.Program, error) { return r.layer3(ctx) }}
	if err := r.devices.Give(devices, loaded.FromNetXdp); err != nil {
		return err
	}
	return r.socketHooks.Give(loaded.NearlbPrograms.ByName())
}

// programmed waits until programs are loaded; false when ctx ended.
func (r *running) programmed(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-r.loaded:
		return true
	}
}

// openLoop readies what publishes, and has everybody ask this agent from now on.
func (r *running) openLoop(context.Context) error {
	o, d := r.daemon.options, r.daemon
	namespace, err := bpf.NamespaceCookie()
	if err != nil {
		return err
	}
	r.loop = newLoop(r.daemon.source, r.tables, r.daemon.metrics, d.diary, r.daemon.log, loopOptions{
		loopback4: o.Loopback4, loopback6: o.Loopback6, offNode: o.OffNode, tunnelPort: r.tunnelPort(), peers: d.peers, leaving: o.leaving, carriedOver: r.carriedOver,
		auditEvery: o.AuditEvery, reclaimEvery: o.ReclaimEvery, debounce: o.Debounce,
		namespace: namespace, snatPorts: o.SNATPorts, snatWide: o.SNATAllPorts && r.objects.Conntrack() == nil, nodeConfig: o.nodeConfig(),
		nodeChanged: func() { r.devices.Changed(); r.daemon.checks.Look(); r.hostChanged(); d.lookAtNames() },
		checks:      r.daemon.checks,
		names:       d.nameTables(),
		changes:     d.changes,
		warming:     d.warming,
	})
	if err := r.daemon.reader.open(&r.objects.NearlbMaps); err != nil {
		return err
	}
	if !r.plan.waiting {
		d.names.mirror(r.tables)
	}
	d.now.Store(r)
	return nil
}

// lookAround learns what the host is like, for the first publication.
func (r *running) lookAround(context.Context) error {
	r.tellOfSockets()
	told, err := r.tables.Config()
	if err != nil {
		return err
	}
	r.setYield(told.Yield) // as long as nothing else is known
	if err := r.devices.Look(); err != nil {
		return err
	}
	r.lookAtRules()
	r.lookAtShortcut()
	r.lookAtHost()
	r.looked(r.daemon.metrics.Look())
	r.tables.TellEnds(r.daemon.metrics)
	return nil
}

// foundServing notes what is served from the tables that the agent found when it started.
func (d *daemon) foundServing(serving map[lb.ServiceName]bool) {
	d.foundOnce.Do(func() {
		d.servedBefore = serving
		close(d.found)
	})
}

// guard is the source's. It waits, until ctx ends, for what was served when the agent started.
func (d *daemon) guard(ctx context.Context) watch.Guard {
	guard := d.options.MassDeletion
	guard.Published = func() map[lb.ServiceName]bool {
		select {
		case <-ctx.Done():
			return nil
		case <-d.found:
			return d.servedBefore
		}
	}
	return guard
}

func (r *running) attachOptions(ctx context.Context) attach.Options {
	var once sync.Once
	return attach.Options{
		Pods:     r.daemon.options.PodDevices,
		Networks: r.daemon.options.NetDevices,
		Network: func(n attach.Network) {
			r.networkChanged(n)
			r.daemon.checks.Look()
			r.hostChanged()
			r.shortcutChanged()
			r.daemon.lookAtNames()
		},
		Peers:         r.daemon.options.Shortcut != ShortcutOff,
		NodeAddresses: func() []netip.Addr { return r.daemon.source.Node().Addresses },
		LinkDir:       bpf.LinkDirectory(r.daemon.options.PinPath),
		Former:        r.formerLinks,
		Carry:         r.carryConnections,
		QdiscDir:      bpf.QdiscDirectory(r.daemon.options.PinPath),
		Ours:          func() (map[ebpf.ProgramID]bool, error) { return bpf.PinnedPrograms(r.daemon.options.PinPath) },
		XDP:           attach.XDPOptions{Mode: r.daemon.options.XDP, Serve: r.objects.SetXDPDevices},
		Force:         r.daemon.options.AttachMethod,
		Log:           r.daemon.log,
		Synced:        func() { r.turn(); once.Do(r.removeOldPrograms); r.leaveFormer() },
	}
}

// boundMemory bounds the runtime's by the cgroup's.
func (r *running) boundMemory() {
	if limit, err := boundMemory(&r.objects.NearlbMaps); err != nil {
		r.daemon.log.Warn("bound memory", "error", err)
	} else if limit > 0 && !r.plan.waiting {
		r.daemon.log.Info("bounded memory", "bytes", limit)
	}
}

// removeUnattachedPrograms keeps agents that end again and again before they attach anything from piling up programs. It tells whether
// programs of an earlier agent may be attached.
func (r *running) removeUnattachedPrograms() bool {
	rows, err := attach.List(bpf.LinkDirectory(r.daemon.options.PinPath))
	attached := map[ebpf.ProgramID]bool{}
	for _, row := range rows {
		attached[ebpf.ProgramID(row.ID)] = true
	}
	if err == nil {
		err = r.objects.RemoveUnattachedPrograms(attached)
	}
	if err != nil {
		r.daemon.log.Warn("remove programs that were never attached", "error", err)
	}
	return err != nil || len(rows) > 0
}

// removeOldPrograms runs when every device has the new ones.
func (r *running) removeOldPrograms() {
	if err := r.programs.RemoveOldPrograms(); err != nil {
		r.trouble("remove old programs", err)
		r.daemon.log.Error("remove old programs", "error", err)
	}
}

func (r *running) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.report(ctx) })
	if r.plan.waiting {
		group.Go(func() error { return r.awaitList(ctx) })
		return group.Wait()
	}
	group.Go(func() error { return r.loop.run(ctx) })
	group.Go(func() error { return r.loadPrograms(ctx) })
	group.Go(func() error { return r.attach(ctx) })
	group.Go(func() error { return r.serveSockets(ctx) })
	group.Go(func() error { return r.leaveBackends(ctx) })
	group.Go(func() error { return r.handBackMemory(ctx) })
	group.Go(func() error { return r.followHost(ctx) })
	group.Go(func() error { return r.followRules(ctx) })
	group.Go(func() error { return r.followShortcut(ctx) })
	group.Go(func() error { return r.followTunnel(ctx) })
	group.Go(func() error { return r.followHeartbeats(ctx) })
	group.Go(func() error { return r.tellAttached(ctx) })
	group.Go(func() error { return r.followRoom(ctx) })
	group.Go(func() error { return r.followPins(ctx) })
	group.Go(func() error { r.followDrops(ctx); return nil })
	group.Go(func() error { r.followHealth(ctx); return nil })
	return group.Wait()
}

// attach keeps devices attached; when it begins, see Run.
func (r *running) attach(ctx context.Context) error {
	if published, err := r.published(ctx); !published {
		return err
	}
	return r.devices.Run(ctx)
}

// tellAttached tells the daemon once the programs serve.
func (r *running) tellAttached(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.devices.Tried():
		r.turn()
		r.daemon.attachedOnce.Do(func() { close(r.daemon.attached) })
	}
	return nil
}

// published waits for the first complete publication unless the tables held Services before, and tells the programs what they
// need; false when ctx ended.
func (r *running) published(ctx context.Context) (bool, error) {
	if r.warm {
		return true, nil
	}
	select {
	case <-ctx.Done():
		return false, nil
	case <-r.first:
		if !r.programmed(ctx) {
			return false, nil
		}
		_ = r.configure() // the loop does, too, and tries again
		err := r.takeOver()
		return err == nil, err
	}
}

// close gives descriptors back. What is pinned stays.
func (r *running) close() error {
	var errs []error
	if r.loop != nil {
		r.queue.ShutDown() // of a loop that was never run
	}
	if r.devices != nil {
		errs = append(errs, r.devices.Close())
	}
	if r.socketHooks != nil {
		errs = append(errs, r.socketHooks.Close())
	}
	if r.tables != nil {
		errs = append(errs, r.tables.Close())
	}
	if r.carrier != nil {
		errs = append(errs, r.carrier.Close())
	}
	if r.programs != nil && r.programs != r.objects {
		errs = append(errs, r.programs.Close())
	}
	if r.objects != nil {
		errs = append(errs, r.objects.Close())
	}
	return errors.Join(errs...)
}
