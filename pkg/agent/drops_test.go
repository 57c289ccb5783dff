// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/maps"
)

// script is a ring of so many events, which then cannot be read, or wait for the end.
type script struct {
	events int
	fails  bool
	ended  chan struct{}
}

func (s *script) Read() (maps.Event, error) {
	switch s.events--; {
	case s.events >= 0:
		return maps.Event{Booted: 1 << 63}, nil
	case s.fails:
		return maps.Event{}, errors.New("it is torn")
	}
	<-s.ended
	return maps.Event{}, ringbuf.ErrFlushed
}

func (s *script) End() error   { close(s.ended); return nil }
func (s *script) Close() error { return nil }

// A ring that cannot be opened, and then cannot be read, is tried again: later events are told.
func TestEventsAreReadAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &daemon{log: slog.New(slog.NewTextHandler(io.Discard, nil)), diary: newDiary(), source: newScripted(), reader: &reader{}}
		d := newDrops(agent)
		var opened atomic.Int32
		open := func() (events, error) {
			switch opened.Add(1) {
			case 1:
				return nil, errors.New("no memory")
			case 2:
				return &script{events: 1, fails: true, ended: make(chan struct{})}, nil
			}
			return &script{events: 2, ended: make(chan struct{})}, nil
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { d.follow(ctx, maps.NewFake(testSizes), open); close(ended) }()
		for tries, kept := range []int{0, 1, 3} {
			synctest.Wait()
			lines, _, _, _ := d.kept.From(0)
			if d.mu.Lock(); int(opened.Load()) != tries+1 || len(lines) != kept || d.sampled != uint64(kept) {
				t.Errorf("opened %d times, %d events are kept and %d counted, want %d", opened.Load(), len(lines), d.sampled, kept)
			}
			d.mu.Unlock()
			var s Status
			if agent.diary.fill(&s); (len(s.Trouble) > 0) != (tries < 2) {
				t.Errorf("opened %d times: trouble %q", opened.Load(), s.Trouble)
			}
			pause(ctx, readAgain)
		}
		end()
		<-ended
	})
}
