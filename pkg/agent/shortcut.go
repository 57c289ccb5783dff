// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/pkg/maps"
)

// ShortcutMode says when translated packets leave past the host's stack (--shortcut).
type ShortcutMode string

// The modes.
const (
	ShortcutOff  ShortcutMode = "off"  // never
	ShortcutAuto ShortcutMode = "auto" // while that passes nothing by
	ShortcutOn   ShortcutMode = "on"   // always, whatever that passes by
)

// ShortcutStatus is what becomes of the shortcut.
type ShortcutStatus struct {
	Mode     ShortcutMode `json:"mode"`
	Taken    bool         `json:"taken"`
	PassedBy []string     `json:"passedBy"`          // what it passes by, or would pass by if it were taken; empty: nothing. Mode off: not looked at
	Unknown  string       `json:"unknown,omitempty"` // why that is not known
}

// shortcut is the state of the loop: what was found last.
type shortcut struct {
	mu     sync.Mutex
	status ShortcutStatus
}

func (s *shortcut) last() ShortcutStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// told is what the programs are told.
func (s ShortcutStatus) told() maps.Shortcut {
	switch {
	case !s.Taken:
		return maps.ShortcutOff
	case s.Mode == ShortcutAuto:
		return maps.ShortcutWhileBeating
	}
	return maps.ShortcutOn
}

// found notes what was found, and returns whether the way changes.
func (s *shortcut) found(mode ShortcutMode, passedBy []string, err error) (changed bool, now ShortcutStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = ShortcutStatus{Mode: mode, PassedBy: append([]string{}, passedBy...)}
	if err != nil {
		now.Unknown = err.Error()
	}
	now.Taken = mode == ShortcutOn || mode == ShortcutAuto && err == nil && len(passedBy) == 0
	changed = now.Taken != s.status.Taken || now.Unknown != s.status.Unknown || !slices.Equal(now.PassedBy, s.status.PassedBy)
	s.status = now
	return changed, now
}

const (
	shortcutBeat  = 200 * time.Millisecond // several in the time after which the programs take the stack again
	shortcutQuiet = 500 * time.Millisecond // between two looks at what the kernel tells no news of, while the shortcut is taken
	shortcutLeft  = 5 * time.Second        // the same while it is not
	shortcutPause = time.Second            // then without listening: somebody may be writing thousands of rules
)

// followShortcut keeps the way by what is in it, until ctx ends.
func (r *running) followShortcut(ctx context.Context) error {
	if r.daemon.options.Shortcut == ShortcutOff {
		return nil
	}
	for ctx.Err() == nil {
		err := r.awaitShortcut(ctx)
		if r.trouble("follow what the shortcut passes by", err) {
			r.daemon.log.Warn("follow what the shortcut passes by", "error", err)
		}
		pause(ctx, shortcutPause)
	}
	return nil
}

// awaitShortcut looks again at every piece of news, and now and then. It returns after one look where nothing depends on news: the shortcut
// is not taken, or is whatever they say.
func (r *running) awaitShortcut(ctx context.Context) error {
	news, err := bypass.Listen()
	if err != nil {
		return err
	}
	defer news.Close()
	for ctx.Err() == nil {
		if now := r.lookAtShortcut(); !now.Taken || now.Mode == ShortcutOn {
			r.awaitNews(ctx, news, shortcutLeft)
			return nil
		}
		for r.restsOnShortcut(ctx, news) {
		}
	}
	return nil
}

// restsOnShortcut beats for a while. False: it is time to look at everything.
func (r *running) restsOnShortcut(ctx context.Context, news *bypass.News) bool {
	for since := time.Now(); time.Since(since) < shortcutQuiet; {
		r.tables.BeatShortcut(monotonic())
		if r.awaitNews(ctx, news, shortcutBeat) {
			return false
		}
	}
	found, err := bypass.LookUntold(PassedDevices(r.lastNetwork()), r.ours)
	return err == nil && len(found) == 0
}

// awaitNews returns true for news, and when ctx ends.
func (r *running) awaitNews(ctx context.Context, news *bypass.News, longest time.Duration) bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-news.C:
	case <-r.shortcutNews:
	case <-timer.C:
		return false
	}
	return true
}

// shortcutChanged has followShortcut look again.
func (r *running) shortcutChanged() {
	select {
	case r.shortcutNews <- struct{}{}:
	default:
	}
}

// lookAtShortcut looks for what the shortcut would bypass, and switches the programs if that decides otherwise now.
func (r *running) lookAtShortcut() ShortcutStatus {
	if r.daemon.options.Shortcut == ShortcutOff {
		return ShortcutStatus{}
	}
	var passedBy []string
	ours, err := bpf.PinnedPrograms(r.daemon.options.PinPath)
	if r.ours = ours; err == nil {
		passedBy, err = bypass.Look(PassedDevices(r.lastNetwork()), ours)
	}
	before := r.passing.last()
	changed, now := r.passing.found(r.daemon.options.Shortcut, passedBy, err)
	if now.Taken != before.Taken && r.configure() != nil {
		r.queue.AddRateLimited(task{kind: configure})
	}
	if changed {
		r.daemon.log.Info("looked at the shortcut", "subject", now.String(), "problem", strings.Join(now.PassedBy, "; "))
		r.tell()
	}
	return now
}

// PassedDevices are those that packets of the shortcut come by or leave by.
func PassedDevices(n attach.Network) (devices []bypass.Device) {
	for _, d := range n.Devices {
		devices = append(devices, bypass.Device{Name: d.Name, Ifindex: d.Ifindex})
	}
	for _, d := range n.Others { // what goes there leaves by the device, as ever
		devices = append(devices, bypass.Device{Name: d.Name, Ifindex: d.Ifindex})
	}
	for _, d := range n.Peers {
		devices = append(devices, bypass.Device{Name: d.Name, Ifindex: d.Ifindex, Pod: true})
	}
	return devices
}

// String is for people.
func (s ShortcutStatus) String() string {
	switch {
	case s.Taken && len(s.PassedBy) == 0:
		return "taken: translated packets leave past the host's stack"
	case s.Taken:
		return fmt.Sprintf("taken, past %d things that would see the packets", len(s.PassedBy))
	case s.Unknown != "":
		return "not taken, as it is not known what it would pass by: " + s.Unknown
	}
	return fmt.Sprintf("not taken, as it would pass by %d things", len(s.PassedBy))
}
