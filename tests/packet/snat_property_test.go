// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// crossing is a naive view of connections through SNAT: who sent last what a server saw.
type crossing struct {
	site
	world world
	roomy bool            // the flow table has room for every connection
	wide  bool            // ports beyond the few serve as well
	sent  map[wire]packet // as a server sees it -> as the client sent it, of the last one
	left  map[wire]packet // as the client sends it -> as a server saw it last
}

// fewPorts are fewer than the connections of a test.
func fewPorts() tables.PortRange { return tables.PortRange{First: 61000, Last: 61004} }

// Whatever clients, servers and time do, in whatever order: no two connections look alike to a server, each keeps server and
// port while its flow is there, an answer or an error reaches the one that it is for, with the addresses that this knows, or
// nobody, and a port that nobody uses any more serves again.
func TestConnectionsThroughSNATAreNeverTakenForOneAnother(t *testing.T) {
	for name, o := range map[string]struct {
		sets uint32
		wide bool
	}{
		"room for all":                {128, false},
		"room for few":                {2, false},
		"room and every port for all": {128, true},
	} {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, withSets(o.sets), func(s site, w world) {
				s.configure(fewPorts())
				if o.wide {
					s.widen(fewPorts(), tables.PortRange{First: 20000, Last: 20001}, tables.YieldNothing)
				}
				s.seed(1) // by a seed of chance the ports could share a set, which is full then
				rapid.Check(s.TB.(*testing.T), func(rt *rapid.T) {
					c := &crossing{site: s, world: w, roomy: o.sets > 2, wide: o.wide, sent: map[wire]packet{}, left: map[wire]packet{}}
					c.rig = s.rig.in(s).at(w)
					c.deploy(rt)
					rt.Repeat(map[string]func(*rapid.T){
						"":                    func(*rapid.T) { c.oneOfEach() },
						"forward":             c.forward,
						"forward again":       c.again,
						"answer":              c.answer,
						"error to the client": c.failForward,
						"error to the server": c.failBack,
						"time":                c.wait,
						"eviction":            c.lose,
						"deploy":              c.deploy,
					})
					if s.Failed() {
						rt.FailNow()
					}
				})
			}, lb.TCP, lb.UDP)
		})
	}
}

// deploy gives two services one to three of the same servers, some of them on their way out.
func (c *crossing) deploy(t *rapid.T) {
	for n := range 2 {
		states := map[netip.AddrPort]lb.State{}
		var tier, extra []netip.AddrPort
		for _, pod := range rapid.SliceOfNDistinct(rapid.IntRange(2, 4), 1, 3, rapid.ID[int]).Draw(t, "pods") {
			server := at(c.world.pod(pod), 8080)
			if len(tier) == 0 || rapid.Bool().Draw(t, "active") {
				tier = append(tier, server)
				continue
			}
			states[server] = rapid.SampledFrom([]lb.State{lb.Draining, lb.Quiet}).Draw(t, "state")
			extra = append(extra, server)
		}
		c.publish(c.world.decide(service{
			name: fmt.Sprint("s", n), kind: lb.KindLoadBalancer, address: at(c.world.outside(10+n), 80),
			tiers: tiersOf(tier), extra: extra, states: states, remote: true,
		}))
	}
	c.tables.Reclaim(time.Now().Add(time.Hour))
}

// forward sends a packet of a connection, new or known.
func (c *crossing) forward(t *rapid.T) {
	client := at(c.world.outside(rapid.IntRange(1, 3).Draw(t, "client")), uint16(rapid.IntRange(41000, 41001).Draw(t, "port")))
	front := at(c.world.outside(rapid.IntRange(10, 11).Draw(t, "frontend")), 80)
	flags := rapid.SampledFrom([]string{"S", "S", "S", "A", "PA", "FA", "RA"}).Draw(t, "flags")
	c.pass(t, c.world.packet(client, front).with(flags, ""))
}

func (c *crossing) again(t *rapid.T) {
	in := c.sent[c.drawn(t, c.sent)]
	c.pass(t, in.with(rapid.SampledFrom([]string{"S", "A", "A", "PA", "FA", "RA"}).Draw(t, "flags"), "data"))
}

func (c *crossing) pass(t *rapid.T, in packet) {
	before := c.entries()
	got, err := c.run(fromPod, in.bytes())
	check(c, err)
	doubt(before)
	switch {
	case got.verdict == "drop_ports_full" && !c.wide:
		c.checkFull(t, in, before)
		return
	case got.verdict == "drop_flows_full" && !c.roomy:
		return
	case class(got.verdict) != bpf.Translate:
		t.Fatalf("%s to %s: %s", in.src, in.dst, got.verdict)
	}
	src, dst := endpoints(c, got.frame)
	out := in.from(src).to(dst)
	c.becomes(t, in, out, got)
	if src.Addr() != c.world.own() || !fewPorts().Contains(src.Port()) && (!c.wide || src.Port() < 1024) {
		t.Fatalf("%s to %s left from %s", in.src, in.dst, src)
	}
	c.checkKept(t, in, out, before, got.verdict)
	c.sent[wire{src, dst}], c.left[wire{in.src, in.dst}] = in, out
}

