// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// How long it takes until programs over small tables of their own are loaded.
func BenchmarkLoad(b *testing.B) {
	privileged.Require(b)
	sizes := bpf.Sizes{Frontends: 256, Records: 256, Slots: 1 << 16, Backends: 256, FlowSets: 64, Affinity: 256, Fragments: 256, SourceRanges: 64, Services: 64, Names: 256}
	for b.Loop() {
		objects, err := bpf.Load(bpf.Options{Sizes: sizes})
		if err != nil {
			b.Fatal(err)
		}
		objects.Close()
	}
}
