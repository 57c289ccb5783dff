// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Tables take their sizes from what is listed, with room to grow, and within the flags (bpf.Room). Where there are none yet,
// the first list is waited for before any are made. Where they become too small, larger ones take their place as in an
// upgrade (see upgrade.go): the loop ends, the daemon starts another one over the larger tables, and programs, links and
// connections go over as they do from one layout to the next. The source, the servers and the metrics go on meanwhile.

// plan says which tables a start works with.
type plan struct {
	waiting bool      // for the first list: nothing is pinned, loaded or published
	fresh   bool      // there are no tables: what is made may be published to before the programs are loaded
	sizes   bpf.Sizes // of tables that do not exist yet; zero: those of the object
	grow    bool      // and of those that do

	loaded *bpf.Loaded // what the loader loaded for it; nil: nothing yet
}

// exchange ends the work with one set of tables for that with another.
type exchange struct{ plan plan }

func (e *exchange) Error() string { return "work with other tables" }

func isExchange(err error) bool {
	var e *exchange
	return errors.As(err, &e)
}

// follows is what comes after the work with one set of tables ended so: that with another, or, with nil, the end.
func follows(ctx context.Context, err error) (*exchange, error) {
	var next *exchange
	switch {
	case !errors.As(err, &next):
		return nil, err
	case ctx.Err() != nil: // the end came first
		return nil, nil
	}
	return next, nil
}

// Growth is what became of tables that were too small, since the agent's start.
type Growth struct {
	Times int       `json:"times"` // that larger tables took the place of others
	Last  time.Time `json:"last"`  // zero: never
	Error string    `json:"error"` // why it failed at last; "" if it did not
}

// firstPlan goes on with the tables that are pinned, with those that have a size of their own by flag as large as that.
func (d *daemon) firstPlan() (plan, error) {
	sizes := d.room.For(bpf.Sizes{})
	if err := sizes.Check(); err != nil {
		return plan{}, err
	}
	have, pinned, err := bpf.Pinned(d.options.PinPath)
	if err != nil {
		return plan{}, err
	}
	if !pinned {
		return plan{waiting: true}, bpf.Ready(bpf.Options{Sizes: sizes, PinPath: d.options.PinPath, Knobs: d.options.knobs()})
	}
	p := plan{sizes: d.room.Follow(have)}
	p.grow = p.sizes != have
	return p, nil
}

// next starts over other tables. If larger ones cannot be had, the present ones go on, with the programs that they have if no process is
// left that may load others.
func (d *daemon) next(ctx context.Context, e *exchange) (*running, error) {
	before := d.now.Load()
	r, err := d.start(ctx, e.plan)
	if !e.plan.grow {
		return r, err
	}
	d.noteGrowth(err)
	if err == nil {
		d.log.Info("tables have grown", "entries", r.objects.NearlbMaps.Sizes())
		d.changes.grown(before, r)
		return r, nil
	}
	d.log.Error("grow tables", "error", err, "retry", d.growPause())
	if d.loader.gone() == nil || before == nil {
		return d.start(ctx, plan{})
	}
	loaded := before.programs.Loaded()
	return d.start(ctx, plan{loaded: &loaded})
}

// awaitList waits until all objects are listed, and then ends the work without tables for that with tables of a size that fits.
func (r *running) awaitList(ctx context.Context) error {
	r.daemon.log.Info("no tables are here yet: waiting for the first list of objects")
	select {
	case <-ctx.Done():
		return nil
	case <-r.listed:
		r.daemon.noteMade()
		return &exchange{plan{fresh: true, sizes: r.daemon.room.For(needOf(r.daemon.source, r.node()))}}
	}
}

const (
	roomEvery     = 10 * time.Second // how often fill is looked at
	growPause     = 10 * time.Second // at least, between two exchanges; doubled with each failure up to
	growPauseMost = 10 * time.Minute
	growLately    = 10 * time.Minute // tables that grow again within that, or are as young, get more room (bpf.Room)
)

