// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Tracer runs programs of its own over tables of its own or the live ones. It is for one goroutine.
type Tracer struct {
	objects *bpf.Objects
	live    *bpf.NearlbMaps // nil offline
	private *maps.Tables    // nil where live is not
	pinPath string          // of live

	headerless *Tracer // runs what devices without an Ethernet header have, loaded when a packet comes by one
}

// knobNames has the programs at the pods' devices answer questions for names: where there is no table of them it says so.
const knobNames = "dns_there"

// knobTunnel has the programs send packets into the tunnel.
const knobTunnel = "tunnel_there"

// longestAnswer is what a program may add to a packet: an ICMP error quotes what it answers, a question for a name is answered.
const longestAnswer = 1500

// flowSets is the size of the private flow table: it has one connection at a time.
const flowSets = 16

// firstPackets asks for the programs alone that a first packet meets, and that say what they decide. The others are a third of what the
// verifier walks through, which is most of the time that a trace takes. Of a socket, sock_explain tells, which is no socket hook.
func firstPackets(o bpf.Options, doors []Door) bpf.Options {
	o.Trace, o.NoSocketHooks, o.NoReplies = true, true, true
	for door, programs := range behind {
		if len(doors) > 0 && !slices.Contains(doors, door) {
			o.Without = append(o.Without, programs...)
		}
	}
	return o
}

// behind are the programs of each door that no packet of another one meets.
var behind = map[Door][]string{
	FromPod: {bpf.NearlbProgFromPod, bpf.NearlbProgFromPodSlow, bpf.NearlbProgFromPodIcmp, bpf.NearlbProgFromPodHairpin, bpf.NearlbProgFromPodReply, bpf.NearlbProgFromPodDns},
	FromNetwork: {bpf.NearlbProgFromNet, bpf.NearlbProgFromNetFast, bpf.NearlbProgFromNetSlow, bpf.NearlbProgFromNetIcmp, bpf.NearlbProgFromNetReply,
		bpf.NearlbProgTunnelIn, bpf.NearlbProgTunnelOut, bpf.NearlbProgTunnelForward, bpf.NearlbProgTunnelBack, bpf.NearlbProgTunnelIcmp},
	FromHost: {bpf.NearlbProgSockExplain},
}

// Live answers from the pinned tables of an agent that runs or ran, which it only reads. The error of a pin path where no
// agent ever ran says so (bpf.ErrNoAgent). Packets through other doors cannot be sent, where some are named: those programs are not loaded.
func Live(pinPath string, doors ...Door) (*Tracer, error) {
	return open(pinPath, map[string]any{knobNames: uint8(1)}, doors)
}

func open(pinPath string, knobs map[string]any, doors []Door) (*Tracer, error) {
	live, err := bpf.OpenMaps(pinPath, true)
	if err != nil {
		return nil, err
	}
	replace := map[string]*ebpf.Map{}
	tables := live.ByName()
	for _, name := range []string{"frontends", "records", "slots", "backends", "backend_health", "known_addresses", "source_ranges", "config", "devices", "names",
		"tunnel", "tunnel_nodes", "tunnel_addresses", "local_backends", "answers", "answer_config"} {
		replace[name] = tables[name]
	}
	small := bpf.Sizes{FlowSets: flowSets, Affinity: 64, Fragments: 16, Backends: 2, Services: 2}
	objects, err := bpf.Load(firstPackets(bpf.Options{Sizes: small, Replace: replace, Knobs: knobs}, doors))
	if err != nil {
		return nil, errors.Join(err, live.Close())
	}
	return &Tracer{objects: objects, live: live, pinPath: pinPath}, nil
}

// withoutHeader runs the programs as devices without an Ethernet header have them, as far as that changes a decision: no packet that comes by one
// takes the tunnel. The kernel runs programs over packets with that header alone.
func (t *Tracer) withoutHeader() (_ *Tracer, err error) {
	if t.headerless == nil {
		t.headerless, err = open(t.pinPath, map[string]any{knobTunnel: uint8(0)}, []Door{FromNetwork})
	}
	return t.headerless, err
}

// Offline publishes decisions into private tables and answers from those. The problems are those of publishing: frontends that
// two Services claim.
func Offline(decisions []lb.Decision, config maps.Config, doors ...Door) (*Tracer, []lb.Problem, error) {
	t, err := Private(sizesFor(decisions), doors...)
	if err != nil {
		return nil, nil, err
	}
	problems, err := t.Publish(decisions, config)
	if err != nil {
		return nil, nil, errors.Join(err, t.Close())
	}
	return t, problems, nil
}

