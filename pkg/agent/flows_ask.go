// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// FlowCount is since when bytes of flows are counted, and until when if nobody asks again.
type FlowCount struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	Full  string    `json:"full,omitempty"` // that some flows are not counted, and why; "": all are
}

// countFor is for how long bytes of flows are counted after somebody asked.
const countFor = time.Minute

// flowCount has bytes of flows counted while somebody asks for them. The programs end that by themselves where no agent does.
type flowCount struct {
	mu    sync.Mutex
	since time.Time
	end   *time.Timer // nil: nobody has asked
}

// ask begins to count in the tables that tables gives, or goes on. tell hears whether they have room for all flows, and, when the count ends,
// that nothing is wrong.
func (c *flowCount) ask(tables func() *maps.Tables, tell func(error)) (FlowCount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	found, err := tables().CountFlows(countFor)
	if err != nil {
		return FlowCount{}, err
	}
	if !found.Already || c.since.IsZero() {
		c.since = now
	}
	if c.end == nil {
		c.end = time.AfterFunc(countFor, func() { c.look(tables, tell) })
	}
	count := FlowCount{Since: c.since, Until: now.Add(countFor)}
	short := uncounted(found)
	if short != nil {
		count.Full = short.Error()
	}
	tell(short)
	return count, nil
}

// uncounted says that flows have no place in the table of counts. Its size is no flag's.
func uncounted(found maps.FlowCount) error {
	if !found.Full() {
		return nil
	}
	return fmt.Errorf("table %s is full: bytes of %d entries are counted at once, which is all that it takes, and more flows are open: "+
		"those that came last are not counted", bpf.NearlbMapFlowBytes, found.Room)
}

// look ends a count that nobody asks for any more, and else looks again.
func (c *flowCount) look(tables func() *maps.Tables, tell func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended, err := tables().EndFlowCount(false); ended && err == nil {
		c.since, c.end = time.Time{}, nil
		tell(nil)
		return
	}
	c.end.Reset(time.Second)
}

// AskFlowCount has a running agent count bytes of flows for the next minute.
func AskFlowCount(ctx context.Context, lockDir, pinPath string) (count FlowCount, err error) {
	return count, askAgent(ctx, Socket(lockDir, pinPath), "/flows/count", askTime, func(d *json.Decoder) error { return d.Decode(&count) })
}

func (d *daemon) answerFlowCount(w http.ResponseWriter, _ *http.Request) {
	count, err := d.flowCount.ask(func() *maps.Tables { return d.now.Load().tables }, d.tellUncounted)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	out := newLines(w)
	out.write(count)
	_ = out.flush() // the client went away
}

// tellUncounted notes in the status that some flows are not counted, and nil that all are.
func (d *daemon) tellUncounted(err error) {
	if d.diary.trouble("bytes of flows", err) {
		d.log.Error("count bytes of flows", "error", err)
	}
}