// followRoom ends when tables are to grow: some is nearly full, or a Service did not fit. Tables that are being left go first.
// What needs room where the flags leave none is looked at no more often than anything else: Services that do not fit are tried
// again and again, and each look goes through all that is listed.
func (r *running) followRoom(ctx context.Context) error {
	if !r.programmed(ctx) { // who loads them makes no tables meanwhile
		return nil
	}
	ticker := time.NewTicker(roomEvery)
	defer ticker.Stop()
	full := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case full = <-r.full:
		case <-ticker.C:
		}
		if wait := r.daemon.growWait(time.Now()); wait > 0 {
			pause(ctx, wait)
		}
		if ctx.Err() != nil {
			return nil
		}
		if r.leavesFormer() {
			continue
		}
		have := r.objects.NearlbMaps.Sizes()
		next, need := r.wanted(have, full)
		r.tellShort(full, next, have, need)
		full = ""
		if next == have {
			pause(ctx, roomEvery)
			continue
		}
		r.daemon.log.Info("tables grow: larger ones take their place", "entries", next)
		p := plan{sizes: next, grow: true}
		if err := r.prepare(ctx, &p); err != nil {
			r.daemon.noteGrowth(err)
			r.daemon.log.Error("grow tables", "error", err, "retry", r.daemon.growPause())
			continue
		}
		return &exchange{p}
	}
}

// prepare has tables and programs made while those before serve and are published to.
func (r *running) prepare(ctx context.Context, p *plan) error {
	l := r.daemon.loader
	if l == nil && r.daemon.options.DropPrivileges {
		return errors.New("no process is left that may load programs; a restart of the agent starts one")
	}
	if l == nil {
		return nil
	}
	loaded, err := l.load(ctx, r.daemon.options.request(*p))
	p.loaded = &loaded
	return err
}

// tellShort notes, where a table has no room for a Service and has all that its flag allows, which flag that is and what is needed; and
// when everything fits, that it does.
func (r *running) tellShort(full string, next, have, need bpf.Sizes) {
	var short error
	if full == "" && len(r.short(1)) > 0 {
		return // it is told of already, or soon
	}
	if full != "" && next == have && need.Of(full) != nil {
		short = fmt.Errorf("table %s is full: %s=%d is the most that it may have, and what is listed needs %d, and some more for changes",
			full, bpf.SizeFlag(full), r.daemon.room.Most(full), *need.Of(full))
	}
	if r.trouble("room in tables", short) {
		r.daemon.log.Error("room in tables", "error", short)
	}
}

// wanted are the sizes that the tables should have now, and what they need. full is the table that had no room for a Service, "" none.
func (r *running) wanted(have bpf.Sizes, full string) (next, need bpf.Sizes) {
	room, used, flows, again := r.daemon.room, r.tables.Used(), r.tables.FlowFill(), r.daemon.grewLately(time.Now())
	if full == "" && room.Grow(have, used, used, flows, again) == have {
		return have, used
	}
	need = used.Max(needOf(r.daemon.source, r.node())) // all at once, rather than step by step
	if field := need.Of(full); field != nil {
		*field = max(*field, *have.Of(full))
	}
	return room.Grow(have, need, used, flows, again), need
}

// leavesFormer tells whether other tables are still being left.
func (r *running) leavesFormer() bool {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	return r.carrier != nil
}

func (d *daemon) grown() Growth {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.growth
}

// grewLately tells whether tables are likely to grow on: they have grown, or were made, a short while ago.
func (d *daemon) grewLately(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	lately := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) < growLately }
	return lately(d.growth.Last) || lately(d.made)
}

// noteMade notes that there were no tables, and that the first ones are made.
func (d *daemon) noteMade() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = time.Now()
}

func (d *daemon) noteGrowth(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.growthTried = time.Now()
	if err != nil {
		d.growthFailed++
		d.growth.Error = err.Error()
		return
	}
	d.growthFailed, d.growth.Error = 0, ""
	d.growth.Times++
	d.growth.Last = d.growthTried
}

func (d *daemon) growPause() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.growPauseLocked()
}

func (d *daemon) growPauseLocked() time.Duration {
	return min(growPause<<min(d.growthFailed, 10), growPauseMost)
}

// growWait is how long the next exchange is to wait.
func (d *daemon) growWait(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.growthTried.IsZero() {
		return 0
	}
	return d.growthTried.Add(d.growPauseLocked()).Sub(now)
}

// kept describes the tables that are larger than their flags allow.
func (r *running) kept() []string {
	if r.plan.waiting {
		return []string{}
	}
	return append([]string{}, r.daemon.room.Over(r.objects.NearlbMaps.Sizes())...)
}
