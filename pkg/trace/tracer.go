// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Tracer runs programs of its own over tables of its own or the live ones. It is for one goroutine.
type Tracer struct {
	objects *bpf.Objects
	live    *bpf.NearlbMaps // nil offline
	flows   *ebpf.Memory
	nothing []byte // as long as the flow table, all zero
}

// flowSets is the size of the private flow table: it holds one connection at a time.
const flowSets = 16

// Live answers from the pinned tables of an agent that runs or ran, which it only reads. The error of a pin path where no
// agent ever ran says so (bpf.ErrNoAgent).
func Live(pinPath string) (*Tracer, error) {
	live, err := bpf.OpenMaps(pinPath, true)
	if err != nil {
		return nil, err
	}
	replace := map[string]*ebpf.Map{}
	tables := live.ByName()
	for _, name := range []string{"frontends", "records", "slots", "backends", "address_filter", "source_ranges", "config", "names"} {
		replace[name] = tables[name]
	}
	small := bpf.Sizes{FlowSets: flowSets, Affinity: 64, Fragments: 16, Backends: 2, Services: 2}
	objects, err := bpf.Load(bpf.Options{Trace: true, Sizes: small, Replace: replace})
	if err != nil {
		return nil, errors.Join(err, live.Close())
	}
	return newTracer(objects, live)
}

// Offline publishes decisions into private tables and answers from those. The problems are those of publishing: frontends that
// two Services claim.
func Offline(decisions []lb.Decision, config maps.Config) (*Tracer, []lb.Problem, error) {
	objects, err := bpf.Load(bpf.Options{Trace: true, Sizes: sizesFor(decisions)})
	if err != nil {
		return nil, nil, err
	}
	problems, err := publish(&objects.NearlbMaps, decisions, config)
	if err != nil {
		return nil, nil, errors.Join(err, objects.Close())
	}
	tracer, err := newTracer(objects, nil)
	return tracer, problems, err
}

func publish(tables *bpf.NearlbMaps, decisions []lb.Decision, config maps.Config) ([]lb.Problem, error) {
	publisher, err := maps.Open(tables)
	if err != nil {
		return nil, err
	}
	if err := publisher.Configure(config); err != nil {
		return nil, err
	}
	var problems []lb.Problem
	for _, decision := range decisions {
		stats, err := publisher.Apply(decision)
		if err != nil {
			return nil, err
		}
		problems = append(problems, stats.Problems...)
	}
	return problems, nil
}

// sizesFor is room for the decisions, with some to spare for address entries and the entries that are never used.
func sizesFor(decisions []lb.Decision) bpf.Sizes {
	var frontends, backends, ranges, ports int
	for _, d := range decisions {
		frontends += len(d.Frontends)
		backends += len(d.Backends)
		names := map[lb.PortName]bool{}
		for _, f := range d.Frontends {
			ranges += len(f.SourceRanges)
			names[f.Port] = true
		}
		ports += len(names)
	}
	room := func(n int) uint32 { return uint32(64 + 3*n) }
	return bpf.Sizes{
		FlowSets: flowSets, Affinity: 64, Fragments: 16,
		Frontends: room(frontends), Records: room(frontends), Backends: room(backends),
		SourceRanges: room(ranges), Services: room(ports + backends), Names: room(ports + 3*backends),
	}
}

func newTracer(objects *bpf.Objects, live *bpf.NearlbMaps) (*Tracer, error) {
	t := &Tracer{objects: objects, live: live}
	var err error
	if t.flows, err = objects.Flows.Memory(); err != nil {
		return nil, errors.Join(fmt.Errorf("map table flows: %w", err), t.Close())
	}
	t.nothing = make([]byte, t.flows.Size())
	return t, nil
}

// Close takes the programs and private tables out of the kernel.
func (t *Tracer) Close() error {
	err := t.objects.Close()
	if t.live != nil {
		err = errors.Join(err, t.live.Close())
	}
	return err
}

// run sends one packet through the program as the first of its connection, and returns what the program says of it and
// the packet that came out.
func (t *Tracer) run(frame []byte) (bpf.NearlbTraceResult, []byte, error) {
	var result bpf.NearlbTraceResult
	if _, err := t.flows.WriteAt(t.nothing, 0); err != nil {
		return result, nil, fmt.Errorf("clear table flows: %w", err)
	}
	if err := t.objects.Trace.Put(uint32(0), &result); err != nil {
		return result, nil, fmt.Errorf("clear table trace: %w", err)
	}
	out := make([]byte, len(frame)+256) // an ICMP error quotes what it answers
	options := &ebpf.RunOptions{Data: frame, DataOut: out, Repeat: 1}
	if _, err := t.objects.FromPod.Run(options); err != nil {
		return result, nil, fmt.Errorf("run program from_pod: %w", err)
	}
	if err := t.objects.Trace.Lookup(uint32(0), &result); err != nil {
		return result, nil, fmt.Errorf("read table trace: %w", err)
	}
	if result.Verdict == 0 {
		return result, nil, errors.New("run program from_pod: it did not say what it decided")
	}
	return result, options.DataOut, nil
}

// Do answers one request.
func (t *Tracer) Do(r Request) (Answer, error) {
	if err := r.Check(); err != nil {
		return Answer{}, err
	}
	if err := t.forget(); err != nil {
		return Answer{}, err
	}
	tally := newTally(r)
	for i := range max(r.Count, 1) {
		source := r.source(i)
		frame := firstPacket(source, r.To, r.Protocol)
		result, out, err := t.run(frame)
		if err == nil && i == 0 && t.remember(source.Addr(), result) {
			result, out, err = t.run(frame)
		}
		if err == nil {
			err = t.tally(tally, source, result, out)
		}
		if err != nil {
			return Answer{}, err
		}
	}
	return tally.answer(), nil
}

// forget empties the private affinity table.
func (t *Tracer) forget() error {
	var key bpf.NearlbAffinityKey
	for {
		switch err := t.objects.Affinity.NextKey(nil, &key); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("read table affinity: %w", err)
		}
		if err := t.objects.Affinity.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clear table affinity: %w", err)
		}
	}
}

// remember takes over what live session affinity knows of this client. True: it knows something, and the answer may differ.
func (t *Tracer) remember(client netip.Addr, result bpf.NearlbTraceResult) bool {
	if t.live == nil || result.FrontendFound == 0 {
		return false
	}
	var value bpf.NearlbAffinityValue
	key := bpf.NearlbAffinityKey{Client: bpf.NearlbAddress{Bytes: client.As16()}, Service: result.Service}
	return t.live.Affinity.Lookup(&key, &value) == nil && t.objects.Affinity.Put(&key, &value) == nil
}
