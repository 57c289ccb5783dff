// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// publish brings one Service's part of the tables up to date, if it is marked.
func (l *loop) publish(name lb.ServiceName) error {
	version, marked := l.start(name)
	if !marked {
		return nil
	}
	began := time.Now()
	outcome, err := l.serve(name)
	if l.isLast(name) {
		l.tables.Settle()
	}
	if outcome.stats.Total() > 0 || err != nil {
		l.reclaimLater()
	}
	for _, other := range outcome.stats.Again {
		l.ServiceChanged(other)
	}
	result := l.finish(name, version, outcome, err)
	l.say(name, result, err)
	l.changes.published(&outcome)
	if result.first {
		l.firstDone()
	}
	if result.leaves {
		l.leave()
	}
	if err != nil {
		l.metrics.Failed(cause(err))
		l.wantRoom(err)
		return err
	}
	l.metrics.Published(time.Since(began), outcome.stats)
	if !outcome.held {
		l.programmed(name)
	}
	l.worked++
	if result.caughtUp {
		l.metrics.Synced(time.Now())
		if l.worked >= muchWork {
			l.handBack()
		}
	}
	return nil
}

// wantRoom tells followRoom that a table had no room for a Service.
func (l *loop) wantRoom(err error) {
	var short *maps.FullError
	if errors.As(err, &short) {
		select {
		case l.full <- short.Table:
		default:
		}
	}
}

// say logs what is news: a failure once, its end, and what changed.
func (l *loop) say(name lb.ServiceName, r result, err error) {
	switch {
	case err != nil && r.news:
		l.log.Error("publish service", "service", name.String(), "error", err)
		l.changes.tell(journal.Change{Service: name.String(), What: "publication-failed", Because: err.Error()})
	case err != nil:
		l.log.Debug("publish service", "service", name.String(), "error", err)
	case r.recovered:
		l.log.Info("published service again", "service", name.String())
		l.changes.tell(journal.Change{Service: name.String(), What: "published-again", Because: "what it failed by is over"})
	case l.log.Enabled(context.Background(), slog.LevelDebug):
		l.log.Debug("published service", "service", name.String(), "change", r.change().String())
	}
}

// serve decides about a Service and writes the decision to the tables. A Service that the source does not have is removed, unless
// the source holds it.
func (l *loop) serve(name lb.ServiceName) (outcome, error) {
	if l.source.Holds(name) {
		return outcome{service: name, held: true, stats: l.tables.Hold(l.asks(name))}, nil
	}
	names := l.namesOf(name)
	in, exists := l.source.Input(name)
	names.narrow()
	if !exists {
		delete(l.triggered, name)
		l.warming.forget(name)
		l.checks.Remove(name)
		l.noteMinding(name, false)
		l.ways.forget(name)
		stats, err := l.tables.Remove(name)
		names.settle(err)
		names.learn(&lb.Decision{Service: name})
		return outcome{service: name, stats: stats}, err
	}
	l.pending(name, in.Triggered)
	names.ask(&in)
	if next := l.warming.heat(&in, time.Now()); next > 0 {
		l.queue.AddAfter(task{warm, name}, next)
	}
	l.noteMinding(name, mindsHost(in))
	node := l.node()
	decision := decide.Serve(in, node)
	decision.OffNode = cmp.Or(decision.OffNode, l.offNode)
	l.ways.note(name, in.Service.OffNode, decision.OffNode, l.tunnelPort != 0 && l.leaving == nil)
	stats, err := l.tables.Apply(decision)
	names.settle(err)
	names.learn(&decision)
	l.check(in, node, err == nil)
	return outcome{service: name, exists: true, decision: decision, stats: stats, input: in, node: node}, err
}

// asks is what a Service whose objects are not all known asks for, where it is listed.
func (l *loop) asks(name lb.ServiceName) lb.Decision {
	in, exists := l.source.Input(name)
	if !exists {
		return lb.Decision{Service: name}
	}
	l.pending(name, in.Triggered)
	return decide.Serve(in, l.node())
}

// check tells what the Service's health check node port answers now. Only a load balancer's Service with traffic policy Local has
// one: all nodes are alike for the others.
func (l *loop) check(in lb.Input, node lb.Node, published bool) {
	s := in.Service
	if s.HealthCheckPort == 0 || s.Type != lb.TypeLoadBalancer || s.External != lb.PolicyLocal {
		l.checks.Remove(s.Name)
		return
	}
	v4, served4 := decide.LocalReady(in, node, true)
	v6, served6 := decide.LocalReady(in, node, false)
	switch { // a Service of one family is asked for on the addresses of both
	case !served4:
		v4 = v6
	case !served6:
		v6 = v4
	}
	if published {
		l.checks.Set(s.Name, s.HealthCheckPort, health.Endpoints{V4: v4, V6: v6})
	} else {
		l.checks.Lower(s.Name, s.HealthCheckPort, health.Endpoints{V4: v4, V6: v6})
	}
}

// pending remembers the oldest change of a Service that is not published yet: the source hands out each time once, and a
// publication may fail.
func (l *loop) pending(name lb.ServiceName, at time.Time) {
	if old := l.triggered[name]; old.IsZero() || !at.IsZero() && at.Before(old) {
		l.triggered[name] = at
	}
}

// programmed measures how long it took from the endpoints' change to here. It ignores changes from before the start, of unknown
// time, and from a clock ahead of ours.
func (l *loop) programmed(name lb.ServiceName) {
	at := l.triggered[name]
	delete(l.triggered, name)
	if at.IsZero() || at.Before(l.started) {
		return
	}
	if latency := time.Since(at); latency >= 0 {
		l.metrics.Programmed(latency)
	}
}

// tableFull is the cause that goes by itself when something is freed.
const tableFull = "table_full"

// cause is one of a few words, for a metric's label.
func cause(err error) string {
	var full *maps.FullError
	if errors.As(err, &full) {
		return tableFull
	}
	return "kernel"
}
