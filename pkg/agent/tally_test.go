// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// Whatever comes and goes, the tally is that of what is left, and nothing stays behind.
func TestTheTallyIsThatOfTheServicesThereAre(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	node := newScripted().Node()
	running, services, sums := newTally(), map[lb.ServiceName]*lb.Decision{}, map[lb.ServiceName]summary{}
	for range 300 {
		in := hinted(draw.IntN(9))
		if draw.IntN(2) == 0 {
			in.Endpoints[0].ZoneHints = nil
		}
		if draw.IntN(3) == 0 {
			in.Service.Internal = lb.PolicyLocal
			in.Endpoints = in.Endpoints[1:]
		}
		if draw.IntN(3) == 0 {
			in.Problems = []lb.Problem{{Object: "o", Message: "m"}}
		}
		name, now := in.Service.Name, (*lb.Decision)(nil)
		if draw.IntN(4) > 0 {
			d := decide.Serve(in, node)
			now = &d
		}
		sums[name] = running.replace(name, sums[name], now)
		services[name] = now
		fresh := newTally()
		for name, d := range services {
			fresh.replace(name, summary{}, d)
		}
		got, _ := running.topology()
		want, _ := fresh.topology()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("answers (-want +got):\n%s", diff)
		}
		running.notable, fresh.notable = nil, nil
		fresh.whys, fresh.byNumber = running.whys, running.byNumber
		if diff := cmp.Diff(fresh, running, cmp.AllowUnexported(tally{})); diff != "" {
			t.Fatalf("tally (-want +got):\n%s", diff)
		}
		running.notable = answersBy(got)
	}
}

// answersBy is the order in which a tally holds answers, whose order inside a Service is not kept.
func answersBy(all []metrics.Answer) map[lb.ServiceName][]metrics.Answer {
	out := map[lb.ServiceName][]metrics.Answer{}
	for _, a := range all {
		out[a.Port.Service] = append(out[a.Port.Service], a)
	}
	return out
}
