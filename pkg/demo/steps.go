// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"time"
)

// refused is the outcome of a client that was turned away at once.
const refused = "refused"

// step is one change of the cluster and what the clients must see after it.
type step struct {
	title  string
	change func(context.Context) error
	during func(context.Context) error // runs once the clients see what they should; may be nil
	want   []string                    // by client: name of the server that answers, or refused
}

func (d *demo) script() []step {
	own := []string{"web-1", "web-2", "web-3"}
	return []step{
		{"every server is ready", d.setReady(true, true, true), nil, own},
		{"web-1 is not ready", d.setReady(false, true, true), nil, []string{"web-2", "web-2", "web-3"}},
		{"web-2 neither: zone a is empty", d.setReady(false, false, true), nil, []string{"web-3", "web-3", "web-3"}},
		{"web-3 neither: nobody is left", d.setReady(false, false, false), nil, []string{refused, refused, refused}},
		{"all are ready again", d.setReady(true, true, true), nil, own},
		{"kill -9 n1's agent, restart it", d.killAgent, d.startAgent, own},
		{"web-1 is not ready: it follows", d.setReady(false, true, true), nil, []string{"web-2", "web-2", "web-3"}},
	}
}

// killAgent ends the first node's agent without a warning.
func (d *demo) killAgent(context.Context) error { return d.agents[0].Kill() }

// startAgent starts it again, after some time without one.
func (d *demo) startAgent(ctx context.Context) error {
	pause(ctx, d.options.Dwell/3)
	agent, err := d.nodes[0].StartAgent(d.options.Agent)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.agents[0] = agent
	return nil
}

// Result is what came out of a step.
type Result struct {
	Number   int
	Title    string
	Want     []string      // by client
	Seen     []string      // by client: what was seen after the change had arrived, joined by "+"
	Took     time.Duration // from the change to the first right answer of the last client to get one
	Refusal  time.Duration // longest time to a refusal, 0 without one
	Requests int           // connections and datagrams sent while the step was on
	Lost     int           // of these: neither answered by the old or new backend nor refused when they should be
	Wrong    int           // of these: answered by another one although the change had arrived
	Err      error
}

// OK says whether the step came out as it should.
func (r Result) OK() bool {
	return r.Err == nil && r.Lost == 0 && r.Wrong == 0 && r.Requests > 0
}

// Verdict is "ok" or what was wrong.
func (r Result) Verdict() string {
	switch {
	case r.OK():
		return "ok"
	case r.Err != nil:
		return "FAILED: " + r.Err.Error()
	case r.Lost > 0:
		return fmt.Sprintf("FAILED: %d lost", r.Lost)
	}
	return fmt.Sprintf("FAILED: %d wrong", r.Wrong)
}
