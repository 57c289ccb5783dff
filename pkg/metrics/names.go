// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	tables "github.com/nearlb/nearlb/pkg/maps"
)

// Names are the counts of an agent that answers names. Methods may be called from any goroutine.
type Names struct {
	questions *prometheus.CounterVec
	answers   *prometheus.HistogramVec
	forwards  *prometheus.HistogramVec

	mu    sync.Mutex
	known atomic.Pointer[map[answerWords]answerCounts] // of all words so far; replaced as a whole, under mu
}

// answerWords are what is told of an answer.
type answerWords struct{ qtype, rcode, way string }

// answerCounts are what counts such answers: to find them by their words takes longer than many an answer.
type answerCounts struct {
	number prometheus.Counter
	took   prometheus.Observer
}

// NamesState is how the responder does at the moment of a scrape.
type NamesState struct {
	Answering bool // questions of this node come here, not to the cluster's DNS
	Kept      int  // answers of upstreams
	KeptBytes int  // that they take
	InKernel  []tables.AnswerCounts
}

const (
	questionsName = "nearlb_dns_questions_total"
	questionsHelp = "Questions for names that were answered, by type, by code, and by the way: by the programs (kernel), from the view (responder), by an upstream now (forwarded), before (cached), or too long ago (stale)."
)

func questionsLabels() []string { return []string{"type", "rcode", "way"} }

// Names adds the counts of names.
func (m *Metrics) Names(state func() NamesState) *Names {
	n := &Names{
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: questionsName, Help: questionsHelp}, questionsLabels()),
		answers:   histograms("nearlb_dns_answer_duration_seconds", "From a question for a name to its answer.", "way"),
		forwards: histograms("nearlb_dns_forward_duration_seconds",
			"From a question to an upstream to what became of it: answered, failed (SERVFAIL, REFUSED), silent.", "result"),
	}
	n.known.Store(&map[answerWords]answerCounts{})
	m.registry.MustRegister(n.questions, n.answers, n.forwards, namesCollector{state})
	return n
}

// histograms have buckets from 10 microseconds to 10 seconds.
func histograms(name, help, label string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBucketsRange(1e-5, 10, 13)}, []string{label})
}

// Answered notes one answer; all three words are of a few.
func (n *Names) Answered(qtype, rcode, way string, took time.Duration) {
	c := n.counts(answerWords{qtype, rcode, way})
	c.number.Inc()
	c.took.Observe(took.Seconds())
}

func (n *Names) counts(of answerWords) answerCounts {
	if c, known := (*n.known.Load())[of]; known {
		return c
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c := answerCounts{n.questions.WithLabelValues(of.qtype, of.rcode, of.way), n.answers.WithLabelValues(of.way)}
	next := maps.Clone(*n.known.Load())
	next[of] = c
	n.known.Store(&next)
	return c
}

// Asked notes one question to an upstream; result is of a few words.
func (n *Names) Asked(result string, took time.Duration) {
	n.forwards.WithLabelValues(result).Observe(took.Seconds())
}

type namesCollector struct{ state func() NamesState }

func (c namesCollector) Describe(chan<- *prometheus.Desc) {}

func (c namesCollector) Collect(out chan<- prometheus.Metric) {
	s := c.state()
	one := func(name, help string, value int) {
		out <- prometheus.MustNewConstMetric(describe(name, help), prometheus.GaugeValue, float64(value))
	}
	for _, row := range s.InKernel {
		if row.Questions > 0 {
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc(questionsName, questionsHelp, questionsLabels(), nil), prometheus.CounterValue, float64(row.Questions), row.Type, row.Rcode, "kernel")
		}
	}
	one("nearlb_dns_answering", "1 if this node's questions for names are answered here; 0: by the cluster's DNS.", truth(s.Answering))
	one("nearlb_dns_cache_entries", "Answers of upstreams that are kept.", s.Kept)
	one("nearlb_dns_cache_bytes", "Memory that they take, of 8 MiB at most.", s.KeptBytes)
}
