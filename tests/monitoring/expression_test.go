// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// checkNames wants an expression to name metrics that there are, with labels that they have.
func checkNames(t *testing.T, expression string, h *history) {
	t.Helper()
	parsed, err := parser.ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return
	}
	names := h.names()
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		selector, is := node.(*parser.VectorSelector)
		if !is {
			return nil
		}
		if !names[selector.Name] {
			t.Errorf("%s: no agent tells %q", expression, selector.Name)
		}
		for _, m := range selector.LabelMatchers {
			if m.Name != model.MetricNameLabel && names[selector.Name] && !h.hasLabel(selector.Name, m) {
				t.Errorf("%s: no series of %s fits %s", expression, selector.Name, m)
			}
		}
		return nil
	})
}

// hasLabel tells whether a matcher fits some series of the metric, and speaks of a label that it has.
func (h *history) hasLabel(name string, m *labels.Matcher) bool {
	for _, s := range h.series {
		if s.labels.Get(model.MetricNameLabel) == name && s.labels.Has(m.Name) && m.Matches(s.labels.Get(m.Name)) {
			return true
		}
	}
	return false
}
