// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
)

var tableRow = regexp.MustCompile("(?m)^\\| `(nearlb_[a-z_]+)` \\| ([^|]*) \\|")

// The README's table has each metric that agents tell, with its labels, and none else.
func testTable(t *testing.T, s seen) {
	told := map[string]map[string]bool{}
	for _, series := range historyOf(time.Minute, s.bad...).series {
		name := series.labels.Get(model.MetricNameLabel)
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && strings.HasSuffix(base, "_seconds") {
				name = base
			}
		}
		if !strings.HasPrefix(name, "nearlb_") {
			continue
		}
		if told[name] == nil {
			told[name] = map[string]bool{}
		}
		for label := range series.labels.Map() {
			told[name][label] = true
		}
		for _, targets := range []string{model.MetricNameLabel, "job", "instance", "node", "le"} {
			delete(told[name], targets)
		}
	}
	for _, row := range tableRow.FindAllStringSubmatch(string(read(t, directory+"README.md")), -1) {
		labels, known := told[row[1]]
		if !known {
			t.Errorf("no agent tells %s", row[1])
			continue
		}
		for label := range strings.SplitSeq(strings.Trim(row[2], " "), ", ") {
			if label != "" && !labels[label] {
				t.Errorf("%s has no label %s", row[1], label)
			}
			delete(labels, label)
		}
		for label := range labels {
			t.Errorf("the table does not say that %s has the label %s", row[1], label)
		}
		delete(told, row[1])
	}
	for name := range told {
		t.Errorf("%s is not in the table", name)
	}
}
