// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// history is what Prometheus would have kept: series that end at a moment. It is storage for the engine.
type history struct {
	end    time.Time
	series []*storedSeries
}

type storedSeries struct {
	labels labels.Labels
	points []chunks.Sample
}

const interval = 15 * time.Second

// historyOf stretches scrapes over a time, each as long as the others: numbers that rise go evenly from one scrape to the
// next, others jump, and times that are told move along. A series that a scrape lacks begins, or ends, there.
func historyOf(length time.Duration, scrapes ...scrape) *history {
	h := &history{end: scrapes[len(scrapes)-1].at}
	all := map[string]*storedSeries{}
	steps := int(length / interval)
	for step := range steps + 1 {
		at := h.end.Add(-length + time.Duration(step)*interval)
		position := float64(step) / float64(steps) * float64(len(scrapes)-1)
		before := min(int(position), len(scrapes)-1)
		after := min(before+1, len(scrapes)-1)
		for key, v := range scrapes[before].values {
			value := v.value
			next, lasts := scrapes[after].values[key]
			switch {
			case v.rises && lasts && next.value >= value:
				value += (next.value - value) * (position - float64(before))
			case strings.HasSuffix(v.labels.Get(model.MetricNameLabel), "_timestamp_seconds") && value > 0:
				value += at.Sub(scrapes[before].at).Seconds()
			}
			if all[key] == nil {
				all[key] = &storedSeries{labels: v.labels}
				h.series = append(h.series, all[key])
			}
			all[key].points = append(all[key].points, point{at.UnixMilli(), value})
		}
	}
	return h
}

// with is the history with other values for the series that fit; f is given how long before the end, and the value there was.
func (h *history) with(name string, f func(before time.Duration, value float64) float64, pairs ...string) *history {
	out := &history{end: h.end}
	found := false
	for _, s := range h.series {
		fits := s.labels.Get(model.MetricNameLabel) == name
		for i := 0; fits && i < len(pairs); i += 2 {
			fits = s.labels.Get(pairs[i]) == pairs[i+1]
		}
		if fits {
			found = true
			changed := &storedSeries{labels: s.labels}
			for _, p := range s.points {
				changed.points = append(changed.points, point{p.T(), f(h.end.Sub(time.UnixMilli(p.T())), p.F())})
			}
			s = changed
		}
		out.series = append(out.series, s)
	}
	if !found {
		panic(fmt.Sprint("no series of ", name, pairs))
	}
	return out
}

// and has one series more, at the moments of the others; f is given how long before the end.
func (h *history) and(name string, f func(before time.Duration, value float64) float64, pairs ...string) *history {
	out := &history{end: h.end, series: slices.Clone(h.series)}
	added := &storedSeries{labels: labels.FromStrings(append([]string{model.MetricNameLabel, name}, pairs...)...)}
	for _, p := range h.series[0].points {
		added.points = append(added.points, point{p.T(), f(h.end.Sub(time.UnixMilli(p.T())), 0)})
	}
	out.series = append(out.series, added)
	return out
}

// without lacks the series of a metric.
func (h *history) without(name string) *history {
	out := &history{end: h.end}
	for _, s := range h.series {
		if s.labels.Get(model.MetricNameLabel) != name {
			out.series = append(out.series, s)
		}
	}
	return out
}

// values are those that a label of a metric has.
func (h *history) values(name, label string) (all []string) {
	for _, s := range h.series {
		if value := s.labels.Get(label); s.labels.Get(model.MetricNameLabel) == name && !slices.Contains(all, value) {
			all = append(all, value)
		}
	}
	return all
}

// names are the metrics that there are.
func (h *history) names() map[string]bool {
	out := map[string]bool{}
	for _, s := range h.series {
		out[s.labels.Get(model.MetricNameLabel)] = true
	}
	return out
}

// query evaluates an expression some time before the end.
func (h *history) query(t *testing.T, expression string, before time.Duration) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e8, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true})
	defer engine.Close()
	query, err := engine.NewInstantQuery(t.Context(), h, nil, expression, h.end.Add(-before))
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return nil
	}
	defer query.Close()
	result := query.Exec(t.Context())
	if result.Err != nil {
		t.Errorf("%s: %v", expression, result.Err)
		return nil
	}
	for _, warning := range result.Warnings.AsErrors() {
		t.Errorf("%s: %v", expression, warning)
	}
	vector, err := result.Vector()
	if err != nil {
		t.Errorf("%s: %v", expression, err)
	}
	return slices.Clone(vector)
}

// Querier is storage.Queryable's.
func (h *history) Querier(from, to int64) (storage.Querier, error) { return querier{h, from, to}, nil }

type querier struct {
	*history
	from, to int64
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, s := range q.series {
		fits := !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) })
		if fits {
			found = append(found, storage.NewListSeries(s.labels, s.points))
		}
	}
	slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &seriesSet{list: found}
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type seriesSet struct {
	list []storage.Series
	next int
}

func (s *seriesSet) Next() bool                      { s.next++; return s.next <= len(s.list) }
func (s *seriesSet) At() storage.Series              { return s.list[s.next-1] }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// point is a chunks.Sample.
type point struct {
	at    int64
	value float64
}

func (p point) T() int64                    { return p.at }
func (point) ST() int64                     { return 0 }
func (p point) F() float64                  { return p.value }
func (point) H() *histogram.Histogram       { return nil }
func (point) FH() *histogram.FloatHistogram { return nil }
func (point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample         { return p }
