// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/maps"
)

// FlowCount is since when bytes of flows are counted, and until when if nobody asks again.
type FlowCount struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// countFor is for how long bytes of flows are counted after somebody asked.
const countFor = time.Minute

// flowCount has bytes of flows counted while somebody asks for them. The programs end that by themselves where no agent does.
type flowCount struct {
	mu    sync.Mutex
	since time.Time
	end   *time.Timer // nil: nobody has asked
}

// ask begins to count in the tables that tables gives, or goes on.
func (c *flowCount) ask(tables func() *maps.Tables) (FlowCount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	already, err := tables().CountFlows(countFor)
	if err != nil {
		return FlowCount{}, err
	}
	if !already || c.since.IsZero() {
		c.since = now
	}
	if c.end == nil {
		c.end = time.AfterFunc(countFor, func() { c.look(tables) })
	}
	return FlowCount{Since: c.since, Until: now.Add(countFor)}, nil
}

// look ends a count that nobody asks for any more, and else looks again.
func (c *flowCount) look(tables func() *maps.Tables) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended, err := tables().EndFlowCount(false); ended && err == nil {
		c.since, c.end = time.Time{}, nil
		return
	}
	c.end.Reset(time.Second)
}

// AskFlowCount has a running agent count bytes of flows for the next minute.
func AskFlowCount(ctx context.Context, lockDir, pinPath string) (count FlowCount, err error) {
	return count, askAgent(ctx, Socket(lockDir, pinPath), "/flows/count", askTime, func(d *json.Decoder) error { return d.Decode(&count) })
}

func (d *daemon) answerFlowCount(w http.ResponseWriter, _ *http.Request) {
	count, err := d.flowCount.ask(func() *maps.Tables { return d.now.Load().tables })
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	out := newLines(w)
	out.write(count)
	_ = out.flush() // the client went away
}
