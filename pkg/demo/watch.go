// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

const (
	enough = 3           // right answers in a row that count as "the change is here"
	window = time.Second // what the live table looks back on
)

// watch collects every client's outcomes and compares them with what the current step expects.
type watch struct {
	probes []*probe

	mu      sync.Mutex // guards what follows and the probes' fields that say so
	want    []string   // by client; nil before the first step
	before  []string   // what was expected before; nil in the first step: anything goes until the change arrived
	change  time.Time
	ready   bool // every probe saw the change
	seen    []map[string]bool
	sums    Result // Requests, Lost, Wrong, Refusal of the step
	recent  []event
	total   int
	totals  int // lost and wrong over all steps
	held    Held
	started time.Time
}

// event is one outcome, for the live table.
type event struct {
	at      time.Time
	client  int
	outcome string
}

// Held counts the TCP connections that stay open over all steps.
type Held struct{ Open, Answers, Lost int }

func newWatch(d *demo) *watch {
	w := &watch{started: time.Now(), seen: make([]map[string]bool, len(d.clients))}
	for i, client := range d.clients {
		for _, address := range clusterIPs() {
			for _, network := range []string{"tcp", "udp"} {
				to := netip.AddrPortFrom(address, servicePort)
				w.probes = append(w.probes, &probe{client: i, pod: client, network: network, to: to})
			}
		}
	}
	return w
}

// expect begins a step: until changed is called the old outcome is right as well as the new one.
func (w *watch) expect(want []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before, w.want = w.want, want
	w.change, w.ready, w.sums = time.Time{}, false, Result{}
	for i := range w.seen {
		w.seen[i] = map[string]bool{}
	}
	for _, p := range w.probes {
		p.row = 0
	}
}

// changed says when the step's change was made: outcomes of what began later count.
func (w *watch) changed(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.change = at
}

// settled says whether every probe has seen the change.
func (w *watch) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready
}

// promised says whether the first step's change has arrived, for this probe at least: its questions must be answered from then on.
func (w *watch) promised(p *probe) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.before != nil || w.ready || p.row > 0
}

// note takes in one outcome of a probe.
func (w *watch) note(p *probe, began, ended time.Time, outcome string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recent = append(w.recent, event{ended, p.client, outcome})
	p.last = outcome
	if w.want == nil {
		return
	}
	right := outcome == w.want[p.client]
	w.sums.Requests++
	w.total++
	if outcome == refused && right {
		w.sums.Refusal = max(w.sums.Refusal, ended.Sub(began))
	}
	if !right {
		w.blame(p, outcome)
	}
	if w.ready {
		w.seen[p.client][outcome] = true
	}
	w.follow(p, began, ended, right)
}

// blame counts an outcome that is not the one wanted.
func (w *watch) blame(p *probe, outcome string) {
	switch {
	case w.before == nil && !w.ready: // nothing is promised before the first objects arrived
	case w.ready:
		w.sums.Wrong++
		w.totals++
	case w.before != nil && outcome != w.before[p.client]:
		w.sums.Lost++
		w.totals++
	}
}

// follow sees whether the change has reached the probe, and so all of them.
func (w *watch) follow(p *probe, began, ended time.Time, right bool) {
	if w.ready || w.change.IsZero() || began.Before(w.change) {
		return
	}
	if !right {
		p.row = 0
		return
	}
	if p.row++; p.row == 1 {
		p.since = ended
	}
	w.ready = !slices.ContainsFunc(w.probes, func(o *probe) bool { return o.row < enough })
	if w.ready {
		for _, o := range w.probes {
			w.seen[o.client][o.last] = true
		}
		last := slices.MaxFunc(w.probes, func(a, b *probe) int { return a.since.Compare(b.since) })
		w.sums.Took = last.since.Sub(w.change)
	}
}

// conclude fills the result of the step that ends.
func (w *watch) conclude(r *Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Took, r.Refusal = w.sums.Took, w.sums.Refusal
	r.Requests, r.Lost, r.Wrong = w.sums.Requests, w.sums.Lost, w.sums.Wrong
	for i, seen := range w.seen {
		r.Seen = append(r.Seen, joined(seen))
		if !w.ready {
			r.Seen[i] = joined(w.latest(i))
		}
	}
}

// latest are the newest outcomes of a client's probes.
func (w *watch) latest(client int) map[string]bool {
	out := map[string]bool{}
	for _, p := range w.probes {
		if p.client == client && p.last != "" {
			out[p.last] = true
		}
	}
	return out
}

func joined(set map[string]bool) string {
	var names []string
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

func (w *watch) heldState() Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

// rates are the outcomes of the last second, by client.
func (w *watch) rates() []map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	horizon := time.Now().Add(-window)
	w.recent = slices.DeleteFunc(w.recent, func(e event) bool { return e.at.Before(horizon) })
	out := make([]map[string]int, len(w.seen))
	for i := range out {
		out[i] = map[string]int{}
	}
	for _, e := range w.recent {
		out[e.client][e.outcome]++
	}
	return out
}

// right says of each of a client's probes, in their order, whether its newest outcome is the wanted one.
func (w *watch) right(client int) []bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []bool
	for _, p := range w.probes {
		if p.client == client {
			out = append(out, w.want != nil && p.last == w.want[client])
		}
	}
	return out
}

func (w *watch) count() (total, bad int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total, w.totals
}

// probe is one client talking to the service over one protocol and family.
type probe struct {
	client  int
	pod     *lab.Pod
	network string
	to      netip.AddrPort
	asked   int

	row   int       // right outcomes in a row since the change; guarded by watch.mu
	since time.Time // when the first of them came; guarded by watch.mu
	last  string    // guarded by watch.mu
}
