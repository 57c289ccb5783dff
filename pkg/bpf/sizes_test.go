// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"math"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Slots are counted one by one, though the table has them in lines: people get whole lines, at least what they asked for.
func TestSlotsAreRoundedUpToWholeLines(t *testing.T) {
	for asked, want := range map[uint32]uint32{0: 16777216, 1: 16, 16: 16, 17: 32, 1 << 20: 1 << 20, math.MaxUint32: math.MaxUint32 - 15} {
		if got := (bpf.Sizes{Slots: asked}).WithDefaults().Slots; got != want {
			t.Errorf("%d slots asked for, %d given, want %d", asked, got, want)
		}
	}
}

func TestLimitsAreTheSizesOfTheObjectWhereNothingElseIsSaid(t *testing.T) {
	limits, sizes := bpf.DefaultLimits(), bpf.DefaultSizes()
	if limits.Affinity != sizes.Affinity || limits.Fragments != sizes.Fragments {
		t.Errorf("limits are %d and %d, in bpf/lib/maps.h %d and %d", limits.Affinity, limits.Fragments, sizes.Affinity, sizes.Fragments)
	}
}
