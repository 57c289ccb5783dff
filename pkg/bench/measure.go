// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// wrapper is one loaded program of bpf/bench.c with its frame.
type wrapper struct {
	frame   frame
	objects BenchObjects
	program *ebpf.Program // the one of the target's kind
}

// unlimited is a number of flows that no measurement comes to the end of.
const unlimited = 1 << 27

// over sets which flows come next: number of them in turn, from the first on. They come in an order that neither the
// processor's prefetchers nor the table's layout favour, and another one than they were made in: a hash of the kernel's lays its entries
// side by side as they come.
func (w *wrapper) over(first, number uint64) error {
	c := BenchCursor{Next: first, Flows: number, Stride: 1}
	if number != unlimited {
		c.Stride = strideOf(number)
	}
	return w.put(c)
}

// make has the next packets make so many flows. Flow 0, which verify asks for, is made last: a set that has more flows than room gave up an
// older one.
func (w *wrapper) make(flows int) error {
	n := uint64(flows)
	if err := w.put(BenchCursor{Next: 1 % n, Flows: n, Stride: 1}); err != nil {
		return err
	}
	_, err := w.repeat(flows)
	return err
}

func (w *wrapper) put(c BenchCursor) error {
	if err := w.objects.Cursors.Put(uint32(0), &c); err != nil {
		return fmt.Errorf("set flows of the wrapper: %w", err)
	}
	return nil
}

// strideOf is a step that meets every flow before it meets one again.
func strideOf(number uint64) uint64 {
	stride := number*5/8 + 1
	for gcd(stride, number) != 1 {
		stride++
	}
	return stride % number
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// repeat runs packets through and returns nanoseconds for one.
func (w *wrapper) repeat(packets int) (float64, error) {
	_, each, err := w.program.Benchmark(w.frame.bytes(), packets, nil)
	if err != nil {
		return 0, fmt.Errorf("run wrapper: %w", err)
	}
	return float64(each) / float64(time.Nanosecond), nil
}

// once runs one packet and returns what became of it, and what the program returned.
func (w *wrapper) once() (got []byte, action uint32, err error) {
	opts := ebpf.RunOptions{Data: w.frame.bytes(), DataOut: make([]byte, frameSize+256)}
	if action, err = w.program.Run(&opts); err != nil {
		return nil, 0, fmt.Errorf("run wrapper: %w", err)
	}
	return opts.DataOut, action, nil
}

// course is one path being measured.
type course struct {
	name    string
	flows   int
	floor   bool
	hook    bpf.NearlbHook
	verdict bpf.NearlbVerdict
	outs    []frame  // what the frame may become; empty: it stays, or it is a floor and nobody looks
	maker   *wrapper // makes the flows; nil: the path needs none
	runner  *wrapper
	fresh   bool       // every packet is a new flow
	byLoad  bool       // its backend is chosen by load, and other nodes have told of theirs
	xdp     *xdpCourse // nil: of TC
	peer    bool       // of a hash of the kernel's: nothing is counted, and the program says itself whether it did its work

	samples      []float64
	instructions uint64 // least seen
}

// ready empties the table and makes the flows that the path is about.
func (c *course) ready(b *bench) error {
	if c.floor {
		return c.runner.over(0, 1)
	}
	forget := b.forget
	if c.peer {
		forget = b.peers.forget
	}
	if err := forget(); err != nil {
		return err
	}
	if c.maker != nil {
		if err := c.maker.make(c.flows); err != nil {
			return err
		}
	}
	if c.byLoad {
		b.tellOthers()
	}
	if c.xdp != nil {
		if err := c.xdp.ready(b); err != nil {
			return err
		}
	}
	return c.rewind()
}

// rewind has flow 0 come next.
func (c *course) rewind() error {
	if c.fresh {
		return c.runner.over(0, unlimited)
	}
	return c.runner.over(0, uint64(max(c.flows, 1)))
}

// verifyTries is how often a path at XDP is tried: each processor leaves one packet of a flow in eight seconds to TC (XDP_WAY_CONFIRMED),
// and the next one not.
const verifyTries = 8

// verify runs the path once and compares verdict and output packet with what they should be.
func (c *course) verify(b *bench) error {
	if c.floor {
		return nil
	}
	if err := c.ready(b); err != nil {
		return err
	}
	if c.peer {
		return c.worked()
	}
	for try := 1; ; try++ {
		got, counted, err := c.onceCounted(b)
		switch {
		case err != nil:
			return err
		case c.xdp != nil && c.xdp.leftToTC(c.runner.frame, got, counted) && try < verifyTries:
			if err := c.rewind(); err != nil {
				return err
			}
		case c.xdp != nil:
			return c.xdp.check(c.runner.frame, got, counted)
		case counted != 1:
			return fmt.Errorf("check the path: the packet did not get verdict %s; it became %x", bpf.VerdictOf(uint32(c.verdict)).Name, got)
		default:
			return c.compare(got)
		}
	}
}

// worked runs one packet through a program of a hash of the kernel's.
func (c *course) worked() error {
	_, action, err := c.runner.once()
	if err == nil && action != passed {
		err = fmt.Errorf("check the path: the program returned %d, want %d", action, passed)
	}
	return err
}

const passed = 0 // TC_ACT_OK

// onceCounted runs one packet and returns what became of it, and how often the path's verdict was counted.
func (c *course) onceCounted(b *bench) (got []byte, counted uint64, err error) {
	before, err := b.counted(c.hook, c.verdict)
	if err != nil {
		return nil, 0, err
	}
	if got, _, err = c.runner.once(); err != nil {
		return nil, 0, err
	}
	after, err := b.counted(c.hook, c.verdict)
	return got, after - before, err
}

func (c *course) compare(got []byte) error {
	outs := c.outs
	if len(outs) == 0 {
		outs = []frame{c.runner.frame}
	}
	for _, want := range outs {
		if bytes.Equal(got, want.bytes()) {
			return nil
		}
	}
	return fmt.Errorf("check the path: packet out is %x, want %x", got, outs[0].bytes())
}

// packetsOf is how many packets one measurement has: each flow comes twice at least; new flows leave the table half empty, those with two entries too.
func (c *course) packetsOf(packets int) int {
	if c.fresh && c.xdp != nil {
		return min(packets, flowsMax/2)
	}
	if c.fresh {
		return min(packets, flowsMax)
	}
	return max(packets, 2*c.flows)
}

func (c *course) measure(b *bench, packets int) error {
	if err := c.ready(b); err != nil {
		return err
	}
	n := c.packetsOf(packets)
	before := b.count.read()
	each, err := c.runner.repeat(n)
	instructions := (b.count.read() - before) / uint64(n)
	if err != nil {
		return err
	}
	if len(c.samples) == 0 || instructions < c.instructions {
		c.instructions = instructions
	}
	c.samples = append(c.samples, each)
	return nil
}

// summary is the path's row, net of the empty program's.
func (c *course) summary(empty Path) Path {
	p := Path{Name: c.name, Flows: c.flows, Min: slices.Min(c.samples), Median: median(c.samples)}
	p.Net = math.Max(0, p.Min-empty.Min)
	if c.instructions > empty.Instructions {
		p.Instructions = c.instructions - empty.Instructions
	}
	return p
}

func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
