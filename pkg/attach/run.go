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
	recheck      = 5 * time.Minute        // finds what somebody else detached and the kernel tells nobody of
	putBack      = 300 * time.Millisecond // after somebody took filters away: who makes a qdisc anew is done by then, and two who fight are slow
)

// Run keeps Sync's promise until ctx ends, which is no error: it listens to the kernel's news of devices, addresses, default
// routes and filters that go, and tries again with back-off what failed. What is attached stays.
func (m *Manager) Run(ctx context.Context) error {
	runtime.LockOSThread() // the namespace is the thread's
	defer runtime.UnlockOSThread()
	news, err := listen()
	if err != nil {
		return fmt.Errorf("follow devices: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return news.read(ctx, m.Changed, m.filtersRemoved) })
	group.Go(func() error { <-ctx.Done(); news.close(); return nil })
	m.follow(ctx)
	return group.Wait()
}

// filtersRemoved has filters looked at in a moment.
func (m *Manager) filtersRemoved() {
	if m.puttingBack.CompareAndSwap(false, true) {
		time.AfterFunc(putBack, func() { m.puttingBack.Store(false); m.Changed() })
	}
}

// follow syncs at once and after every piece of news.
func (m *Manager) follow(ctx context.Context) {
	retry := retryFirst
	for ctx.Err() == nil {
		next := recheck
		if err := m.Sync(); err != nil {
			next, retry = retry, min(2*retry, retryLongest)
			m.log.Warn("sync devices", "error", err, "retry", next)
		} else {
			retry = retryFirst
		}
		if !wait(ctx, settle, nil) || !wait(ctx, next, m.changed) {
			return
		}
	}
}

// wait returns after d, or when something comes in; false when ctx ended.
func wait(ctx context.Context, d time.Duration, in <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-in:
	}
	return true
}
