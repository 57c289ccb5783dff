// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"errors"
	"io"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// scrape is what all agents said at one moment, with the labels that Prometheus gives to targets.
type scrape struct {
	at     time.Time
	values map[string]sample // by the text of the labels
}

type sample struct {
	labels labels.Labels
	rises  bool // part of a counter, histogram or summary
	value  float64
}

func newScrape() scrape { return scrape{time.Now(), map[string]sample{}} }

// add reads the answer of one target; none: it is down.
func (s scrape) add(node string, text []byte) error {
	target := func(l labels.Labels) labels.Labels {
		b := labels.NewBuilder(l)
		b.Set("job", "nearlb").Set("node", node).Set("instance", node+":10249")
		return b.Labels()
	}
	up := 1.0
	if text == nil {
		up = 0
	}
	s.set(sample{labels: target(labels.FromStrings(model.MetricNameLabel, "up")), value: up})
	if text == nil {
		return nil
	}
	parser, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	types := map[string]model.MetricType{}
	for {
		switch entry, err := parser.Next(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case entry == textparse.EntryType:
			name, kind := parser.Type()
			types[string(name)] = kind
		case entry == textparse.EntrySeries:
			var l labels.Labels
			_, _, value := parser.Series()
			parser.Labels(&l)
			s.set(sample{target(l), rises(types, l.Get(model.MetricNameLabel)), value})
		}
	}
}

func (s scrape) set(v sample) { s.values[v.labels.String()] = v }

func rises(types map[string]model.MetricType, name string) bool {
	for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
		if base, cut := strings.CutSuffix(name, suffix); cut {
			switch types[base] {
			case model.MetricTypeCounter, model.MetricTypeHistogram, model.MetricTypeSummary:
				return true
			}
		}
	}
	return false
}

// sum adds up the series of a metric that have these labels, as pairs of name and value.
func (s scrape) sum(name string, pairs ...string) (total float64) {
	for _, v := range s.values {
		fits := v.labels.Get(model.MetricNameLabel) == name
		for i := 0; fits && i < len(pairs); i += 2 {
			fits = v.labels.Get(pairs[i]) == pairs[i+1]
		}
		if fits {
			total += v.value
		}
	}
	return total
}
