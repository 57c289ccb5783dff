// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// quick runs a program without looking at counters, which are everybody's here.
func (r *rig) quick(hook string, p packet) (outcome, error) {
	in := p.bytes()
	code, out, err := r.execute(hook, in)
	if err != nil {
		return outcome{}, err
	}
	return outcome{action: code, frame: out}, nil
}

func quickEndpoints(frame []byte) (src, dst netip.AddrPort, err error) {
	if err := checkChecksums(frame); err != nil {
		return src, dst, err
	}
	p, ok := parse(frame)
	if !ok || len(p.transport) < 4 {
		return src, dst, fmt.Errorf("broken frame %x", frame)
	}
	src, dst = p.endpoints()
	return src, dst, nil
}

// stressed is how many packets each processor runs in each world of a stress test.
var stressed = flag.Int("stressed", 150_000, "`packets` of each processor in each world of a stress test")

// busy are tables of so many sets where nothing is protected for longer than a tick, so that entries change owners all the time.
func busy(sets uint32) bpf.Options {
	o := withSets(sets)
	o.Knobs = map[string]any{"flow_active_seconds": uint32(0), "udp_active_seconds": uint32(0)}
	return o
}

// Many more connections than the table holds, all in one or two sets, both processors at once: a packet is translated as its
// own connection, or dropped, or passes as one whose flow is gone. Never as another connection's.
func TestProcessorsThatShareASetNeverTranslateWrongly(t *testing.T) {
	for _, sets := range []uint32{1, 2} {
		for _, w := range worlds(lb.TCP, lb.UDP) {
			t.Run(fmt.Sprintf("%d sets, %s", sets, w), func(t *testing.T) {
				r := newRig(t, busy(sets))
				r.crowded(r.manyFlows(w))
			})
		}
	}
}

// The same where one port speaks to so many frontends that its blocks are full: a connection comes and goes between its own port and
// another, wherever its entry is, and is never taken for another.
func TestProcessorsThatFillABlockFromOnePortNeverTranslateWrongly(t *testing.T) {
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := newRig(t, busy(32))
			for i, tally := range r.crowded(r.onePort(w)) {
				if t.Logf("processor %d: %d packets from other ports, %d answers to them", i, tally.Moved, tally.Back); tally.Moved == 0 || tally.Back == 0 {
					t.Error("no packet of one kind: the test does not test what it should")
				}
			}
			r.wellKept()
		})
	}
}

// The same while entries grow old and the agent frees them: whoever loses the entry that he looks at looks again.
func TestProcessorsAndTheAgentsSweepNeverTranslateWrongly(t *testing.T) {
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := newRig(t, busy(2))
			samples := r.flowsTo(w, func(service int) []int { return []int{2 + service} }) // one that is not answered has nowhere else to go
			swept := r.sweepUntil(func() { r.crowded(samples) })
			if t.Logf("%d entries were freed", swept); swept == 0 {
				t.Error("no entry was freed: the test does not test what it should")
			}
			r.wellKept()
			r.checkTable()
		})
	}
}

// sweepUntil makes one live entry after the other old and has the agent free it, until what it is given ends. It tells how many lost their tag so.
func (r *rig) sweepUntil(ends func()) (freed int) {
	r.Helper()
	flows, err := r.objects.Flows.Memory()
	check(r, err)
	tags, err := r.objects.FlowTags.Memory()
	check(r, err)
	over, swept := make(chan struct{}), make(chan error, 1)
	entries := int64(flows.Size()) / int64(unsafe.Sizeof(bpf.NearlbFlow{}))
	go func() {
		var err error
		for place := int64(0); err == nil; place = (place + 1) % entries {
			select {
			case <-over:
				swept <- nil
				return
			default:
			}
			var gone bool
			if gone, err = r.sweepOne(flows, tags, place); gone {
				freed++
			}
		}
		swept <- err
	}()
	defer func() {
		close(over)
		check(r, <-swept)
	}()
	ends()
	return // what the other goroutine has counted when it has ended
}

