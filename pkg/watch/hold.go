// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Guard is Source's: files are what somebody made them, and nothing of them is held.
func (s *store) Guard(Guard) {}

// Holds is Source's.
func (s *store) Holds(lb.ServiceName) bool { return false }

// Guard is Source's.
func (c *cluster) Guard(g Guard) { c.guard.Guard = g }

// Holds is Source's.
func (c *cluster) Holds(name lb.ServiceName) bool { return c.guard.holds(name) }

// Input is Source's.
func (c *cluster) Input(name lb.ServiceName) (in lb.Input, exists bool) {
	in, exists = c.store.Input(name)
	in.Held = exists && c.guard.holdsObject(name)
	return in, exists
}

// hold returns the drops of a list without those that the guard holds.
func (c *cluster) hold(k kind, puts []object, drops []objectKey) []objectKey {
	drops, news := c.guard.hold(k, puts, drops, time.Now())
	if news > 0 {
		c.sayHeld("the API server suddenly lists far fewer objects: the missing ones stay in force for now", k, news)
	}
	return drops
}

// judge has the guard compare the first lists with what was published.
func (c *cluster) judge() {
	if news := c.guard.judge(time.Now()); news > 0 {
		c.sayHeld("the API server lists far less than this node has published: what is missing stays in force for now", kindService, news)
	}
}

// sayHeld logs what is held, and starts the time that it has, again for what was held before.
func (c *cluster) sayHeld(message string, k kind, missing int) {
	c.log.Warn("removals are held back", "problem", message, "kind", k, "missing", missing, "until", c.guard.held().Until.Format(time.RFC3339))
	c.expireIn(c.guard.Grace)
}

func (c *cluster) expireIn(d time.Duration) {
	c.disarm()
	c.expiry = time.AfterFunc(d, c.expire)
}

func (c *cluster) stopHolding() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disarm()
}

func (c *cluster) disarm() {
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
}

// expire removes what is still held. While the API server cannot be read, nobody knows what exists, so the time starts again.
func (c *cluster) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.guard.held()
	now := time.Now()
	switch {
	case c.expiry == nil || !h.Any() || now.Before(h.Until): // a timer of before
		return
	case c.outage.lasts():
		c.guard.postpone(now)
		c.expireIn(c.guard.Grace)
		return
	}
	c.log.Warn("what the API server did not list again is removed", "services", h.Services, "endpoints", h.Endpoints, "nodes", h.Nodes)
	drops, names := c.guard.release()
	c.change(nil, drops)
	c.toldOfEnd()
	slices.SortFunc(names, lb.ServiceName.Compare)
	for _, name := range names {
		c.ev.ServiceChanged(name)
	}
}

// sayRelieved logs that nothing is held any more, if so.
func (c *cluster) sayRelieved() {
	if !c.guard.any() {
		c.log.Info("the API server lists again what was missing")
		c.disarm()
		c.toldOfEnd()
	}
}

// toldOfEnd tells the agent that nothing is held any more: from now on it may tell the programs that the node has no addresses.
func (c *cluster) toldOfEnd() {
	if c.synced {
		c.ev.NodeChanged()
	}
}

// Health is Source's, where nothing is to be said of it: of files, Problems tell.
func (s *store) Health() Health { return Health{} }

// Health is Source's.
func (c *cluster) Health() Health {
	h := Health{Held: c.guard.held()}
	h.Error, h.Since = c.outage.last()
	return h
}
