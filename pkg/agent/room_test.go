// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
)

// counted counts how often all Services are gone through.
type counted struct {
	watch.Source
	looks atomic.Int32
}

func (c *counted) Services() []lb.ServiceName {
	c.looks.Add(1)
	return c.Source.Services()
}

func TestServicesThatDoNotFitAtTheBoundAreNoReasonToLookAtAllOfThemEachTime(t *testing.T) {
	inBubble(t, func(b *bench) {
		source := &counted{Source: b.source}
		loaded := make(chan struct{})
		close(loaded)
		r := &running{loaded: loaded, loop: b.loop, tables: b.tables.Tables, objects: &bpf.Objects{}, daemon: &daemon{log: slog.New(slog.DiscardHandler), source: source}}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute-time.Millisecond) // the look at its very end may come or not
		defer cancel()
		ended := make(chan error)
		go func() { ended <- r.followRoom(ctx) }()
		told := map[string]bool{} // a look between two tries finds that everything fits, as the scripted Services do
		for ctx.Err() == nil {
			select {
			case r.full <- bpf.NearlbMapSlots:
			default:
			}
			pause(ctx, time.Second)
			var said Status
			r.describe(&said)
			for _, trouble := range said.Trouble {
				told[trouble] = true
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if looks, most := source.looks.Load(), int32(time.Minute/roomEvery); looks == 0 || looks > most {
			t.Errorf("%d looks in a minute, want %d at the most", looks, most)
		}
		if text := strings.Join(slices.Collect(maps.Keys(told)), "\n"); !strings.Contains(text, "table slots is full: --size-slots=0 is the most") {
			t.Errorf("the status names no flag: %q", text)
		}
	})
}

func TestAnAgentThatIsToEndWhileTablesGrowEndsWithoutAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	grow, other := &exchange{plan{grow: true}}, errors.New("other")
	if next, err := follows(ctx, grow); next != grow || err != nil {
		t.Errorf("goes on with %v, %v", next, err)
	}
	if next, err := follows(ctx, other); next != nil || err != other {
		t.Errorf("after a failure goes on with %v, %v", next, err)
	}
	cancel()
	if next, err := follows(ctx, grow); next != nil || err != nil {
		t.Errorf("at the end goes on with %v, %v", next, err)
	}
}

func TestALoaderThatDoesNotAnswerKeepsNoAgentFromEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, in := io.Pipe()
		out, _ := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := newLoader(in, out).load(ctx, loadRequest{})
			ended <- err
		}()
		gone := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, requests)
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; err == nil {
			t.Error("no error")
		}
		if err := <-gone; err != nil {
			t.Errorf("the loader reads %v, want the end of what it is asked", err)
		}
	})
}

// A bubble does not end before all of its goroutines have: those of a queue as well.
func TestALoopThatWasNeverRunLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(newScripted(), newWitnessed(), metrics.New("test"), newDiary(), slog.New(slog.DiscardHandler), loopOptions{debounce: testDebounce, checks: asked{}})
		l.ServiceChanged(serviceName(1))
		if err := (&running{loop: l}).close(); err != nil {
			t.Error(err)
		}
	})
}
