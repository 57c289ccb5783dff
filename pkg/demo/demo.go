// SPDX-License-Identifier: Apache-2.0

// Package demo shows the main job on one machine: a cluster of network namespaces with real agents, servers and clients,
// and traffic that follows the objects. It judges what it shows: every step says what should happen, and fails if it
// does not.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
)

// Options of a demo. Out is required.
type Options struct {
	Out         io.Writer
	Interactive bool          // Out is a terminal: draw a live table, else print line by line
	Color       bool          // use colours (only with Interactive)
	Width       int           // columns of the terminal; 0 is 80
	Hold        bool          // when the steps are done, keep the cluster until ctx ends
	Dwell       time.Duration // how long a step is watched after its change arrived; 0 is some seconds
	Patience    time.Duration // a change that has not reached the sockets by then is lost; 0 is two minutes
	Agent       lab.AgentOptions

	Show func(ctx context.Context, nodes []Node) error // runs beside the steps until ctx ends; nil: nothing does
}

// Node is where to look at a node's tables.
type Node struct {
	PinPath, LockDir string
	Enter            func(func() error) error // calls a function where PinPath is
}

const (
	defaultWidth    = 80
	defaultDwell    = 4200 * time.Millisecond
	defaultPatience = 2 * time.Minute // some changes wait for an agent's start
)

// Run builds the cluster, performs every step and takes the cluster down. The error is nil only if every step came out
// as it should. The caller ends ctx on Ctrl-C.
func Run(ctx context.Context, options Options) error {
	if err := options.complete(); err != nil {
		return err
	}
	d, err := build(options)
	if err != nil {
		return err
	}
	err = d.run(ctx)
	if closeErr := d.lab.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (o *Options) complete() error {
	if o.Width == 0 {
		o.Width = defaultWidth
	}
	if o.Dwell == 0 {
		o.Dwell = defaultDwell
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if len(o.Agent.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the nearlb program: %w", err)
		}
		o.Agent.Command = []string{self, "agent"}
	}
	return nil
}

// run has the clients talk while the steps are performed.
func (d *demo) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.report.begin(d)
	talk, talking := errgroup.WithContext(ctx)
	for _, p := range d.watch.probes {
		talk.Go(func() error { p.run(talking, d.watch); return nil })
	}
	if d.options.Show != nil {
		talk.Go(func() error { return d.show(talking) })
	}
	done := make(chan struct{})
	talk.Go(func() error { d.report.follow(d, done); return nil })

	err := d.perform(talking, talk)
	close(done)
	if err == nil && d.options.Hold {
		d.report.hold(d)
		<-talking.Done()
	}
	stop()
	if ended := talk.Wait(); ended != nil {
		return ended // all else ended with it
	}
	return err
}

// show shows it until ctx ends.
func (d *demo) show(ctx context.Context) error {
	if err := d.options.Show(ctx, d.places()); err != nil {
		return fmt.Errorf("show the demo: %w", err)
	}
	return nil
}

// places are those of the nodes' tables.
func (d *demo) places() (all []Node) {
	for _, n := range d.nodes {
		all = append(all, Node{PinPath: n.PinPath(), LockDir: d.lab.LockDir(), Enter: d.lab.Mounted})
	}
	return all
}

// perform goes through the steps. The error says how many came out wrong, or that it was interrupted.
func (d *demo) perform(ctx context.Context, talk *errgroup.Group) error {
	lastAnswers := func() {}
	for i, s := range d.steps {
		result := d.step(ctx, i, s)
		if ctx.Err() != nil {
			return errors.New("run demo: interrupted")
		}
		d.report.step(d, result)
		if i > 0 {
			continue
		}
		if result.Err != nil {
			break // nothing works: the rest would only take time
		}
		lastAnswers = d.holdConnections(ctx, talk)
	}
	lastAnswers()
	held := d.watch.heldState()
	d.report.end(d, held)
	if d.passed() < len(d.steps) {
		return fmt.Errorf("run demo: %d of %d steps did not come out as they should", len(d.steps)-d.passed(), len(d.steps))
	}
	if held.Lost > 0 || held.Open == 0 {
		return errors.New("run demo: connections held open were lost")
	}
	return nil
}

// step makes one change and watches the sockets until it arrived, and a while longer.
func (d *demo) step(ctx context.Context, number int, s step) Result {
	result := Result{Number: number + 1, Title: s.title, Want: s.want}
	d.setRunning(result)
	d.watch.expect(s.want)
	if err := s.change(ctx); err != nil {
		result.Err = err
	}
	d.watch.changed(time.Now())
	if result.Err == nil {
		result.Err = d.await(ctx, d.options.Patience, d.watch.settled)
	}
	if result.Err == nil && s.during != nil {
		result.Err = s.during(ctx)
	}
	pause(ctx, d.options.Dwell)
	d.watch.conclude(&result)
	d.setDone(result)
	return result
}

// await polls until the condition holds, the limit is over or ctx ends.
func (d *demo) await(ctx context.Context, limit time.Duration, condition func() bool) error {
	return lab.Await(limit, func() bool { return ctx.Err() != nil || condition() })
}

// pause lets the audience watch: nothing depends on its length.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}
