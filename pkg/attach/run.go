// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	settle       = 10 * time.Millisecond  // between two Syncs: a new pod's device makes several events at once
	retryFirst   = 200 * time.Millisecond // after a failed Sync, doubled up to
	retryLongest = 30 * time.Second
	recheck      = 5 * time.Minute        // between two looks at everything: they find what neither the kernel's news nor a glance tells of
	putBack      = 300 * time.Millisecond // after somebody took filters away, or overwrote them: who makes a qdisc anew is done by then, and two who fight are slow
)

// Run keeps Sync's promise until ctx ends, which is no error: it listens to the kernel's news of devices, addresses, default
// routes and filters that go or are overwritten, glances at the links, looks at what these are about, and tries again with back-off what failed. What is attached stays.
func (m *Manager) Run(ctx context.Context) error {
	runtime.LockOSThread() // the namespace is the thread's
	defer runtime.UnlockOSThread()
	news, err := listen()
	if err != nil {
		return fmt.Errorf("follow devices: %w", err)
	}
	if m.options.XDP.Mode.InDriver() {
		if news.drivers, err = listenToDrivers(); err != nil { // they are asked all the same, at each look
			m.log.Warn("follow what drivers can do at XDP", "error", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return news.read(ctx, m.note, m.filterChanged) })
	group.Go(func() error { return news.readDrivers(ctx, m.note) })
	group.Go(func() error { <-ctx.Done(); news.close(); return nil })
	m.follow(ctx)
	return group.Wait()
}

// note has a running Manager look at what changed.
func (m *Manager) note(c change) {
	m.dueMu.Lock()
	m.due.add(c)
	m.dueMu.Unlock()
	m.Changed()
}

// noted is what changed since it was asked last.
func (m *Manager) noted() change {
	m.dueMu.Lock()
	defer m.dueMu.Unlock()
	c := m.due
	m.due = change{}
	return c
}

// filterChanged has a device's filters looked at in a moment, with those of others of which some change until then, unless the news is of what
// the Manager itself wrote.
func (m *Manager) filterChanged(f filterNews) {
	m.dueMu.Lock()
	defer m.dueMu.Unlock()
	if m.given[f.runs] {
		return
	}
	now := time.Now()
	over := m.fights.of(f.ifindex, now)
	if m.removed.devices == nil {
		time.AfterFunc(over.wait(putBack), func() {
			m.dueMu.Lock()
			removed := m.removed
			m.removed = change{}
			m.dueMu.Unlock()
			m.note(removed)
		})
	}
	if !m.removed.devices[f.ifindex] {
		over.again(now)
	}
	m.removed.device(f.ifindex)
}

// follow looks at everything at once, after a failure, and again every recheck; after every piece of news at what changed.
func (m *Manager) follow(ctx context.Context) {
	retry := retryFirst
	var full time.Time // when everything was looked at last
	var err error
	for ctx.Err() == nil {
		c := m.noted()
		if c.all = c.all || err != nil || time.Since(full) >= recheck; c.all {
			full = time.Now()
		}
		next := recheck - time.Since(full)
		if err = m.sync(c); err != nil {
			next, retry = retry, min(2*retry, retryLongest)
			m.log.Warn("sync devices", "error", err, "retry", next)
		} else {
			retry = retryFirst
		}
		if _, ok := wait(ctx, settle, nil); !ok || !idle(ctx, next, m.changed, m.links(), m.glance) {
			return
		}
	}
}

// wait returns after d, or when something comes in, which is what woken says; not ok when ctx ended.
func wait(ctx context.Context, d time.Duration, in <-chan struct{}) (woken, ok bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-timer.C:
		return false, true
	case <-in:
		return true, true
	}
}
