// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
)

// countFirst is for how long bytes were counted when they are shown first.
const countFirst = time.Second

// flowCounting has the agent count bytes of flows as long as they are shown.
type flowCounting struct{ owner tableOwner }

// begin says whose tables are shown, has the agent count on where bytes are asked for, and waits until there is something to show.
func (c *flowCounting) begin(ctx context.Context, page io.Writer, width int, bytes bool) error {
	c.owner.look(page, width)
	if !bytes {
		return nil
	}
	live := c.owner.live
	count, err := agent.AskFlowCount(ctx, live.lockDir, live.pins.pinPath)
	if errors.Is(err, agent.ErrNotAsked) {
		return fmt.Errorf("--bytes: the agent has bytes counted, and %w", err)
	}
	if err != nil {
		return fmt.Errorf("--bytes: %w", err)
	}
	since := clock(count.Since, time.Now())
	c.owner.notes.say(page, width, "count", since, "bytes are counted since "+since+", and until a minute after the last question")
	return rest(ctx, time.Until(count.Since.Add(countFirst)))
}

// rest waits for so long, or until ctx ends.
func rest(ctx context.Context, long time.Duration) error {
	if long <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(min(long, countFirst)):
		return nil
	}
}
