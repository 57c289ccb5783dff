// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"
)

// pinsEvery is how often it is looked whether all that is pinned has its file.
const pinsEvery = 2 * time.Second

// followPins keeps tables, programs and links pinned until ctx ends, whoever removes their files: without these the agent's end would be the end of
// all connections.
func (r *running) followPins(ctx context.Context) error {
	if !r.programmed(ctx) {
		return nil
	}
	tick := time.NewTicker(pinsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.lookAtPins()
		}
	}
}

// lookAtPins pins again what has lost its file. Where one has, the links may have, too.
func (r *running) lookAtPins() {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	if r.carrier != nil {
		return // generations change places
	}
	made, err := r.programs.PinAgain()
	if r.trouble("keep tables and programs pinned", err) {
		r.daemon.log.Error("keep tables and programs pinned", "error", err)
	}
	if made > 0 {
		r.daemon.log.Warn("somebody removed pins: what they were of is pinned again", "missing", made)
		r.devices.LookAgain()
		r.socketHooks.LookAgain()
	}
}
