// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// wire is what tells one connection from another at the backend's side.
type wire struct{ src, dst netip.AddrPort }

// model is a naive connection tracker: what each connection of the test looked like when it started.
type model struct {
	*rig
	world world
	live  map[wire]packet // as the backend sees it -> as the client sent it
	out   map[wire]packet // as the client sends it -> as the backend sees it
}

// Whatever connections a few clients have at once, from few ports, towards services that share backends and towards the
// backends themselves: each keeps its backend and source port, no two look alike to a backend, and a reply gives the client
// back exactly the addresses that it used.
func TestRepliesGiveBackExactlyWhatTheClientUsed(t *testing.T) {
	plenty := withSets(16384) // so many that no connection makes another one be forgotten
	forEachWorld(t, plenty, func(t *testing.T, r *rig, w world) {
		r.seed(1) // by a seed of chance two of the clients' ports could share a set, which is full then
		rapid.Check(t, func(rt *rapid.T) {
			m := &model{rig: r.in(t), world: w, live: map[wire]packet{}, out: map[wire]packet{}}
			m.publishDrawn(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"forward": m.forward,
				"reply":   m.answer,
				"error":   m.fail,
			})
			if t.Failed() {
				rt.FailNow()
			}
		})
	}, lb.TCP, lb.UDP)
}

func (m *model) publishDrawn(t *rapid.T) {
	for n := range 3 {
		pods := rapid.SliceOfNDistinct(rapid.IntRange(2, 4), 1, 3, rapid.ID[int]).Draw(t, "pods")
		m.publish(m.world.decide(service{name: fmt.Sprint("s", n), address: at(m.world.vip(10+n), 80), tiers: [][]netip.AddrPort{m.world.tier(8080, pods...)}}))
	}
}

// target is a service or a backend itself.
func (m *model) target(t *rapid.T) netip.AddrPort {
	if n := rapid.IntRange(0, 5).Draw(t, "target"); n < 3 {
		return at(m.world.vip(10+n), 80)
	} else {
		return at(m.world.pod(n-1), 8080)
	}
}

func (m *model) forward(t *rapid.T) {
	src := at(m.world.pod(rapid.IntRange(20, 21).Draw(t, "client")), uint16(rapid.IntRange(41000, 41003).Draw(t, "port")))
	in := m.world.packet(src, m.target(t))
	key := wire{in.src, in.dst}
	known, ok := m.out[key]
	if ok {
		in = in.with("PA", rapid.StringN(0, 40, 200).Draw(t, "data"))
	}
	got, _ := m.try(fromPod, in.bytes())
	if c := class(got.verdict); c != bpf.Translate && c != bpf.Pass {
		t.Fatalf("%s to %s: %s", in.src, in.dst, got.verdict)
	}
	src, dst := endpoints(m, got.frame)
	if ok {
		if src != known.src || dst != known.dst {
			t.Fatalf("%s to %s left as %s to %s before, now as %s to %s", in.src, in.dst, known.src, known.dst, src, dst)
		}
		return
	}
	if other, taken := m.live[wire{src, dst}]; taken {
		t.Fatalf("%s to %s and %s to %s both leave as %s to %s", in.src, in.dst, other.src, other.dst, src, dst)
	}
	m.live[wire{src, dst}], m.out[key] = in, in.from(src).to(dst)
}

func (m *model) drawn(t *rapid.T) (seen, sent packet) {
	if len(m.live) == 0 {
		t.Skip("no connection yet")
	}
	keys := make([]wire, 0, len(m.live))
	for _, src := range m.out {
		keys = append(keys, wire{src.src, src.dst})
	}
	sortWires(keys)
	key := rapid.SampledFrom(keys).Draw(t, "connection")
	sent = m.live[key]
	return m.out[wire{sent.src, sent.dst}], sent
}

func (m *model) answer(t *rapid.T) {
	seen, sent := m.drawn(t)
	reply := seen.reply(rapid.SampledFrom([]string{"SA", "A", "PA"}).Draw(t, "flags"), rapid.StringN(0, 40, 200).Draw(t, "data"))
	got, _ := m.try(toPod, reply.bytes())
	if src, dst := endpoints(m, got.frame); src != sent.dst || dst != sent.src {
		t.Fatalf("%s: reply of %s to %s reaches the client as from %s to %s, want from %s to %s", got.verdict, reply.src, reply.dst, src, dst, sent.dst, sent.src)
	}
}

// fail lets a router complain about what the backend would have seen.
func (m *model) fail(t *rapid.T) {
	seen, sent := m.drawn(t)
	f := rapid.SampledFrom(failures()).Draw(t, "error")
	e := f.of(seen.with("A", "some data"), m.world.router(), rapid.SampledFrom(quotations()).Draw(t, "quoted"))
	got, _ := m.try(toPod, e.bytes())
	p, ok := parse(got.frame)
	if !ok {
		t.Fatalf("%s: broken error", got.verdict)
	}
	quoted, ok := parseQuoted(p.transport[8:])
	if !ok {
		t.Fatalf("%s: broken quotation", got.verdict)
	}
	src, dst := quoted.endpoints()
	if src != sent.src || dst != sent.dst {
		t.Fatalf("%s: error quotes %s to %s, the client sent %s to %s", got.verdict, src, dst, sent.src, sent.dst)
	}
}

func sortWires(all []wire) {
	slices.SortFunc(all, func(a, b wire) int { return cmp.Or(a.src.Compare(b.src), a.dst.Compare(b.dst)) })
}
