// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Load is clients that make new connections all the time, each of which must be answered. It ends with End.
type Load struct {
	cluster *Cluster
	stop    context.CancelFunc
	done    sync.WaitGroup
	workers []*worker
}

// worker is one client on one way.
type worker struct {
	what    string
	answers atomic.Int64
	err     atomic.Pointer[error]
}

// breath is between two connections of a worker unless the cluster's options say otherwise, so that the load leaves time for those who are to
// follow changes, and ports of connections that are over come free.
const breath = 50 * time.Millisecond

// StartLoad has each client connect over each way again and again.
func (c *Cluster) StartLoad(at At, ways []Way, clients ...Host) *Load {
	c.T.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &Load{cluster: c, stop: stop}
	c.T.Cleanup(func() { stop(); l.done.Wait() })
	for _, client := range clients {
		for _, w := range ways {
			l.start(ctx, client, at, w)
		}
	}
	return l
}

// And has further clients do the same elsewhere.
func (l *Load) And(more *Load) *Load {
	l.workers = append(l.workers, more.workers...)
	stop := l.stop
	l.stop = func() { stop(); more.stop(); more.done.Wait() }
	return l
}

func (l *Load) start(ctx context.Context, client Host, at At, w Way) {
	to := at(w.Six)
	k := &worker{what: fmt.Sprintf("%s asks %s over %s", client, to, w)}
	l.workers = append(l.workers, k)
	l.done.Go(func() {
		for ctx.Err() == nil {
			if _, err := client.Ask(context.Background(), w.Network, to, lab.DialOptions{}); err != nil {
				k.err.Store(&err)
				return
			}
			k.answers.Add(1)
			time.Sleep(cmp.Or(l.cluster.options.Breath, breath))
		}
	})
}

// Round waits until each client was answered on each way twice more: connections that were made before are over then.
func (l *Load) Round() {
	l.cluster.T.Helper()
	from := make([]int64, len(l.workers))
	for i, k := range l.workers {
		from[i] = k.answers.Load()
	}
	for i, k := range l.workers {
		l.cluster.Await(k.what, func() bool { return k.answers.Load() >= from[i]+2 || k.err.Load() != nil })
		if err := k.err.Load(); err != nil {
			l.cluster.T.Fatalf("lost: %s, after %d answers: %v", k.what, k.answers.Load(), *err)
		}
	}
}

// End stops the load and fails for every client that was not answered. It tells how many answers there were.
func (l *Load) End() int64 {
	l.cluster.T.Helper()
	l.stop()
	l.done.Wait()
	var answers int64
	for _, k := range l.workers {
		answers += k.answers.Load()
		if err := k.err.Load(); err != nil {
			l.cluster.T.Errorf("lost: %s, after %d answers: %v", k.what, k.answers.Load(), *err)
		}
	}
	l.cluster.T.Logf("%d connections were answered", answers)
	return answers
}
