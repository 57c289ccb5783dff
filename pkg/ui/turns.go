// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Turns has those who ask a Source come in one after the other, and bounds what all of them cost: everybody on the host may ask.
type Turns struct {
	patience time.Duration
	turn     chan struct{} // full: somebody has it
	waiting  atomic.Int32
	rested   time.Time // no work begins before
}

const (
	mostWaiting = 8 // several browsers, each with a few tabs
	share       = 5 // work takes one part of so many of a processor
	longestRest = time.Second
)

// ErrBusy is of a question too many.
var ErrBusy = errors.New("too many ask at once: try again in a moment")

// NewTurns makes turns that nobody has. Nobody waits for one for longer than patience.
func NewTurns(patience time.Duration) *Turns {
	return &Turns{turn: make(chan struct{}, 1), patience: patience}
}

// Take waits for the turn, which is to be given back by Leave. It fails where too many wait already, and if the turn does not come before
// ctx ends, or in time.
func (t *Turns) Take(ctx context.Context) error {
	defer t.waiting.Add(-1)
	if t.waiting.Add(1) > mostWaiting {
		return ErrBusy
	}
	ctx, stop := context.WithTimeoutCause(ctx, t.patience, ErrBusy)
	defer stop()
	select {
	case t.turn <- struct{}{}:
		if ctx.Err() == nil {
			return nil
		}
		t.Leave() // both were ready
	case <-ctx.Done():
	}
	return fmt.Errorf("wait for those who asked before: %w", context.Cause(ctx))
}

// Leave gives the turn to the next.
func (t *Turns) Leave() { <-t.turn }

// Work calls what takes processor time, of who has the turn. After work others have the processor for four times as long, a second at
// most, before the next begins: it fails if ctx ends meanwhile.
func (t *Turns) Work(ctx context.Context, work func() error) error {
	rest := time.NewTimer(time.Until(t.rested))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wait for the processor: %w", err)
	}
	began := time.Now()
	err := work()
	ended := time.Now()
	t.rested = ended.Add(min((share-1)*ended.Sub(began), longestRest))
	return err
}
