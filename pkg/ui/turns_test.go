// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhoAsksWaitsUntilItIsHisTurnOrItIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(10 * time.Second)
		if err := turns.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		gone, goes := context.WithCancel(t.Context())
		told := make(chan error, mostWaiting)
		for range mostWaiting / 2 {
			go func() { told <- turns.Take(gone) }()
			go func() { told <- turns.Take(t.Context()) }()
		}
		synctest.Wait()
		if err := turns.Take(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("with %d who wait: %v", mostWaiting, err)
		}
		goes()
		for range mostWaiting / 2 {
			if err := <-told; !errors.Is(err, context.Canceled) {
				t.Errorf("who went away is told %v", err)
			}
		}
		turns.Leave()
		if err := <-told; err != nil {
			t.Errorf("the next one is told %v", err)
		}
		began := time.Now()
		for range mostWaiting/2 - 1 {
			if err := <-told; !errors.Is(err, ErrBusy) {
				t.Errorf("who waited for long is told %v", err)
			}
		}
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("they waited for %v", waited)
		}
	})
}

func TestWhoWentAwayHasNoTurn(t *testing.T) {
	turns := NewTurns(time.Minute)
	gone, goes := context.WithCancel(t.Context())
	goes()
	for range 100 { // as select takes any of two that are ready
		if err := turns.Take(gone); err == nil {
			t.Fatal("who went away has the turn")
		}
		err := turns.Work(gone, func() error { t.Error("work begins for who went away"); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if err := turns.Take(t.Context()); err != nil {
		t.Errorf("a turn is lost: %v", err)
	}
}

func TestWorkLeavesOthersTheProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, start := NewTurns(time.Minute), time.Now()
		for _, work := range []struct{ takes, begins time.Duration }{
			{100 * time.Millisecond, 0},
			{5 * time.Second, 500 * time.Millisecond},
			{0, 6500 * time.Millisecond},
			{0, 6500 * time.Millisecond},
		} {
			err := turns.Work(t.Context(), func() error {
				if began := time.Since(start); began != work.begins {
					t.Errorf("begins after %v, want %v", began, work.begins)
				}
				time.Sleep(work.takes)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
