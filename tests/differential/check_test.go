// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/trace"
)

const (
	fewPackets  = 3    // are enough where one thing can happen
	manyPackets = 3000 // miss a backend of six with a probability that nobody will see
)

// check sends packets from one source port after the other until all that may happen happened, and nothing else.
func (m *model) check(t *rapid.T, tracer *trace.Tracer, p first) []outcome {
	want := m.outcomes(p)
	if f, ok := m.find(p); ok && f.service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && len(want) > 1 {
		m.checkAffinity(t, tracer, p, want)
		return want
	}
	missing := slices.Clone(want)
	for i := 0; i < fewPackets || i < manyPackets && len(missing) > 0; i++ {
		got := seen(m.ask(t, tracer, p, i, 1))
		if !slices.Contains(want, got) {
			t.Fatalf("packet %d of %v from %s to %v %v:\n%s\nmay be\n%v\n%v", i, p.src, p.from, p.address, p.protocol, got, lines(want), m.World)
		}
		missing = slices.DeleteFunc(missing, func(o outcome) bool { return o == got })
	}
	if len(missing) > 0 {
		t.Fatalf("%v from %s to %v %v: never\n%v\n%v", p.src, p.from, p.address, p.protocol, lines(missing), m.World)
	}
	return want
}

// checkAffinity: all connections of the client go where its first one went.
func (m *model) checkAffinity(t *rapid.T, tracer *trace.Tracer, p first, want []outcome) {
	answer := m.ask(t, tracer, p, 0, 8)
	if got := seen(answer); !slices.Contains(want, got) {
		t.Fatalf("%v from %s to %v %v, with session affinity:\n%s\nmay be\n%v\n%v", p.src, p.from, p.address, p.protocol, got, lines(want), m.World)
	}
}

func (m *model) ask(t *rapid.T, tracer *trace.Tracer, p first, i, count int) trace.Answer {
	protocol, err := lb.ParseProtocol(string(p.protocol))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := tracer.Do(trace.Request{
		From: p.from, Source: netip.AddrPortFrom(p.src, uint16(20000+i)), To: p.address, Protocol: protocol, Count: count,
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func lines(all []outcome) string {
	var out []string
	for _, o := range all {
		out = append(out, "  "+string(o))
	}
	return strings.Join(out, "\n")
}

// form is verdict and reason alone.
func (o outcome) form() string {
	words := strings.FieldsFunc(string(o), func(r rune) bool { return r == ' ' || r == ',' })
	return words[0] + " " + words[1]
}
