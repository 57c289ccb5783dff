// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// weights are those of a Service's backends as they were published last, in the order of their addresses, and the part of the connections
// that the last of them gets.
func (b *bench) weights(name lb.ServiceName) (weights []uint32, last float64) {
	for _, backend := range b.tables.applied[name].Backends {
		weights = append(weights, backend.Weight)
	}
	shares := decide.SharesOf(weights)
	sum := uint32(0)
	for _, share := range shares {
		sum += share
	}
	if sum == 0 {
		return weights, 1 / float64(len(weights))
	}
	return weights, float64(shares[len(shares)-1]) / float64(sum)
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
			if fmt.Sprint(got) != want || math.Abs(share-due) > 0.01*due+0.0001 {
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
		if len(b.warming) != 0 {
			t.Errorf("kept: %v", b.warming)
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
		if got, _ := b.weights(name); fmt.Sprint(got) != "[100 300]" {
			t.Errorf("weights %v at the end", got)
		}
	})
}