// sweepOne is whether an entry that was live has no tag after it was made old and the table was swept.
func (r *rig) sweepOne(flows, tags *ebpf.Memory, place int64) (gone bool, err error) {
	word, old, tag := make([]byte, 4), make([]byte, 4), make([]byte, 1)
	at := place * int64(unsafe.Sizeof(bpf.NearlbFlow{}))
	if _, err := flows.ReadAt(word, at+int64(unsafe.Offsetof(bpf.NearlbFlow{}.Word))); err != nil {
		return false, err
	}
	live := binary.NativeEndian.Uint32(word)&uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK) == uint32(bpf.NearlbFlowPhaseFLOW_LIVE)
	if live {
		binary.NativeEndian.PutUint32(old, bpf.Jiffies()-1000*bpf.JiffiesPerSecond())
		if _, err := flows.WriteAt(old, at+int64(unsafe.Offsetof(bpf.NearlbFlow{}.Touched))); err != nil {
			return false, err
		}
	}
	for more := true; more; {
		_, more = r.tables.Sweep()
	}
	_, err = tags.ReadAt(tag, place)
	return live && tag[0] == 0, err
}

// crowded runs samples on both processors.
func (r *rig) crowded(samples []sampled) [2]StressTally {
	r.Helper()
	before := r.total()
	tallies := r.gather(samples).run(r, samples[0].before, *stressed)
	for _, tally := range tallies {
		r.Logf("%d packets translated, %d as they came", tally.Translated, tally.Kept)
		if tally.Translated == 0 || tally.Kept == 0 {
			r.Error("no packet of one kind: the test does not test what it should")
		}
		if tally.Wrong != 0 {
			s := samples[int(tally.WrongSample)%len(samples)]
			r.Errorf("%d packets translated wrongly, the last, %s:\n%s\nbecame:\n%s\nwant:\n%s", tally.Wrong, s.hook,
				show(s.before.bytes()), show(frameOf(tally.Seen)), show(s.after.bytes()))
		}
	}
	lost, all := r.counters()[counter{fromPod, "drop_flow_race"}].Packets, r.total()-before
	r.Logf("%d of %d packets lost the race for an entry", lost, all)
	if lost*50 > all {
		r.Errorf("%d of %d packets lost the race for an entry", lost, all)
	}
	return tallies
}

// onePort are packets of connections from one port to two hundred frontends, each with a backend of its own: answers are theirs
// whatever port they go to.
func (r *rig) onePort(w world) (all []sampled) {
	r.Helper()
	const frontends = 200
	r.webs(w, frontends)
	for i := range frontends {
		in := sized(w.packet(at(w.pod(1), 41000), w.web(i)))
		_, out := r.pick(in)
		r.evict()
		for _, flags := range []string{"S", "A", "RA"} {
			all = append(all, sampled{hook: fromPod, before: sized(in.with(flags, "")), after: sized(out.with(flags, "")), connection: i, moves: true})
		}
		answer := sized(out.reply("A", ""))
		all = append(all, sampled{hook: toPod, before: answer, after: answer.from(in.dst), connection: i, moves: true})
	}
	return all
}

// wellKept looks at the whole table: free entries have no tag, and all others have one.
func (r *rig) wellKept() {
	r.Helper()
	tags, sets := contents[bpf.NearlbFlowBlock](r, r.objects.FlowTags), contents[bpf.NearlbFlowSet](r, r.objects.Flows)
	for i, set := range sets {
		block, of := i/len(tags[0].Sets), i%len(tags[0].Sets)
		for way, f := range set.Ways {
			free := phaseOf(f) == bpf.NearlbFlowPhaseFLOW_FREE
			if tag := tags[block].Sets[of] >> (8 * way) & 0xff; free != (tag == 0) {
				r.Errorf("block %d, set %d, way %d: word %d, tag %d", block, of, way, f.Word, tag)
			}
		}
	}
}

// sampled is a packet, what it is when it was translated, and the program that it goes through.
type sampled struct {
	hook          string
	before, after packet
	connection    int
	moves         bool // its server may see another port than the client's: that is the port that answers go to
}

// value is the sample as bpf/stress.c wants it.
func (s sampled) value() StressSample {
	v := StressSample{Before: wordsOf(s.before.bytes()), After: wordsOf(s.after.bytes())}
	port := 0 // offset in the transport header: of the source port
	if s.hook == toPod {
		v.Hook, port = uint32(bpf.NearlbHookHOOK_TO_POD), 2
	}
	if s.moves {
		transport := 14 + map[bool]int{false: 20, true: 40}[s.before.src.Addr().Is6()]
		v.PortAt, v.CheckAt = uint16(transport+port), uint16(transport+map[lb.Protocol]int{lb.TCP: 16, lb.UDP: 6}[s.before.protocol])
		v.Connection, v.Port = uint16(s.connection), swap(s.before.src.Port())
	}
	return v
}

