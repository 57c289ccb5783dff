// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load is clients that connect all the time and connections that are used all the time.
type load struct {
	stop     context.CancelFunc
	done     sync.WaitGroup
	answers  atomic.Int64
	mu       sync.Mutex
	failures []string
}

// startLoad has the clients make new connections and use old ones, on every way, until end.
func (s *service) startLoad(clients ...host) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop}
	for _, client := range clients {
		for _, w := range ways() {
			held := s.dial(client, w)
			l.repeat(ctx, func() error { _, err := held.Who(); return err })
			l.repeat(ctx, func() error { _, err := s.ask(client, w); return err })
		}
	}
	return l
}

// every is how often each of them asks: together they ask once in a few milliseconds. A port that a connection had is not used again for a
// minute, and clients have some tens of thousands, which must last for as long as an agent may take to start; and more questions than that take
// the processors from the agent that starts.
const every = 20 * time.Millisecond

func (l *load) repeat(ctx context.Context, ask func() error) {
	l.done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(every) {
			if err := ask(); err != nil {
				l.mu.Lock()
				l.failures = append(l.failures, err.Error())
				l.mu.Unlock()
				return
			}
			l.answers.Add(1)
		}
	})
}

// more waits for that many further answers, or a failure.
func (s *service) more(l *load, answers int64) {
	s.t.Helper()
	from := l.answers.Load()
	s.await(fmt.Sprintf("%d more answers", answers), func() bool { return l.answers.Load() >= from+answers || l.failed() > 0 })
}

func (l *load) failed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.failures)
}

func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.done.Wait()
	for _, f := range l.failures {
		t.Errorf("lost: %s", f)
	}
}

const some = 400 // answers that count as traffic flowing

// Promise 1: a killed agent costs no connection, its successor changes nothing in the tables and follows what comes next.
func TestAnAgentKilledUnderLoadLosesNoConnection(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
		s := c.service(1)
		s.publish(ready(near, far)...)
		for _, w := range ways() {
			c.await("both answer over "+w.String(), s.bothAnswer(client, w))
		}
		before := c.dump(0)
		l := s.startLoad(client)
		s.more(l, some)
		if err := c.agents[0].Kill(); err != nil {
			t.Fatal(err)
		}
		s.more(l, some)
		c.agents[0] = c.startAgent(0)
		c.awaitServing(0)
		s.more(l, some)
		if after := c.dump(0); after != before {
			t.Errorf("tables before the kill:\n%s\nafter the restart:\n%s", before, after)
		}
		l.end(t)

		s.publish(append(ready(far), notReady(near))...)
		s.awaitServer(client, far.Name)
	})
}

func (s *service) bothAnswer(client host, w way) func() bool {
	seen := map[string]bool{}
	return func() bool {
		if answer, err := s.try(client, w); err == nil {
			seen[answer.Server] = true
		}
		return len(seen) == 2
	}
}

// SIGTERM stops the reconciling and leaves traffic flowing.
func TestAnAgentThatIsStoppedLeavesTrafficFlowing(t *testing.T) {
	c := onLinks(t)
	client, backend := c.pod(0, "client"), c.server(1, "web")
	s := c.service(1)
	s.publish(ready(backend)...)
	s.awaitServer(client, backend.Name)
	before := c.dump(0)
	l := s.startLoad(client)
	if err := c.agents[0].Stop(); err != nil {
		t.Errorf("stop agent: %v", err)
	}
	s.more(l, some)
	l.end(t)
	if after := c.dump(0); after != before {
		t.Errorf("tables before:\n%s\nafter the agent's end:\n%s", before, after)
	}
}

// A pod that comes while no agent runs is served as soon as there is one; its device is found again.
func TestAPodThatCameWhileTheAgentWasAwayIsServed(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		first, backend := c.pod(0, "client-1"), c.server(1, "web")
		s := c.service(1)
		s.publish(ready(backend)...)
		s.awaitServer(first, backend.Name)
		if err := c.agents[0].Kill(); err != nil {
			t.Fatal(err)
		}
		second := c.pod(0, "client-2")
		c.agents[0] = c.startAgent(0)
		s.awaitServer(second, backend.Name)
		s.awaitServer(first, backend.Name)
	})
}