// becomes wants the frame of want to leave, for in.
func (c *crossing) becomes(t *rapid.T, in, want packet, got outcome) {
	if got.action != actRedirect || !bytes.Equal(routed(want), got.frame) {
		t.Fatalf("%s: %s to %s: action %d, packet out (-want +got)\n%s", got.verdict, in.src, in.dst, got.action, cmp.Diff(show(routed(want)), show(got.frame)))
	}
}

// checkFull: towards some server no port was free.
func (c *crossing) checkFull(t *rapid.T, in packet, before []entry) {
	used := map[netip.AddrPort]map[uint16]bool{}
	for _, e := range before {
		if !e.alias || e.life == dead || e.mustServe() || e.isOf(in) {
			continue
		}
		if used[e.server] == nil {
			used[e.server] = map[uint16]bool{}
		}
		used[e.server][e.port] = true
	}
	for _, ports := range used {
		if len(ports) == int(fewPorts().Count()) {
			return
		}
	}
	if c.roomy {
		t.Fatalf("%s to %s: no port, used are %v", in.src, in.dst, used)
	}
}

// checkKept: a connection whose flow is there, or has lost what leads back, goes on as before; no other's port is taken.
func (c *crossing) checkKept(t *rapid.T, in, out packet, before []entry, verdict string) {
	main, alias := find(before, in)
	seen := wire{out.src, out.dst}
	if verdict == "translate_retry" {
		c.checkRetried(t, in, seen, main, alias)
		main = nil
	}
	if main != nil && main.life == alive && main.mayGoOn(in) {
		old := wire{at(out.src.Addr(), main.port), main.server}
		switch {
		case alias != nil && (seen != old || verdict != "translate_established"):
			t.Fatalf("%s to %s: %s left as %v, before as %v", in.src, in.dst, verdict, seen, old)
		case alias == nil && c.roomy && seen != old && !taken(before, in, old, perhaps):
			t.Fatalf("%s to %s: %s left as %v, before as %v, which nobody took meanwhile", in.src, in.dst, verdict, seen, old)
		}
	}
	if main == nil && c.roomy && in.protocol == lb.TCP && in.flags != "S" && !answers(before, in, seen, perhaps) && answers(before, in, wire{dst: out.dst}, alive) {
		t.Fatalf("%s to %s: %s left as %v, a port that its server does not know", in.src, in.dst, verdict, seen)
	}
	if c.roomy && taken(before, in, seen, alive) {
		t.Fatalf("%s to %s left as %v, which is another one's", in.src, in.dst, seen)
	}
}

// checkRetried: nobody had answered the SYN, or its server refused it. It goes to another, and what that one still says is nobody's.
func (c *crossing) checkRetried(t *rapid.T, in packet, seen wire, main, alias *entry) {
	const reply, refused = uint32(bpf.NearlbFlowSeenSEEN_REPLY), uint32(bpf.NearlbFlowSeenSEEN_REFUSED)
	if main == nil || in.flags != "S" || main.server == seen.dst {
		t.Fatalf("%s to %s: tried again, as %v", in.src, in.dst, seen)
	}
	if main.flow.Seen&(reply|refused) == reply || alias != nil && alias.flow.Seen&(reply|refused) == reply {
		t.Fatalf("%s to %s: tried again as %v, though %s had answered", in.src, in.dst, seen, main.server)
	}
	for _, e := range c.entries() {
		if e.isOf(in) && e.server == main.server && e.port == main.port {
			t.Fatalf("%s to %s: tried again as %v, and %s still is its server", in.src, in.dst, seen, main.server)
		}
	}
}

// mayGoOn: nothing about the packet or the server asks for another one.
func (e entry) mayGoOn(in packet) bool {
	switch {
	case in.protocol == lb.UDP:
		return e.serving
	case in.flags == "S":
		return e.active && !e.closed()
	}
	return true
}

// find gives the two entries of a connection.
func find(all []entry, in packet) (main, alias *entry) {
	for i := range all {
		if all[i].isOf(in) && !all[i].alias {
			main = &all[i]
		}
	}
	for i := range all {
		if main != nil && all[i].twin(*main) {
			alias = &all[i]
		}
	}
	return main, alias
}

// taken: what a server sees is another connection's, surely or perhaps.
func taken(all []entry, in packet, seen wire, least life) bool {
	return slices.ContainsFunc(all, func(e entry) bool {
		return e.alias && e.life >= least && !e.isOf(in) && e.port == seen.src.Port() && e.server == seen.dst
	})
}

