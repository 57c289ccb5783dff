// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// weights are what a Service's backends were due to as they were published last, in the order of their addresses, and the part of the
// connections that the last of them gets.
func (b *bench) weights(name lb.ServiceName) (due []uint32, last float64) {
	b.tables.mu.Lock()
	defer b.tables.mu.Unlock()
	var weights []uint32
	for _, backend := range b.tables.applied[name].Backends {
		weights, due = append(weights, backend.Weight), append(due, backend.Due())
	}
	shares := decide.SharesOf(weights, due)
	sum := uint32(0)
	for _, share := range shares {
		sum += share
	}
	if sum == 0 {
		return due, 1 / float64(len(due))
	}
	return due, float64(shares[len(shares)-1]) / float64(sum)
}

// slow is a Service with a slow start of ten seconds.
func slow(endpoints int) lb.Input {
	in := input(1, endpoints)
	in.Service.SlowStart = 10 * time.Second
	return in
}

func TestAnEndpointThatBecomesReadyComesToItsShareInSteps(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.publishAll(slow(3))
		name := serviceName(1)
		if got, _ := b.weights(name); fmt.Sprint(got) != "[0 0 0]" {
			t.Errorf("weights of the endpoints that were there at the start: %v", got)
		}
		b.source.put(slow(4))
		b.ServiceChanged(name)
		b.settle()
		for second := range 13 {
			got, share := b.weights(name)
			steps := min(10, max(1, second))
			want := fmt.Sprintf("[1000 1000 1000 %d]", 100*steps)
			if steps == 10 {
				want = "[0 0 0 0]"
			}
			due := float64(steps) / float64(30+steps)
			if fmt.Sprint(got) != want || math.Abs(share-due) > 0.0015 {
				t.Errorf("after %d s: weights %v, a share of %.4f; want %s, %.4f", second, got, share, want, due)
			}
			b.after(time.Second)
		}
		b.tables.taken()
		b.after(time.Hour)
		for _, call := range b.tables.taken() {
			if call == "apply s1" {
				t.Errorf("published again when all are warm")
			}
		}
	})
}

func TestAnEndpointThatWasNotReadyForAWhileBeginsAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.publishAll(slow(2))
		name := serviceName(1)
		pause := slow(2)
		pause.Endpoints[1].Ready = false
		b.source.put(pause)
		b.ServiceChanged(name)
		b.after(time.Minute)
		b.source.put(slow(2))
		b.ServiceChanged(name)
		b.after(5 * time.Second)
		if got, _ := b.weights(name); fmt.Sprint(got) != "[1000 500]" {
			t.Errorf("weights %v half-way", got)
		}
		without := input(1, 2)
		b.source.put(without)
		b.ServiceChanged(name)
		b.settle()
		if got, _ := b.weights(name); fmt.Sprint(got) != "[0 0]" {
			t.Errorf("weights %v without the annotation", got)
		}
		b.after(time.Minute)
		b.warming.mu.Lock()
		defer b.warming.mu.Unlock()
		if len(b.warming.since) != 0 {
			t.Errorf("kept: %v", b.warming.since)
		}
	})
}

// Endpoints that begin together share equally; weights hold beside.
func TestASlowStartGoesWithWeights(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.publishAll(slow(0))
		name := serviceName(1)
		in := slow(2)
		in.Endpoints[1].Weight = lb.Weight{Value: 300, Given: true}
		b.source.put(in)
		b.ServiceChanged(name)
		b.after(3 * time.Second)
		if got, share := b.weights(name); fmt.Sprint(got) != "[300 900]" || math.Abs(share-0.75) > 0.01 {
			t.Errorf("weights %v, a share of %.3f", got, share)
		}
		b.after(time.Minute)
		if got, _ := b.weights(name); fmt.Sprint(got) != "[1000 3000]" {
			t.Errorf("weights %v at the end", got)
		}
	})
}

// Endpoints of one Service take their steps at once: ten publications in its time, however many come, and whenever.
func TestEndpointsThatStartSlowlyTakeTheirStepsTogether(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.publishAll(slow(1))
		name := serviceName(1)
		b.after(time.Minute)
		b.tables.taken()
		const come = 40
		for n := range come {
			b.source.put(slow(2 + n))
			b.ServiceChanged(name)
			b.after(137 * time.Millisecond)
		}
		b.after(time.Minute)
		published := 0
		for _, call := range b.tables.taken() {
			if call == "apply s1" {
				published++
			}
		}
		if most := come + 16; published > most {
			t.Errorf("published %d times for %d endpoints that came in five seconds, want %d at the most", published, come, most)
		}
		if got, _ := b.weights(name); got[0] != 0 {
			t.Errorf("not warm a minute later: %v", got)
		}
	})
}

// What one loop has seen, the next one goes on with; copies of an endpoint are one, however their address is written.
func TestASlowStartGoesOnInTablesThatHaveGrown(t *testing.T) {
	w, in, more := newWarming(), slow(2), slow(3)
	now := w.began
	w.heat(&in, now)
	mapped := more.Endpoints[2]
	mapped.Address = netip.AddrPortFrom(netip.AddrFrom16(mapped.Address.Addr().As16()), mapped.Address.Port())
	more.Endpoints = append(more.Endpoints, mapped)
	w.heat(&more, now)
	again := slow(3)
	again.Endpoints = append(again.Endpoints, mapped)
	next := w.heat(&again, now.Add(3500*time.Millisecond)) // as another loop asks
	var got []uint8
	for _, e := range again.Endpoints {
		got = append(got, e.Warm)
	}
	if fmt.Sprint(got) != "[0 0 3 3]" || next != 500*time.Millisecond {
		t.Errorf("after 3.5 s: %v, the next step in %v", got, next)
	}
}