// manyFlows are packets of 64 connections of one client to four services over five backends, forward and back, first ones and
// later ones.
func (r *rig) manyFlows(w world) []sampled {
	r.Helper()
	return r.flowsTo(w, func(int) []int { return []int{2, 3, 4, 5, 6} })
}

// flowsTo are the same where each service has backends of its own, by their numbers.
func (r *rig) flowsTo(w world, backends func(service int) []int) []sampled {
	r.Helper()
	for n := range 4 {
		r.publish(w.decide(service{name: fmt.Sprint("s", n), address: at(w.vip(10+n), 80), tiers: tiersOf(w.tier(8080, backends(n)...))}))
	}
	var all []sampled
	for i := range 64 {
		in := sized(w.packet(at(w.pod(1), uint16(41000+i)), at(w.vip(10+i%4), 80)))
		_, out := r.pick(in)
		r.evict()
		for _, flags := range []string{"S", "PA", "RA"} {
			all = append(all, sampled{hook: fromPod, before: sized(in.with(flags, "")), after: sized(out.with(flags, ""))})
		}
		if answer := sized(out.reply("A", "")); i%4 == 0 {
			all = append(all, sampled{hook: toPod, before: answer, after: answer.from(in.dst)})
		}
	}
	return all
}

// sized gives a packet so much data that its frame has the size of bpf/stress.c.
func sized(p packet) packet {
	p.payload = nil
	p.payload = make([]byte, len(StressSample{}.Before)*8-len(p.bytes()))
	return p
}

func wordsOf(frame []byte) (words [12]uint64) {
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(frame[8*i:])
	}
	return words
}

func frameOf(words [12]uint64) (frame []byte) {
	for _, w := range words {
		frame = binary.NativeEndian.AppendUint64(frame, w)
	}
	return frame
}

// crowd is a wrapper of bpf/stress.c for each of two processors.
type crowd [2]StressObjects

// gather loads the wrappers over the samples.
func (r *rig) gather(samples []sampled) *crowd {
	r.Helper()
	var c crowd
	for i := range c {
		check(r, LoadStressObjects(&c[i], nil))
		r.Cleanup(func() { c[i].Close() })
		check(r, c[i].Hooks.Put(uint32(bpf.NearlbHookHOOK_FROM_POD), r.program(fromPod)))
		check(r, c[i].Hooks.Put(uint32(bpf.NearlbHookHOOK_TO_POD), r.program(toPod)))
		for n := range c[i].Samples.MaxEntries() {
			value := samples[int(n)%len(samples)].value()
			check(r, c[i].Samples.Put(n, &value))
		}
	}
	return &c
}

// run runs samples in any order, so many on each processor at once, and says what each found.
func (c *crowd) run(r *rig, first packet, runs int) (tallies [2]StressTally) {
	r.Helper()
	var group errgroup.Group
	start := make(chan struct{})
	begin := first.bytes()
	begin[6], begin[7] = 0xff, 0xff // as bpf/stress.c knows it: a run that a signal interrupts begins anew
	for i := range c {
		check(r, c[i].Tallies.Put(uint32(0), &StressTally{}))
		group.Go(func() error {
			<-start
			if _, _, err := c[i].Crowd.Benchmark(begin, runs, nil); err != nil {
				return err
			}
			return c[i].Tallies.Lookup(uint32(0), &tallies[i])
		})
	}
	close(start)
	check(r, group.Wait())
	return tallies
}

// Connections that clash, started over and over from both processors: whenever they stop, no two entries of the table have the
// same client's packets, or look alike to a backend.
func TestTheFlowTableNeverHoldsTwoFlowsThatAreOne(t *testing.T) {
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		var samples []sampled
		for n := range 4 {
			r.publish(w.decide(service{name: fmt.Sprint("s", n), address: at(w.vip(10+n), 80), tiers: tiersOf(w.tier(8080, 2))}))
			for i := range 64 {
				in := sized(w.packet(at(w.pod(1), uint16(41000+i)), at(w.vip(10+n), 80)))
				samples = append(samples, sampled{hook: fromPod, before: in, after: in})
			}
		}
		r.startRounds(samples, 300, 1000)
	}, lb.TCP, lb.UDP)
}

