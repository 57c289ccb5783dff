// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A19: what one event costs before anything is written: the decision about all endpoints of the Service.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{3, 100, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := lb.Input{Service: public(), Endpoints: many(n, 100)}
			rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) {
				in.Endpoints[i], in.Endpoints[j] = in.Endpoints[j], in.Endpoints[i]
			})
			node := n1()
			b.ReportAllocs()
			for b.Loop() {
				decide.Decide(in, node)
			}
		})
	}
}

// A19: finding what one changed endpoint means for clients.
func BenchmarkDiff(b *testing.B) {
	endpoints := many(5000, 100)
	before := decide.Decide(lb.Input{Service: public(), Endpoints: endpoints}, n1())
	endpoints[2500].Ready = false
	after := decide.Decide(lb.Input{Service: public(), Endpoints: endpoints}, n1())
	for b.Loop() {
		lb.Diff(before, after)
	}
}
