// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

func TestAScrapeThatOutlivesTheAgentReadsNothing(t *testing.T) {
	privileged.Require(t)
	tables, err := bpf.NewMaps(bpf.Sizes{Frontends: 16, Records: 16, Slots: 16, Backends: 16, FlowSets: 2, Affinity: 16, Fragments: 16,
		SourceRanges: 16, Services: 16, Names: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	r := &reader{}
	if err := r.open(tables); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, err := range r.Fill() {
		if err != nil {
			t.Error(err)
		}
		rows++
	}
	if err := r.close(); err != nil || rows == 0 {
		t.Errorf("read %d rows, closed with %v", rows, err)
	}
	for row := range r.Fill() {
		t.Errorf("read %v after the end", row)
	}
	for row := range r.Traffic() {
		t.Errorf("read %v after the end", row)
	}
	for row := range r.Verdicts() {
		t.Errorf("read %v after the end", row)
	}
}