// The same from one port to so many frontends of one backend that its blocks are full: each connection has a port of its own.
func TestTheFlowTableNeverHoldsTwoFlowsThatAreOneOfAFullBlock(t *testing.T) {
	forEachWorld(t, withSets(64), func(t *testing.T, r *rig, w world) {
		var samples []sampled
		for n := range 200 {
			r.publish(w.decide(service{name: fmt.Sprint("s", n), address: w.web(n), tiers: tiersOf(w.tier(8080, 2))}))
			in := sized(w.packet(at(w.pod(1), 41000), w.web(n)))
			samples = append(samples, sampled{hook: fromPod, before: in, after: in}, sampled{hook: fromPod, before: sized(in.with("A", "")), after: in})
		}
		r.startRounds(samples, 60, 3000)
		var spills bpf.NearlbFlowSpill
		if check(r, r.objects.FlowSpills.Lookup(uint32(0), &spills)); spills.Spilled == 0 {
			t.Error("no block was full: the test does not test what it should")
		}
	}, lb.TCP, lb.UDP)
}

// A client has the whole table, and both processors give its entries to two others at once: nobody's packet is translated as another's.
func TestProcessorsThatTakeFromOneClientNeverTranslateWrongly(t *testing.T) {
	forEachWorld(t, unhurried(8), func(t *testing.T, r *rig, w world) {
		const entries, others = 64, 24
		most := entries * 7 / 8
		if w.protocol == lb.UDP { // those of the others that were answered once make room as well
			most = entries - 1
		}
		r.webs(w, 1)
		hog := func(i int) packet { return sized(w.packet(at(w.pod(1), uint16(1024+i)), w.web(0))) }
		samples := r.untilAnswered(hog, entries, "A")
		for client := range 2 {
			samples = append(samples, r.untilAnswered(func(i int) packet {
				return sized(w.packet(at(w.pod(2+client), uint16(1024+i)), w.web(0)))
			}, others, "S", "A")...)
		}
		c := r.gather(samples)
		var left []int
		for round := range 40 {
			r.evict()
			for i := range entries {
				r.established(hog(i))
			}
			had := r.entriesOf(w.pod(1))
			for i, tally := range c.run(r, samples[0].before, 4000) {
				if tally.Wrong != 0 {
					s := samples[int(tally.WrongSample)%len(samples)]
					t.Fatalf("round %d, processor %d: %d packets translated wrongly, the last, %s:\n%s\nbecame:\n%s\nwant:\n%s", round, i, tally.Wrong, s.hook,
						show(s.before.bytes()), show(frameOf(tally.Seen)), show(s.after.bytes()))
				}
			}
			if r.checkTable(); t.Failed() {
				t.Fatalf("in round %d", round)
			}
			if had != entries {
				t.Fatalf("round %d: the first client had %d entries, want %d: the test does not test what it should", round, had, entries)
			}
			left = append(left, r.entriesOf(w.pod(1)))
		}
		slices.Sort(left)
		last := len(left) - 1
		if w.protocol == lb.UDP { // in some rounds the others may find room with each other
			last /= 2
		}
		if left[last] > most {
			t.Fatalf("the first client was left with %v entries in the rounds: the test does not test what it should", left)
		}
		r.wellKept()
	}, lb.TCP, lb.UDP)
}

// untilAnswered are packets of n connections and answers to them: none that ends one.
func (r *rig) untilAnswered(packet func(int) packet, n int, flags ...string) (all []sampled) {
	r.Helper()
	for i := range n {
		in := packet(i)
		_, out := r.pick(in)
		r.evict()
		for _, f := range flags {
			all = append(all, sampled{hook: fromPod, before: sized(in.with(f, "")), after: sized(out.with(f, ""))})
		}
		answer := sized(out.reply("A", ""))
		all = append(all, sampled{hook: toPod, before: answer, after: answer.from(in.dst)})
	}
	return all
}

// entriesOf counts what a client has in the table.
func (r *rig) entriesOf(client netip.Addr) (n int) {
	r.Helper()
	for _, f := range r.liveFlows() {
		if f.Client == (bpf.NearlbAddress{Bytes: client.As16()}) {
			n++
		}
	}
	return n
}

// startRounds runs samples in an empty table, so many on each processor, and looks at what is in it then, over and over.
func (r *rig) startRounds(samples []sampled, rounds, runs int) {
	r.Helper()
	c := r.gather(samples)
	for round := range rounds {
		r.evict()
		c.run(r, samples[0].before, runs)
		r.checkTable()
		if r.wellKept(); r.Failed() {
			r.Fatalf("in round %d", round)
		}
	}
}

