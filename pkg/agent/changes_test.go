// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// toldChanges are the changes that came since the last call.
type toldChanges struct {
	*changes
	number uint64
}

func newTold(t *testing.T) *toldChanges {
	log, err := journal.OpenLog(t.TempDir()+"/changes.jsonl", changeBytes)
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{options: Options{NodeName: "n1"}, log: slog.New(slog.NewTextHandler(io.Discard, nil)), diary: newDiary()}
	return &toldChanges{changes: &changes{agent: d, log: log}}
}

func (l *toldChanges) lines(t *testing.T) (all []string) {
	t.Helper()
	lines, next, _, _ := l.log.From(l.number)
	l.number = next
	for _, line := range lines {
		var c journal.Change
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if c.Node != "n1" || c.Time.IsZero() {
			t.Errorf("of node %q at %v", c.Node, c.Time)
		}
		all = append(all, c.What+" "+c.Backend+c.Frontend+": "+c.Because)
	}
	return all
}

func TestChangesNameTheObjectBehindThem(t *testing.T) {
	tables, changed := maps.NewFake(testSizes), newTold(t)
	tables.Note(true)
	node := lb.Node{Name: "n1", Zone: "a"}
	apply := func(in lb.Input, want ...string) {
		t.Helper()
		decision := decide.Serve(in, node)
		stats, err := tables.Apply(decision)
		if err != nil {
			t.Fatal(err)
		}
		changed.published(&outcome{service: in.Service.Name, exists: true, decision: decision, stats: stats, input: in, node: node})
		if got := changed.lines(t); !slices.Equal(got, want) {
			t.Errorf("told\n%q\nwant\n%q", got, want)
		}
	}
	next := func(change func(*lb.Input)) lb.Input {
		in := input(1, 2)
		change(&in)
		return in
	}
	const first, second = "10.128.1.1:8080", "10.128.1.2:8080"
	apply(input(1, 1), "frontend-added 10.96.0.1:80: Service default/s1: spec.clusterIPs", "backend-added "+first+": EndpointSlice default/s: ready")
	apply(input(1, 2), "backend-added "+second+": EndpointSlice default/s: ready")
	apply(next(func(in *lb.Input) { in.Endpoints[1].Ready = false }), "backend-removed "+second+": EndpointSlice default/s: not ready")
	apply(input(1, 2), "backend-added "+second+": EndpointSlice default/s: ready")
	apply(next(func(in *lb.Input) { in.Endpoints[1].Ready, in.Endpoints[1].Terminating = false, true }),
		"backend-removed "+second+": EndpointSlice default/s: terminating")
	apply(input(1, 2), "backend-added "+second+": EndpointSlice default/s: ready")
	apply(input(1, 1), "backend-removed "+second+": EndpointSlice default/s: removed")
	local := next(func(in *lb.Input) { in.Service.Internal = lb.PolicyLocal })
	apply(local, "policy-changed 10.96.0.1:80: Service default/s1: spec.internalTrafficPolicy")
	apply(next(func(in *lb.Input) { in.Service.Internal = lb.PolicyLocal; in.Service.Affinity = 1e9 }),
		"affinity-changed 10.96.0.1:80: Service default/s1: spec.sessionAffinity")
	stats, err := tables.Remove(serviceName(1))
	if err != nil {
		t.Fatal(err)
	}
	changed.published(&outcome{service: serviceName(1), stats: stats})
	if got := changed.lines(t); len(got) != 2 || !slices.Contains(got, "frontend-removed 10.96.0.1:80: Service default/s1: deleted, or not to be served any more") {
		t.Errorf("of a Service that was deleted: %q", got)
	}
}

func TestManyChangesAtOnceAreFewLines(t *testing.T) {
	tables, changed := maps.NewFake(testSizes), newTold(t)
	tables.Note(true)
	in := input(1, 200)
	stats, err := tables.Apply(decide.Serve(in, lb.Node{Name: "n1"}))
	if err != nil {
		t.Fatal(err)
	}
	changed.published(&outcome{service: in.Service.Name, exists: true, stats: stats, input: in, node: lb.Node{Name: "n1"}})
	got := changed.lines(t)
	if len(got) != changesAtOnce+1 || got[changesAtOnce] != "more-changed : as the 64 before" {
		t.Errorf("%d lines, the last one %q", len(got), got[len(got)-1])
	}
}

func TestTheNodeIsToldOfWhenItIsAnotherOne(t *testing.T) {
	changed := newTold(t)
	node := lb.Node{Name: "n1", Zone: "a"}
	for _, row := range []struct {
		zone string
		done bool
		want []string
	}{{"a", false, nil}, {"b", false, nil}, {"a", true, nil}, {"c", true, []string{"node-changed : Node n1, or the addresses of the host"}}, {"c", true, nil}} {
		node.Zone = row.zone
		if changed.configured(node, row.done); !slices.Equal(changed.lines(t), row.want) {
			t.Errorf("zone %s, everything published %v: want %q", row.zone, row.done, row.want)
		}
	}
}
