// SPDX-License-Identifier: Apache-2.0

// Package bench measures what a packet costs in the programs: nanoseconds by BPF_PROG_TEST_RUN, path by path, beside what
// this machine's floor is. Every measured path's verdict and output packet are checked first.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"strings"
)

// Options say what to measure. The zero value measures everything as docs/performance.md shows it.
type Options struct {
	Runs     int                   // measurements of each path; 0: 20
	Packets  int                   // packets of one measurement; 0: 200,000
	Flows    []int                 // numbers of established flows; empty: 1, 10,000 and 100,000. Of more than flowsMax established packets alone are measured
	Paths    []string              // only paths whose name has one of these in it; empty: all
	Progress func(done, total int) // told after each round of measurements; nil: nobody is
}

func (o Options) withDefaults() Options {
	if o.Runs == 0 {
		o.Runs = 20
	}
	if o.Packets == 0 {
		o.Packets = 200_000
	}
	if len(o.Flows) == 0 {
		o.Flows = []int{1, 10_000, 100_000}
	}
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
	return o
}

func (o Options) check() error {
	if o.Runs < 0 || o.Packets < 0 {
		return fmt.Errorf("bench: %d runs of %d packets: want positive numbers", o.Runs, o.Packets)
	}
	for _, n := range o.Flows {
		if n < 1 || n > flowsMost {
			return fmt.Errorf("bench: %d flows: want 1 to %d", n, flowsMost)
		}
	}
	return nil
}

func (p part) wants(name string) bool {
	if p.established && !strings.HasSuffix(name, "/established") || p.carried != strings.HasSuffix(name, "/"+wayCarried) {
		return false
	}
	return len(p.Paths) == 0 || slices.ContainsFunc(p.Paths, func(part string) bool { return strings.Contains(name, part) })
}

// Result is the document of `nearlb bench -o json` (contracts.md). Times are nanoseconds a packet.
type Result struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Runs   int    `json:"runs"`
	Floor  Floor  `json:"floor"`
	Paths  []Path `json:"paths"`
}

// Floor is what the machine asks for doing next to nothing, behind the same wrapper.
type Floor struct {
	Empty         float64 `json:"empty"`           // a program that returns
	EmptyXDP      float64 `json:"empty_xdp"`       // the same at XDP
	HashLookupNet float64 `json:"hash_lookup_net"` // one lookup in a kernel hash, found and hot
	RewriteNet    float64 `json:"rewrite_net"`     // writing address, port and checksums of a packet
}

// Path is one way through the programs.
type Path struct {
	Name         string  `json:"name"`  // "from_pod/tcp4/established"
	Flows        int     `json:"flows"` // live flows in turn; 0 where the path has none
	Min          float64 `json:"min"`
	Median       float64 `json:"median"`
	Net          float64 `json:"net"`          // Min less the empty program's, of XDP where the path is
	Instructions uint64  `json:"instructions"` // instructions retired a packet, less the empty program's; 0: the machine does not count them
}

// Run measures. It needs what loading the programs needs, pins nothing and touches no table that is in use. It ends early
// with the context's error when that is done.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.check(); err != nil {
		return Result{}, err
	}
	o = o.withDefaults()
	var all Result
	parts, done, total := o.parts(), 0, 0
	for _, part := range parts {
		total += part.Runs
	}
	for _, part := range parts {
		before := done
		part.Progress = func(rounds, _ int) { done = before + rounds; o.Progress(done, total) }
		r, err := part.run(ctx)
		if err != nil {
			return Result{}, err
		}
		all.add(r)
	}
	return all, nil
}

// part is what is measured over one set of tables.
type part struct {
	Options
	table       int  // how many flows the table has room for
	established bool // packets of known connections alone
	carried     bool // those that leave through the tunnel alone: programs that know of a tunnel are others
}

// parts has all numbers of flows that the table of default size is half full of at most in one part, and each larger one in a part of its own
// after it: over a table of four times the flows, as some have two entries, with a quarter of the runs, as making so many flows takes long. What is
// carried has a part of its own.
func (o Options) parts() []part {
	first := part{Options: o, table: 2 * flowsMax}
	first.Flows = slices.DeleteFunc(slices.Clone(o.Flows), func(n int) bool { return n > flowsMax })
	all := []part{first}
	carried := first
	if carried.carried = true; carried.wantsXDP() {
		all = append(all, carried)
	}
	for _, n := range o.Flows {
		if n <= flowsMax {
			continue
		}
		large := part{Options: o, table: 4 << bits.Len(uint(n-1)), established: true}
		large.Flows, large.Runs = []int{n}, max(o.Runs/4, 1)
		all = append(all, large)
	}
	return all
}

func (p part) run(ctx context.Context) (Result, error) {
	if p.wantsXDP() {
		return elsewhere(func() (Result, error) { return p.runHere(ctx) })
	}
	runtime.LockOSThread() // the instruction counter is this thread's
	defer runtime.UnlockOSThread()
	return p.runHere(ctx)
}

func (p part) runHere(ctx context.Context) (Result, error) {
	b, err := p.open()
	if err != nil {
		return Result{}, fmt.Errorf("bench: %w", err)
	}
	result, err := b.run(ctx, p)
	return result, errors.Join(err, b.close())
}

// add puts the paths of a later part behind those of the same name. The floor is the first part's: each path was less its own part's.
func (r *Result) add(later Result) {
	if r.Kernel == "" {
		*r = later
		return
	}
	for _, p := range later.Paths {
		at := len(r.Paths)
		for i, before := range r.Paths {
			if before.Name == p.Name {
				at = i + 1
			}
		}
		r.Paths = slices.Insert(r.Paths, at, p)
	}
}

func (b *bench) run(ctx context.Context, p part) (Result, error) {
	courses, err := b.courses(p)
	if err != nil {
		return Result{}, err
	}
	for _, c := range courses {
		if err := c.verify(b); err != nil {
			return Result{}, fmt.Errorf("bench %s: %w", c.name, err)
		}
	}
	for round := range p.Runs {
		for _, c := range courses {
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			if err := c.measure(b, p.Packets); err != nil {
				return Result{}, fmt.Errorf("bench %s: %w", c.name, err)
			}
		}
		p.Progress(round+1, p.Runs)
	}
	return summarise(p.Runs, courses), nil
}

// summarise turns samples into the document.
func summarise(runs int, courses []*course) Result {
	r := Result{Kernel: kernelRelease(), CPU: cpuModel(), Runs: runs}
	floors := map[string]Path{}
	for _, c := range courses {
		if c.floor {
			floors[c.name] = c.summary(Path{})
		}
	}
	empty := floors[floorEmpty]
	r.Floor = Floor{Empty: empty.Min, EmptyXDP: floors[floorXDP].Min, HashLookupNet: max(0, floors[floorHash].Min-empty.Min), RewriteNet: max(0, floors[floorRewrite].Min-empty.Min)}
	for _, c := range courses {
		switch {
		case c.xdp != nil:
			r.Paths = append(r.Paths, c.summary(floors[floorXDP]))
		case !c.floor:
			r.Paths = append(r.Paths, c.summary(empty))
		}
	}
	return r
}
