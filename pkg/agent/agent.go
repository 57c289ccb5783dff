// SPDX-License-Identifier: Apache-2.0

// Package agent is the daemon of a node: it follows objects, decides, publishes, keeps programs attached, and says how it
// goes (status file, health, metrics).
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// Run is `nearlb agent`. It returns nil when ctx ends, and leaves programs and tables serving. It works in the network
// namespace of the process.
//
// The order of the start keeps traffic whole. Tables found pinned are restored and verified first. If they hold Services, an
// earlier agent's programs serve from them: the new programs take their place at once, link by link, and devices are
// followed from then on, whether or not the objects can be read. If they are empty, programs are attached after the first
// complete publication, so that no packet meets half of it. Errors of the start are returned; later ones are tried again.
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
	r, err := start(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	r.log.Info("agent started", "version", o.Version, "node", o.NodeName, "source", r.origin, "services", len(r.tables.Published()))
	err = r.run(ctx)
	r.log.Info("agent stopped; programs and tables go on serving")
	return err
}

// start opens everything that the agent works with.
func start(o Options) (_ *running, err error) {
	r := &running{options: o, log: o.Log, metrics: metrics.New(o.Version), listen: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.source, r.origin, err = source(o); err != nil {
		return nil, err
	}
	if r.objects, err = bpf.Load(bpf.Options{Sizes: o.Sizes, PinPath: o.PinPath}); err != nil {
		return nil, err
	}
	for _, sentence := range r.objects.Kept {
		r.log.Warn("kept table size", "problem", sentence)
	}
	if r.tables, err = tables.Open(&r.objects.NearlbMaps); err != nil {
		return nil, err
	}
	r.warm = len(r.tables.Published()) > 0
	if r.reader, err = newReader(&r.objects.NearlbMaps); err != nil {
		return nil, err
	}
	if r.devices, err = attach.New(r.attachOptions()); err != nil {
		return nil, err
	}
	r.loop = newLoop(r.source, r.tables, r.metrics, r.log, loopOptions{
		loopback4: o.Loopback4, loopback6: o.Loopback6,
		auditEvery: o.AuditEvery, reclaimEvery: o.ReclaimEvery, debounce: o.Debounce,
		nodeChanged: r.devices.Changed,
	})
	r.metrics.Follow(r.count)
	r.metrics.Read(r.reader)
	return r, nil
}

func (r *running) attachOptions() attach.Options {
	var once sync.Once
	return attach.Options{
		Pods:          r.options.PodDevices,
		NodeAddresses: func() []netip.Addr { return r.source.Node().Addresses },
		LinkDir:       bpf.LinkDirectory(r.options.PinPath),
		Programs:      attach.Programs{FromPod: r.objects.FromPod, ToPod: r.objects.ToPod},
		Force:         r.options.AttachMethod,
		Log:           r.log,
		Synced:        func() { r.tell(); once.Do(r.removeOldPrograms) },
	}
}

// removeOldPrograms runs when every device has the new ones.
func (r *running) removeOldPrograms() {
	if err := r.objects.RemoveOldPrograms(); err != nil {
		r.trouble("remove old programs", err)
		r.log.Error("remove old programs", "error", err)
	}
}

func (r *running) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.follow(ctx) })
	group.Go(func() error { return r.loop.run(ctx) })
	group.Go(func() error { return r.attach(ctx) })
	group.Go(func() error { return r.report(ctx) })
	for _, s := range r.servers() {
		group.Go(func() error { return s.run(ctx) })
	}
	return group.Wait()
}

// follow runs the source.
func (r *running) follow(ctx context.Context) error {
	if err := r.source.Run(ctx, r.loop); err != nil {
		return fmt.Errorf("follow %s: %w", r.origin, err)
	}
	<-ctx.Done() // a source that ends by itself has said all there is
	return nil
}

// attach keeps devices attached; when it begins, see Run.
func (r *running) attach(ctx context.Context) error {
	if !r.warm {
		select {
		case <-ctx.Done():
			return nil
		case <-r.first:
		}
	}
	return r.devices.Run(ctx)
}

func (r *running) servers() []server {
	var all []server
	if r.options.HealthAddress != "" {
		h := health{progress: r.progress, eligible: func() bool { return nodeKnown(r.source, r.listed) }, now: time.Now}
		all = append(all, server{"health", r.options.HealthAddress, h.handler(), r})
	}
	if r.options.MetricsAddress != "" {
		all = append(all, server{"metrics", r.options.MetricsAddress, r.metrics.Handler(), r})
	}
	return all
}

// close gives descriptors back. What is pinned stays.
func (r *running) close() error {
	var errs []error
	if r.devices != nil {
		errs = append(errs, r.devices.Close())
	}
	if r.reader != nil {
		errs = append(errs, r.reader.close())
	}
	if r.tables != nil {
		errs = append(errs, r.tables.Close())
	}
	if r.objects != nil {
		errs = append(errs, r.objects.Close())
	}
	return errors.Join(errs...)
}