// drawn is one of the connections.
func (c *crossing) drawn(t *rapid.T, from map[wire]packet) wire {
	if len(from) == 0 {
		t.Skip("no connection yet")
	}
	keys := slices.Collect(maps.Keys(from))
	sortWires(keys)
	return rapid.SampledFrom(keys).Draw(t, "connection")
}

// answers: an answer to what the server saw has its connection, surely or perhaps; to whatever it saw where the source is left out.
func answers(all []entry, in packet, seen wire, least life) bool {
	return slices.ContainsFunc(all, func(e entry) bool {
		return e.alias && e.life >= least && e.isOf(in) && e.server == seen.dst && (!seen.src.IsValid() || e.port == seen.src.Port())
	})
}

// over: both sides have closed the connection that the server saw, so that what opens one is another's.
func over(all []entry, in packet, seen wire) bool {
	const both = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN)
	return slices.ContainsFunc(all, func(e entry) bool {
		return e.alias && e.isOf(in) && e.server == seen.dst && e.port == seen.src.Port() && e.flow.Seen&both == both
	})
}

func (c *crossing) answer(t *rapid.T) {
	seen := c.drawn(t, c.sent)
	in := c.sent[seen]
	before := c.entries()
	reply := in.from(seen.src).to(seen.dst).reply(rapid.SampledFrom([]string{"SA", "A", "PA", "FA", "RA"}).Draw(t, "flags"), "answer")
	got, err := c.run(fromPod, reply.bytes())
	check(c, err)
	doubt(before)
	switch {
	case got.verdict == "translate_reply":
		c.becomes(t, reply, reply.from(in.dst).to(in.src), got)
	case got.verdict == "pass_unknown_reply" && in.protocol == lb.TCP && reply.flags == "SA" && over(before, in, seen):
	case answers(before, in, seen, alive) || got.verdict != "pass_unknown_reply" && got.verdict != "pass_not_service":
		t.Fatalf("%s to %s, an answer to %s: %s", reply.src, reply.dst, in.src, got.verdict)
	}
}

// failForward lets a router complain about what the server would have seen.
func (c *crossing) failForward(t *rapid.T) {
	seen := c.drawn(t, c.sent)
	in := c.sent[seen].with("A", "some data")
	before := c.entries()
	f, n := rapid.SampledFrom(failures()).Draw(t, "error"), rapid.SampledFrom(quotations()).Draw(t, "quoted")
	sent := f.of(in.from(seen.src).to(seen.dst), c.world.addr("172.31.0.", "fd00:31::", 2), n)
	c.fail(t, sent, f.of(in, in.dst.Addr(), n), before, func() bool { return answers(before, in, seen, alive) })
}

// failBack lets a router complain about what the client would have got.
func (c *crossing) failBack(t *rapid.T) {
	key := c.drawn(t, c.left)
	out := c.left[key]
	before := c.entries()
	main, alias := find(before, packet{src: key.src, dst: key.dst})
	known := func() bool { return main != nil && alias != nil && main.life == alive }
	if other := c.sent[wire{out.src, out.dst}]; known() && (other.src != key.src || other.dst != key.dst) {
		t.Fatalf("%v and %v left as %s to %s, and both have flows", key, other.src, out.src, out.dst)
	}
	f, n := rapid.SampledFrom(failures()).Draw(t, "error"), rapid.SampledFrom(quotations()).Draw(t, "quoted")
	answer := out.reply("PA", "an answer")
	sent := f.of(answer.from(key.dst).to(key.src), c.world.router(), n)
	want := f.of(answer, c.world.own(), n)
	if other := c.sent[wire{out.src, out.dst}]; other.src != key.src || other.dst != key.dst {
		want = sent // the server would take it for the other's
	}
	c.fail(t, sent, want, before, known)
}

// fail wants the error to become the other one, or to be nobody's unless its connection is known, by the entries before.
func (c *crossing) fail(t *rapid.T, sent, want packet, before []entry, known func() bool) {
	got, err := c.run(fromPod, sent.bytes())
	check(c, err)
	doubt(before)
	switch {
	case got.verdict == "translate_icmp":
		c.becomes(t, sent, want, got)
	case known() || got.verdict != "pass_icmp":
		t.Fatalf("%s to %s: %s", sent.src, sent.dst, got.verdict)
	}
}

// wait makes all entries older, by times whose sums are not near any timeout.
func (c *crossing) wait(t *rapid.T) {
	seconds := rapid.SampledFrom([]uint32{7, 47, 211, 100_003}).Draw(t, "seconds")
	c.editFlows(func(f *bpf.NearlbFlow) { f.Touched -= seconds * bpf.JiffiesPerSecond() })
}

// lose forgets one entry.
func (c *crossing) lose(t *rapid.T) {
	n := len(c.liveFlows())
	if n == 0 {
		t.Skip("no entry yet")
	}
	victim := rapid.IntRange(0, n-1).Draw(t, "entry")
	c.editFlows(func(f *bpf.NearlbFlow) {
		if victim == 0 {
			f.Word &^= uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK)
		}
		victim--
	})
}
