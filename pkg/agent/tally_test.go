// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math/rand/v2"
	"net/netip"
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
		fresh.whys, fresh.byNumber, fresh.answers = running.whys, running.byNumber, running.answers
		if diff := cmp.Diff(fresh, running, cmp.AllowUnexported(tally{})); diff != "" {
			t.Fatalf("tally (-want +got):\n%s", diff)
		}
		running.notable = answersBy(got)
	}
}

// The responder is a backend of the DNS Service, beside its endpoints.
func TestTheTallyCountsBackendsOfEveryState(t *testing.T) {
	in := hinted(1)
	in.Service.Ports[0].Port = 53
	in.Responders = []netip.AddrPort{netip.MustParseAddrPort("169.254.20.10:53")}
	d := decide.Serve(in, newScripted().Node())
	counted, states := newTally(), map[string]int{}
	counted.replace(in.Service.Name, summary{}, &d)
	var s metrics.State
	counted.fill(&s)
	for _, b := range d.Backends {
		states[string(b.State)]++
	}
	if diff := cmp.Diff(states, s.Backends); diff != "" || states[string(lb.Responder)] != 1 {
		t.Errorf("backends by state (-want +got):\n%s", diff)
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
