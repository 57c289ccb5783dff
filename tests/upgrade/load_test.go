// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// pace is between two questions of one kind, of which there are some thirty: together they ask about once a millisecond. A new connection's source
// port of SNAT is taken for minutes, and agents that start want a part of the processors.
const pace = 30 * time.Millisecond

// load is what goes on meanwhile: questions over connections that are held, and new connections.
type load struct {
	*rig
	stop     context.CancelFunc
	ctx      context.Context
	done     sync.WaitGroup
	answers  atomic.Int64
	mu       sync.Mutex
	failures []string
}

func (r *rig) load() *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{rig: r, stop: stop, ctx: ctx}
	r.t.Cleanup(func() { stop(); l.done.Wait() })
	return l
}

// repeat asks until the end or the first failure.
func (l *load) repeat(ask func() error) {
	l.done.Go(func() {
		for l.ctx.Err() == nil {
			if err := ask(); err != nil {
				l.mu.Lock()
				l.failures = append(l.failures, err.Error())
				l.mu.Unlock()
				return
			}
			l.answers.Add(1)
			time.Sleep(pace)
		}
	})
}

// connect makes new connections to the Service, from these clients.
func (l *load) connect(s lab.Service, clients ...host) {
	for _, client := range clients {
		for _, w := range ways() {
			l.repeat(func() error {
				_, err := client.Ask(context.Background(), w.network, l.address(s, client, w), lab.DialOptions{Patience: patience})
				if err != nil {
					err = fmt.Errorf("a new connection of %s by %v: %w", client, w, err)
				}
				return err
			})
		}
	}
}

// more waits for that many answers, or for a failure.
func (l *load) more(answers int64) {
	l.t.Helper()
	from := l.answers.Load()
	err := lab.Await(patience, func() bool { return l.answers.Load() >= from+answers || l.failed() > 0 })
	if err != nil {
		l.t.Fatalf("%d more answers: %v", answers, err)
	}
}

func (l *load) failed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.failures)
}

// end stops the load and tells what was lost.
func (l *load) end() {
	l.t.Helper()
	l.stop()
	l.done.Wait()
	for _, f := range l.failures {
		l.t.Errorf("lost: %s", f)
	}
}
