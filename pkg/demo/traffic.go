// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
)

const (
	askEvery  = 20 * time.Millisecond // each probe makes that many new connections
	heldEvery = 50 * time.Millisecond
)

// run makes one new connection after the other until ctx ends.
func (p *probe) run(ctx context.Context, w *watch) {
	every(ctx, askEvery, func() {
		began := time.Now()
		answer, err := p.pod.Ask(ctx, p.network, p.to, p.options(w.promised(p)))
		if ctx.Err() == nil {
			w.note(p, began, time.Now(), outcome(answer, err))
		}
	})
}

// firstPort and lastPort are below those that the kernel hands out.
const firstPort, lastPort = 2000, 32000

// options of the next question. A datagram from a port that was used a minute ago belongs to an old flow, which keeps its
// backend: so UDP asks from a port of its own each time. TCP says itself that a connection is new. Before anything is
// served, nobody waits for an answer for long.
func (p *probe) options(promised bool) lab.DialOptions {
	options := lab.DialOptions{}
	if !promised {
		options.Patience = 500 * time.Millisecond
	}
	if p.network == "udp" {
		p.asked++
		options.LocalPort = uint16(firstPort + p.asked%(lastPort-firstPort))
	}
	return options
}

func every(ctx context.Context, period time.Duration, f func()) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f()
		}
	}
}

// outcome is the server's name, refused, or what else happened.
func outcome(answer lab.Answer, err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return answer.Server
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	}
	return "error"
}

// holdConnections opens TCP connections that are used, whatever becomes of the backends' readiness, until last is called: it waits
// for one more answer of each, so that one that fell silent is counted.
func (d *demo) holdConnections(ctx context.Context, talk *errgroup.Group) (last func()) {
	asking, enough := context.WithCancel(ctx)
	var held sync.WaitGroup
	for _, client := range d.clients {
		for _, address := range clusterIPs() {
			held.Add(1)
			talk.Go(func() error {
				defer held.Done()
				d.holdConnection(ctx, asking, client, netip.AddrPortFrom(address, servicePort))
				return nil
			})
		}
	}
	return func() {
		enough()
		held.Wait()
	}
}

// holdConnection asks on one connection until asking ends, and once more unless the demo does.
func (d *demo) holdConnection(ctx, asking context.Context, client *lab.Pod, to netip.AddrPort) {
	conn, err := client.Dial(ctx, "tcp", to, lab.DialOptions{})
	if err != nil {
		d.watch.noteHeld(ctx, 0, false)
		return
	}
	defer conn.Close()
	first, err := conn.Who()
	d.watch.noteHeld(ctx, 1, err == nil)
	ask := func() {
		answer, err := conn.Who()
		d.watch.noteHeld(ctx, 0, err == nil && answer.Server == first.Server)
	}
	every(asking, heldEvery, ask)
	if ctx.Err() == nil {
		ask()
	}
}

// noteHeld counts an answer on a connection held open. What fails because the demo ends does not count.
func (w *watch) noteHeld(ctx context.Context, opened int, ok bool) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held.Open += opened
	if ok {
		w.held.Answers++
	} else {
		w.held.Lost++
	}
}
