// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// stage is a demo without a lab: three clients and servers by name only.
func stage() *demo {
	d := &demo{ready: []bool{true, false, true}}
	for i, zone := range []string{"a", "a", "b"} {
		n := &lab.Node{Host: named(fmt.Sprintf("n%d", i+1)), Options: lab.NodeOptions{Zone: zone}}
		d.nodes = append(d.nodes, n)
		d.servers = append(d.servers, &lab.Pod{Host: named(fmt.Sprintf("web-%d", i+1)), Node: n})
		d.clients = append(d.clients, &lab.Pod{Host: named(fmt.Sprintf("client-%d", i+1)), Node: n})
	}
	d.steps = d.script()
	d.watch = newWatch(d)
	return d
}

// round has every probe report one outcome, by client.
func (w *watch) round(began time.Time, outcomes ...string) {
	for _, p := range w.probes {
		w.note(p, began, began.Add(time.Millisecond), outcomes[p.client])
	}
}

var (
	own  = []string{"web-1", "web-2", "web-3"}
	next = []string{"web-2", "web-2", "web-3"}
)

// arrive brings a watch to the end of its first step.
func arrive(w *watch, start time.Time) {
	w.expect(own)
	w.changed(start)
	for range enough {
		w.round(start, own...)
	}
}

func TestAChangeHasArrivedWhenEveryProbeSawItSeveralTimes(t *testing.T) {
	d, start := stage(), time.Now()
	w := d.watch
	w.expect(own)
	w.round(start, "timeout", "timeout", "timeout") // nothing is promised before the first objects are there
	w.changed(start)
	for i := range enough {
		if w.settled() {
			t.Fatalf("settled after %d rounds", i)
		}
		w.round(start.Add(time.Duration(i)*time.Second), own...)
	}
	if !w.settled() {
		t.Fatal("not settled")
	}
	var r Result
	w.conclude(&r)
	r.Seen = nil
	want := Result{Took: time.Millisecond, Requests: (enough + 1) * len(w.probes)}
	if fmt.Sprint(r) != fmt.Sprint(want) || !r.OK() {
		t.Errorf("result %+v, want %+v", r, want)
	}
}

func TestOldAndNewOutcomesAreRightWhileAChangeIsOnItsWay(t *testing.T) {
	d, start := stage(), time.Now()
	arrive(d.watch, start)
	d.watch.expect(next)
	d.watch.changed(start)
	d.watch.round(start, own...)
	for range enough {
		d.watch.round(start, next...)
	}
	var r Result
	d.watch.conclude(&r)
	if !r.OK() || brief(r.Seen) != "web-2 web-2 web-3" {
		t.Errorf("result %+v", r)
	}
}

func TestWhatIsNeitherOldNorNewIsLost(t *testing.T) {
	d, start := stage(), time.Now()
	arrive(d.watch, start)
	d.watch.expect(next)
	d.watch.changed(start)
	d.watch.round(start, "timeout", "web-2", "web-3")
	for range enough {
		d.watch.round(start, next...)
	}
	var r Result
	d.watch.conclude(&r)
	if r.OK() || r.Lost != 4 || r.Verdict() != "FAILED: 4 lost" {
		t.Errorf("result %+v", r)
	}
}

func TestTheOldOutcomeIsWrongOnceTheChangeArrived(t *testing.T) {
	d, start := stage(), time.Now()
	arrive(d.watch, start)
	d.watch.expect(next)
	d.watch.changed(start)
	for range enough {
		d.watch.round(start, next...)
	}
	d.watch.round(start, own...)
	var r Result
	d.watch.conclude(&r)
	if r.OK() || r.Wrong != 4 || r.Seen[0] != "web-1+web-2" {
		t.Errorf("result %+v", r)
	}
}

// Else a question that nobody waited for long enough would be wrong as soon as the change has arrived everywhere.
func TestAProbeThatWasAnsweredOnceWaitsForEveryAnswer(t *testing.T) {
	d, start := stage(), time.Now()
	w := d.watch
	w.expect(own)
	w.changed(start)
	p := w.probes[0]
	for _, row := range []struct {
		outcome  string
		promised bool
	}{{"timeout", false}, {own[p.client], true}, {"timeout", false}} {
		w.note(p, start, start, row.outcome)
		if w.promised(p) != row.promised {
			t.Errorf("after %q an answer is promised: %t", row.outcome, !row.promised)
		}
	}
	arrive(w, start)
	if !w.promised(p) {
		t.Error("no answer is promised though the change has arrived")
	}
}

func TestAnAnswerToAQuestionFromBeforeTheChangeSaysNothing(t *testing.T) {
	d, start := stage(), time.Now()
	w := d.watch
	w.expect(own)
	w.changed(start)
	for range enough {
		w.round(start.Add(-time.Second), own...)
	}
	if w.settled() {
		t.Error("settled by answers to earlier questions")
	}
}

func named(name string) lab.Host { return lab.Host{Namespace: &lab.Namespace{Name: name}} }
