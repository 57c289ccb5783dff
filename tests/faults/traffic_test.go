// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// way is a protocol and a family.
type way struct {
	network string
	six     bool
}

func ways() []way { return []way{{"tcp", false}, {"udp", false}, {"tcp", true}, {"udp", true}} }

func (w way) String() string { return w.network + map[bool]string{false: "4", true: "6"}[w.six] }

// client is who asks: a pod, a node, or a host outside of the cluster.
type client interface {
	Dial(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (*lab.Conn, error)
	Ask(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (lab.Answer, error)
	String() string
}

// refused is the answer of nobody.
const refused = "refused"

// answer is who answers a new connection. Nobody, said at once, is refused; anything else is an error. A socket of the node that
// the agent ended, as its backend went between question and answer, asks again (docs/differences.md).
func answer(c client, w way, to netip.AddrPort) (string, error) {
	a, err := c.Ask(context.Background(), w.network, to, lab.DialOptions{})
	for w.network == "udp" && (errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EDESTADDRREQ)) { // as it receives, as it sends
		a, err = c.Ask(context.Background(), w.network, to, lab.DialOptions{})
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return refused, nil
	}
	return a.Server, err
}

// traffic is clients that ask all the time, and what went wrong with them.
type traffic struct {
	*cluster
	ctx     context.Context
	stop    context.CancelFunc
	done    sync.WaitGroup
	answers atomic.Int64

	mu       sync.Mutex
	failures []string
}

// pace is the time between two questions of one client: it leaves the machine to those who are tested.
const pace = 10 * time.Millisecond

func (c *cluster) traffic() *traffic {
	ctx, stop := context.WithCancel(context.Background())
	t := &traffic{cluster: c, ctx: ctx, stop: stop}
	c.t.Cleanup(func() { stop(); t.done.Wait() })
	return t
}

// repeat asks again and again, until the end or the first error.
func (t *traffic) repeat(what string, ask func() error) {
	t.done.Go(func() {
		for t.ctx.Err() == nil {
			if err := ask(); err != nil {
				t.mu.Lock()
				t.failures = append(t.failures, what+": "+err.Error())
				t.mu.Unlock()
				return
			}
			t.answers.Add(1)
			time.Sleep(pace)
		}
	})
}

// hold keeps a connection of each way in use.
func (t *traffic) hold(from client, to func(six bool) netip.AddrPort) {
	t.t.Helper()
	for _, w := range ways() {
		t.holdOne(from, w, to(w.six))
	}
}

// holdOne keeps a connection in use whose answers come from who gave the first one, over TCP; over UDP from anybody.
func (t *traffic) holdOne(from client, w way, to netip.AddrPort) {
	t.t.Helper()
	conn, err := from.Dial(context.Background(), w.network, to, lab.DialOptions{})
	t.must(err)
	t.t.Cleanup(func() { _ = conn.Close() })
	first, err := conn.Who()
	t.must(err)
	t.repeat(fmt.Sprintf("%s holds %s %s", from, w, to), func() error {
		a, err := conn.Who()
		if err == nil && a.Server != first.Server && w.network == "tcp" {
			err = fmt.Errorf("%s answers a connection with %s", a.Server, first.Server)
		}
		return err
	})
}

// ask makes new connections of every way, each answered by one of those allowed.
func (t *traffic) ask(from client, to func(six bool) netip.AddrPort, allowed ...*lab.Pod) {
	for _, w := range ways() {
		t.askOver(from, w, to(w.six), allowed...)
	}
}

func (t *traffic) askOver(from client, w way, to netip.AddrPort, allowed ...*lab.Pod) {
	t.repeat(fmt.Sprintf("%s asks %s %s", from, w, to), func() error {
		got, err := answer(from, w, to)
		for _, p := range allowed {
			if err == nil && got == p.Name {
				return nil
			}
		}
		return fmt.Errorf("answer %q, %w", got, err)
	})
}

// more waits for that many further answers, or a failure.
func (t *traffic) more(answers int64) {
	t.t.Helper()
	from := t.answers.Load()
	t.await(fmt.Sprintf("%d more answers", answers), func() bool { return t.answers.Load() >= from+answers || t.failed() })
}

func (t *traffic) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}

// end stops the clients and tells what they met.
func (t *traffic) end(test *testing.T) {
	test.Helper()
	t.stop()
	t.done.Wait()
	for _, f := range t.failures {
		test.Errorf("traffic: %s", f)
	}
	test.Logf("%d answers", t.answers.Load())
}

// awaitAnswers waits until new connections of every way are answered by these: by one another, and by all of them.
func (c *cluster) awaitAnswers(from client, to func(six bool) netip.AddrPort, want ...*lab.Pod) {
	c.t.Helper()
	for _, w := range ways() {
		c.awaitOver(from, w, to(w.six), want...)
	}
}

// inARow is how many new connections in a row count as all of them.
const inARow = 10

// awaitOver is awaitAnswers over one way; without pods, everybody is to be refused.
func (c *cluster) awaitOver(from client, w way, to netip.AddrPort, want ...*lab.Pod) {
	c.t.Helper()
	names := map[string]bool{}
	for _, p := range want {
		names[p.Name] = true
	}
	if len(want) == 0 {
		names[refused] = true
	}
	c.await(fmt.Sprintf("%s asks %s %s, wants %v", from, w, to, slices.Sorted(maps.Keys(names))), func() bool {
		seen := map[string]bool{}
		for range inARow * len(names) {
			a, err := from.Ask(context.Background(), w.network, to, lab.DialOptions{Patience: time.Second})
			if errors.Is(err, unix.ECONNREFUSED) {
				a.Server, err = refused, nil
			}
			if err != nil || !names[a.Server] {
				return false
			}
			seen[a.Server] = true
		}
		return len(seen) == len(names)
	})
}
