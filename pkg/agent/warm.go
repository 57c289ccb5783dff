// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// warming is since when the endpoints of Services with a slow start have been ready, as far as this agent has seen them become so. The
// zero time stands for those that were ready when the Service, or its annotation, was seen first: nobody knows since when, and a restart
// moves no connections. Loops hand it on when tables grow.
type warming struct {
	began time.Time // steps are taken at multiples of a tenth since then, by all endpoints of a Service at once

	mu    sync.Mutex
	since map[lb.ServiceName]map[warmKey]time.Time
}

// warmKey tells endpoints of one Service apart.
type warmKey struct {
	port    lb.PortKey
	address netip.AddrPort
}

func keyOfEndpoint(e *lb.Endpoint) warmKey {
	return warmKey{e.Port, netip.AddrPortFrom(e.Address.Addr().Unmap(), e.Address.Port())}
}

func newWarming() *warming {
	return &warming{began: time.Now(), since: map[lb.ServiceName]map[warmKey]time.Time{}}
}

func (w *warming) forget(name lb.ServiceName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, name)
}

// heat says of each endpoint how far it has come, and when some will have come further; 0: none will. Its work grows with the Service's
// endpoints. An endpoint that was not ready for a while begins again.
func (w *warming) heat(in *lb.Input, now time.Time) (next time.Duration) {
	span := in.Service.SlowStart
	if span == 0 {
		w.forget(in.Service.Name)
		return 0
	}
	tenth := span / lb.WarmSteps
	step := func(t time.Time) time.Duration { return t.Sub(w.began) / tenth }
	since := w.note(in, now, func(from time.Time) bool { return step(now)-step(from) >= lb.WarmSteps })
	in.Endpoints = slices.Clone(in.Endpoints) // which are the source's
	for i := range in.Endpoints {             // copies that are not ready, too: the copy that counts is chosen later, and all say the same
		e := &in.Endpoints[i]
		from := since[keyOfEndpoint(e)]
		if !from.IsZero() {
			e.Warm = uint8(max(1, step(now)-step(from)))
			next = w.began.Add((step(now) + 1) * tenth).Sub(now)
		}
	}
	return next
}

// note gives since when the ready endpoints have been so; the zero time for those that are warm.
func (w *warming) note(in *lb.Input, now time.Time, warm func(since time.Time) bool) map[warmKey]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.since[in.Service.Name]
	after := make(map[warmKey]time.Time, len(in.Endpoints))
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if !e.Ready {
			continue
		}
		key := keyOfEndpoint(e)
		from, was := before[key]
		if known && !was {
			from = now
		} else if warm(from) {
			from = time.Time{}
		}
		after[key] = from
	}
	w.since[in.Service.Name] = after
	return after
}
