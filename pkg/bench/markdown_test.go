// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheTableHasALineForEachWayAndAColumnForEachFamily(t *testing.T) {
	r := Result{Kernel: "6.18", CPU: "a processor", Runs: 3, Floor: Floor{Empty: 36, HashLookupNet: 28, RewriteNet: 3}, Paths: []Path{
		{Name: "from_pod/tcp4/established", Flows: 100000, Net: 124.4, Median: 170},
		{Name: "from_pod/tcp4/miss", Net: 7, Median: 44},
		{Name: "from_pod/udp6/established", Flows: 100000, Net: 130, Median: 180},
		{Name: "from_pod/udp6/miss", Net: 8, Median: 45},
	}}
	want := `Nanoseconds a packet, minimum / median of 3 runs, less an empty program behind the same wrapper (36).
Beside it: one hot lookup in a kernel hash 28, rewriting a packet 3. Linux 6.18, a processor.

| path | flows | tcp4 | udp6 |
|---|---:|---:|---:|
| from_pod established | 100,000 | 124 / 134 | 130 / 144 |
| from_pod miss |  | 7 / 8 | 8 / 9 |
`
	var got strings.Builder
	if err := r.Markdown(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
}

func TestEachFlowComesOnceARound(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 10, 97, 10_000, 100_000} {
		stride := strideOf(n)
		seen := make([]bool, n)
		for i, at := uint64(0), uint64(0); i < n; i++ {
			if seen[at] {
				t.Fatalf("%d flows, stride %d: flow %d comes twice", n, stride, at)
			}
			seen[at] = true
			if at += stride; at >= n {
				at -= n
			}
		}
	}
}

func TestAFrameOfAnotherFlowKeepsItsChecksums(t *testing.T) {
	for _, w := range worlds() {
		f := w.frame(w.service(1))
		first := f.bytes()
		if len(first) != frameSize {
			t.Fatalf("%s: frame of %d bytes", w.name, len(first))
		}
		if at := int(f.layout().data); first[at] != 0x56 || first[at+1] != 0x78 {
			t.Errorf("%s: data starts elsewhere than at %d", w.name, at)
		}
	}
}
