// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"

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

// Many more connections than the table holds, all in one or two sets, both processors at once: a packet is translated as its
// own connection, or dropped, or passes as one whose flow is gone. Never as another connection's.
func TestProcessorsThatShareASetNeverTranslateWrongly(t *testing.T) {
	for _, sets := range []uint32{1, 2} {
		for _, w := range worlds(lb.TCP, lb.UDP) {
			t.Run(fmt.Sprintf("%d sets, %s", sets, w), func(t *testing.T) {
				sizes := small()
				sizes.FlowSets = sets
				r := newRig(t, bpf.Options{Sizes: sizes})
				r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2, 3, 4, 5, 6))}))
				backends := map[uint16]netip.AddrPort{}
				for port := range uint16(64) {
					_, out := r.pick(w.packet(at(w.pod(1), 41000+port), at(w.vip(10), 80)))
					backends[41000+port] = out.dst
					r.evict()
				}
				crowd(t, func(random *rand.Rand) error { return r.oneOfMany(w, backends, random) })
				for _, d := range []string{"drop_flow_race", "drop_flows_full"} {
					t.Logf("%s: %d of %d packets", d, r.counters()[counter{fromPod, d}].Packets, r.total())
				}
				if lost := r.counters()[counter{fromPod, "drop_flow_race"}].Packets; lost*50 > r.total() {
					t.Errorf("%d of %d packets lost the race for an entry", lost, r.total())
				}
			})
		}
	}
}

// crowd calls from every processor at once.
func crowd(t *testing.T, call func(*rand.Rand) error) {
	t.Helper()
	var group errgroup.Group
	for worker := range max(2, runtime.NumCPU()) {
		random := rand.New(rand.NewPCG(uint64(worker), 7))
		group.Go(func() error {
			for range 30_000 {
				if err := call(random); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// oneOfMany sends one packet of one of the connections, forward or back.
func (r *rig) oneOfMany(w world, backends map[uint16]netip.AddrPort, random *rand.Rand) error {
	port := uint16(41000 + random.IntN(len(backends)))
	in := w.packet(at(w.pod(1), port), at(w.vip(10), 80))
	out := in.to(backends[port])
	if random.IntN(3) > 0 {
		in, out = in.with("A", "data"), out.with("A", "data")
	}
	hook, want := fromPod, out
	if random.IntN(3) == 0 {
		hook, want = toPod, in.reply("A", "answer")
		in = out.reply("A", "answer")
	}
	got, err := r.quick(hook, in)
	if err != nil || got.action == actShot {
		return err
	}
	src, dst, err := quickEndpoints(got.frame)
	if err != nil {
		return err
	}
	gone := hook == toPod && src == in.src && dst == in.dst
	if !gone && (src != want.src || dst != want.dst) {
		return fmt.Errorf("%s: %s to %s became %s to %s, want %s to %s", hook, in.src, in.dst, src, dst, want.src, want.dst)
	}
	return nil
}

// Both processors start connections that clash, from one client port to two frontends of one backend, in the same moment,
// and each its own copy of the same first packet: every connection leaves under a port of its own, the copies under one.
func TestProcessorsThatStartClashingFlowsKeepThemApart(t *testing.T) {
	forEachWorld(t, func(t *testing.T, w world) {
		r := newRig(t, bpf.Options{})
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
