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
type flowCounting struct {
	owner tableOwner
	begun bool // bytes were counted once
}

// begin says whose tables are shown, has the agent count on where bytes are asked for, and waits until there is something to show. Where bytes
// were shown before, a question that fails is told of, and what is counted is shown on.
func (c *flowCounting) begin(ctx context.Context, page io.Writer, width int, bytes bool) error {
	c.owner.look(page, width)
	if !bytes {
		return nil
	}
	live := c.owner.live
	var count agent.FlowCount
	err := c.owner.ask(func() (err error) {
		count, err = agent.AskFlowCount(ctx, live.lockDir, live.pins.pinPath)
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !c.begun {
		return notCounted(err)
	}
	c.owner.unanswered(page, width, "no further bytes are counted: ", err)
	if err != nil {
		return nil
	}
	c.begun = true
	since := clock(count.Since, time.Now())
	c.owner.notes.say(page, width, "count", since, "bytes are counted since "+since+", and until a minute after the last question")
	c.sayFull(page, width, count)
	return rest(ctx, time.Until(count.Since.Add(countFirst)))
}

// notCounted is the error of who asks for bytes that nobody counts.
func notCounted(err error) error {
	if errors.Is(err, agent.ErrNotAsked) || errors.Is(err, errNoAnswer) {
		return fmt.Errorf("--bytes: the agent has bytes counted, and %w", err)
	}
	return fmt.Errorf("--bytes: %w", err)
}

// sayFull says that some flows have no count, and why.
func (c *flowCounting) sayFull(page io.Writer, width int, count agent.FlowCount) {
	if count.Full == "" {
		c.owner.notes.forget("full")
		return
	}
	c.owner.notes.say(page, width, "full", "full", count.Full+"; their SENT and RECEIVED are -")
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
