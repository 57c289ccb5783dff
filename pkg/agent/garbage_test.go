// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func garbagePercentNow() int {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

func TestGarbageMayPileUpUntilTheStartIsOver(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(garbagePercent)
	defer debug.SetGCPercent(before)
	var g garbage
	g.begin(garbageAtStart * garbageShare)
	defer g.end()
	used := make([]byte, 2*garbageAtStart)
	for deadline := time.Now().Add(patience); garbagePercentNow() != garbagePercent; runtime.GC() { // GOGC is set after a collection, not by it
		if time.Now().After(deadline) {
			t.Fatalf("GOGC is %d where %d bytes are in use", garbagePercentNow(), len(used))
		}
	}
	runtime.KeepAlive(used)
	used = nil
	for deadline := time.Now().Add(patience); garbagePercentNow() == garbagePercent; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("GOGC stays %d where little is in use", garbagePercent)
		}
	}
	g.end()
	runtime.GC()
	runtime.GC()
	if got := garbagePercentNow(); got != garbagePercent {
		t.Errorf("GOGC is %d after the start, want %d", got, garbagePercent)
	}
}

func TestGarbageOfAStartIsBounded(t *testing.T) {
	for _, inUse := range []uint64{0, 1 << 20, 20 << 20, 100 << 20, 1 << 30, math.MaxUint64} {
		for _, most := range []uint64{0, 1 << 20, garbageAtStart} {
			percent := uint64(garbagePercentAt(inUse, most))
			counts := max(inUse, leastHeap) // as the runtime reckons
			if may := counts / 100 * percent; percent < garbagePercent || may > max(most, counts/2+1) {
				t.Errorf("with %d in use there may be %d bytes of garbage (%d percent), want %d at the most", inUse, may, percent, most)
			}
		}
	}
}