// checkTable looks at the live entries, all of one backend.
func (r *rig) checkTable() {
	r.Helper()
	type end struct {
		client   bpf.NearlbAddress
		port     uint16
		frontend bpf.NearlbFrontendKey
	}
	keys, seen := map[end]bool{}, map[end]bool{}
	for _, f := range r.liveFlows() {
		alias := f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) != 0
		if key := (end{f.Client, f.KeyPort, bpf.NearlbFrontendKey{Address: f.Frontend, Port: f.FrontendPort}}); !alias {
			if keys[key] {
				r.Errorf("two entries of %v", key)
			}
			keys[key] = true
		}
		if alias || f.KeyPort == f.TwinPort {
			if wire := (end{client: f.Client, port: f.KeyPort}); seen[wire] {
				r.Errorf("two flows look to the backend like %v", wire)
			} else {
				seen[wire] = true
			}
		}
	}
}

// Both processors start connections that clash, from one client port to two frontends of one backend, in the same moment,
// and each its own copy of the same first packet: every connection leaves under a port of its own, the copies under one.
func TestProcessorsThatStartClashingFlowsKeepThemApart(t *testing.T) {
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		const frontends = 3
		for n := range frontends {
			r.publish(w.decide(service{name: fmt.Sprint("s", n), address: at(w.vip(10+n), 80), tiers: tiersOf(w.tier(8080, 2))}))
		}
		lost, sent := 0, 0
		for range 150 {
			r.evict()
			seen := r.startTogether(w, frontends)
			owner := map[netip.AddrPort]netip.AddrPort{}
			for connection, outs := range seen {
				sent += len(outs)
				for _, out := range outs {
					if !out.IsValid() {
						lost++
						continue
					}
					if out != outs[0] && outs[0].IsValid() {
						t.Fatalf("%s to %s left as %s and as %s", connection.src, connection.dst, outs[0], out)
					}
					if other, ok := owner[out]; ok && other != connection.dst {
						t.Fatalf("from %s, connections to %s and %s both left as %s", connection.src, other, connection.dst, out)
					}
					owner[out] = connection.dst
				}
			}
			r.checkReplies(w, seen)
			if t.Failed() {
				return
			}
		}
		t.Logf("%d of %d first packets were dropped", lost, sent)
		if lost*20 > sent {
			t.Errorf("%d of %d first packets were dropped", lost, sent)
		}
	}, lb.TCP, lb.UDP)
}

// startTogether sends every first packet from every processor and says under which source each left; an invalid one: dropped.
func (r *rig) startTogether(w world, frontends int) map[wire][]netip.AddrPort {
	r.Helper()
	var mutex sync.Mutex
	var group errgroup.Group
	seen := map[wire][]netip.AddrPort{}
	var start sync.WaitGroup
	start.Add(1)
	for worker := range 2 {
		order := rand.New(rand.NewPCG(uint64(worker), 3)).Perm(8 * frontends)
		group.Go(func() error {
			start.Wait()
			for _, i := range order {
				in := w.packet(at(w.pod(1), uint16(41000+i/frontends)), at(w.vip(10+i%frontends), 80))
				got, err := r.quick(fromPod, in)
				if err != nil {
					return err
				}
				var src netip.AddrPort
				if got.action != actShot {
					if src, _, err = quickEndpoints(got.frame); err != nil {
						return err
					}
				}
				mutex.Lock()
				seen[wire{in.src, in.dst}] = append(seen[wire{in.src, in.dst}], src)
				mutex.Unlock()
			}
			return nil
		})
	}
	start.Done()
	check(r, group.Wait())
	return seen
}

// checkReplies answers every connection.
func (r *rig) checkReplies(w world, seen map[wire][]netip.AddrPort) {
	r.Helper()
	for connection, outs := range seen {
		for _, out := range outs {
			if !out.IsValid() {
				continue
			}
			got, err := r.quick(toPod, w.packet(out, at(w.pod(2), 8080)).reply("SA", ""))
			check(r, err)
			if src, dst, err := quickEndpoints(got.frame); err != nil || src != connection.dst || dst != connection.src {
				r.Errorf("reply to %s became %s to %s (%v), want %s to %s", out, src, dst, err, connection.dst, connection.src)
			}
		}
	}
}
