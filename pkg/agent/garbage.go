// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// A start makes much garbage: objects as they come, decisions, Maglev tables. To collect it as thoroughly as later would take a
// quarter of the start's processor time.
const (
	// garbageAtStart is how much garbage there may be until everything listed at first is published, in bytes, where garbagePercent
	// allows less; and no more than this share of the node's memory.
	garbageAtStart = 96 << 20
	garbageShare   = 64
	// startLongest ends that, however far the start has come: an API server may stay away for days.
	startLongest = 2 * time.Minute
)

// garbage sets the runtime's GOGC during a start: after each collection it computes it again, until the start is over. A GOGC of
// the environment stays.
type garbage struct {
	mu   sync.Mutex
	most uint64 // bytes
	over bool
}

// begin begins a start, on a node with so many bytes of memory.
func (g *garbage) begin(memory uint64) {
	g.most = min(garbageAtStart, memory/garbageShare)
	g.over = os.Getenv("GOGC") != ""
	time.AfterFunc(startLongest, g.end)
	g.allow()
}

// end sets GOGC to what it is for the rest of the agent's life.
func (g *garbage) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.over = true
		debug.SetGCPercent(garbagePercent)
	}
}

// allow is called after each collection, as what it leaves unreachable is found by the next one.
func (g *garbage) allow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	debug.SetGCPercent(garbagePercentAt(inUse(), g.most))
	runtime.AddCleanup(&collected{g}, (*garbage).allow, g)
}

// collected is what each collection finds.
type collected struct{ _ *garbage }

// leastHeap is what the runtime reckons with where less is in use, as before the first collection.
const leastHeap = 4 << 20

// garbagePercentAt is GOGC for a heap of which so many bytes are in use, and where so many may be garbage.
func garbagePercentAt(inUse, most uint64) int {
	return int(max(garbagePercent, most*100/max(inUse, leastHeap)))
}

// inUse is what the last collection left, in bytes.
func inUse() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