// Private answers from tables of its own, of these sizes, which Publish fills.
func Private(sizes bpf.Sizes, doors ...Door) (*Tracer, error) {
	sizes.FlowSets, sizes.Affinity, sizes.Fragments = flowSets, 64, 16
	objects, err := bpf.Load(firstPackets(bpf.Options{
		Sizes: sizes,
		Knobs: map[string]any{"route_lookup": uint8(0)}, // the routes of this machine are not that node's
	}, doors))
	if err != nil {
		return nil, err
	}
	t := &Tracer{objects: objects}
	if t.private, err = maps.Open(&objects.NearlbMaps); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Publish puts these decisions in the place of all that private tables have.
func (t *Tracer) Publish(decisions []lb.Decision, config maps.Config) ([]lb.Problem, error) {
	if err := t.clear(); err != nil {
		return nil, err
	}
	if err := t.private.Configure(config); err != nil {
		return nil, err
	}
	for _, decision := range decisions {
		if _, err := t.private.Apply(decision); err != nil {
			return nil, err
		}
	}
	return t.private.Problems(), nil
}

// Reader reads private tables, as long as the tracer is open.
func (t *Tracer) Reader() *maps.Reader { return t.private.Reader() }

// clear empties private tables. Between two packets nobody reads them: what is taken out can be used again at once.
func (t *Tracer) clear() error {
	for _, name := range t.private.Published() {
		if _, err := t.private.Remove(name); err != nil {
			return err
		}
	}
	if err := t.objects.ForgetFlows(); err != nil {
		return err
	}
	if err := t.forget(); err != nil {
		return err
	}
	t.private.Reclaim(time.Now().Add(time.Hour))
	return nil
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
		Frontends: room(frontends), Records: room(frontends), Backends: room(backends),
		SourceRanges: room(ranges), Services: room(ports + backends), Names: room(ports + 3*backends),
	}
}

// Close takes the programs and private tables out of the kernel.
func (t *Tracer) Close() error {
	err := t.objects.Close()
	if t.headerless != nil {
		err = errors.Join(err, t.headerless.Close())
	}
	if t.private != nil {
		err = errors.Join(err, t.private.Close())
	}
	if t.live != nil {
		err = errors.Join(err, t.live.Close())
	}
	return err
}

// run sends one packet through the program of its door as the first of its connection, and returns what the program says of
// it and the packet that came out.
func (t *Tracer) run(door door, frame []byte) (bpf.NearlbTraceResult, []byte, error) {
	var result bpf.NearlbTraceResult
	if err := t.objects.ForgetFlows(); err != nil {
		return result, nil, err
	}
	if err := t.objects.Trace.Put(uint32(0), &result); err != nil {
		return result, nil, fmt.Errorf("clear table trace: %w", err)
	}
	if door.program == nil {
		return result, nil, fmt.Errorf("run program %s: it is not loaded", door.name)
	}
	out := make([]byte, len(frame)+longestAnswer)
	options := &ebpf.RunOptions{Data: frame, DataOut: out, Repeat: 1}
	if door.device != 0 {
		options.Context = arrivedAt(door.device)
	}
	if _, err := door.program.Run(options); err != nil {
		return result, nil, fmt.Errorf("run program %s: %w", door.name, err)
	}
	if err := t.objects.Trace.Lookup(uint32(0), &result); err != nil {
		return result, nil, fmt.Errorf("read table trace: %w", err)
	}
	if result.Verdict == 0 {
		return result, nil, fmt.Errorf("run program %s: it did not say what it decided", door.name)
	}
	return result, options.DataOut, nil
}

// Do answers one request.
func (t *Tracer) Do(r Request) (Answer, error) {
	if err := r.Check(); err != nil {
		return Answer{}, err
	}
	door := t.door(r)
	if door.headerless == "" {
		return t.do(r, door)
	}
	headerless, err := t.withoutHeader()
	if err != nil {
		return Answer{}, err
	}
	return headerless.do(r, headerless.door(r))
}

// do answers one request whose packets come through a door.
func (t *Tracer) do(r Request, door door) (Answer, error) {
	if err := t.forget(); err != nil {
		return Answer{}, err
	}
	question, err := r.Question.message()
	if err != nil {
		return Answer{}, err
	}
	tally := newTally(r, door)
	for i := range max(r.Count, 1) {
		source := r.source(i)
		frame := firstPacket(door.address, source, r.To, r.Protocol, question)
		result, out, err := t.run(door, frame)
		if err == nil && i == 0 && t.remember(t.affinityClient(r), result) {
			result, out, err = t.run(door, frame)
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
