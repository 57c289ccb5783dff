// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A test frame is of no TCP socket, so its SYN is always a first one: tests/hosts has real sockets whose SYNs come again. Here is what becomes of a
// connection that went elsewhere so: the same entries, made by a client off the node.

// steered is a connection of a socket of the host, as that sends it to the first server and as the second server sees it.
func (s site) steered(w world) (c talk) {
	s.Helper()
	first := at(w.pod(3), 8080)
	s.publish(far(w, 2, 3), w.decide(service{name: "other", kind: lb.KindLoadBalancer, address: first, tiers: tiersOf(w.tier(8080, 2)), remote: true}))
	c = s.remote(w.packet(at(w.own(), 41000), first), "translate_balance")
	s.editFlows(func(f *bpf.NearlbFlow) { f.Side = uint8(bpf.NearlbSideIndexSIDE_INTERNAL) })
	s.hostThere(true)
	return c
}

// hostThere says whether programs look for such connections.
func (s site) hostThere(yes bool) {
	s.edit(func(settings *bpf.NearlbSettings) {
		settings.Routed &^= uint8(bpf.NearlbRoutedROUTED_HOST)
		if yes {
			settings.Routed |= uint8(bpf.NearlbRoutedROUTED_HOST)
		}
	})
}

// becomes runs one packet at a hook.
func (s site) becomes(hook string, in []byte, want []byte, verdict string, told action) {
	s.Helper()
	got, err := s.run(hook, in)
	check(s, err)
	if got.verdict != verdict || got.action != told || !bytes.Equal(got.frame, want) {
		s.Errorf("at %s: verdict %s, want %s; action %d, want %d; packet out (-want +got)\n%s", hook, got.verdict, verdict, got.action, told, cmp.Diff(show(want), show(got.frame)))
	}
}

// passes runs one packet that is left as it is.
func (s site) passes(hook string, p packet, verdict string) {
	s.Helper()
	s.becomes(hook, p.bytes(), p.bytes(), verdict, actUnspec)
}

func TestAConnectionOfTheHostThatWentElsewhereGoesOnThere(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		answer := c.out.reply("SA", "")
		s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
		for range 2 {
			s.becomes(toNet, c.in.with("PA", "hello").bytes(), c.out.with("PA", "hello").bytes(), "translate_established", actRedirect)
			answer = c.out.reply("PA", "hello yourself")
			s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
		}
		s.passes(toNet, c.out.with("PA", "hello"), "pass_not_service") // as it comes by the device once more
		s.passes(toNet, c.in.from(at(w.own(), 41001)).with("PA", "hello"), "pass_not_service")
		s.passes(toNet, c.in.to(at(w.pod(4), 8080)).with("PA", "hello"), "pass_not_service")
		s.passes(toNet, c.in.from(at(w.pod(9), 41000)).with("PA", "hello"), "pass_not_service")

		s.hostThere(false) // nobody looks
		s.passes(toNet, c.in.with("PA", "hello"), "pass_not_service")
	}, lb.TCP)
}

// What the first server sends at last would be the connection's own to the host. It is told to forget it, and that goes to itself.
func TestALateAnswerToTheHostIsReset(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		for _, late := range []packet{c.in.reply("SA", ""), c.in.reply("PA", "hello")} {
			got, err := s.run(fromNet, late.bytes())
			check(s, err)
			p, ok := parse(got.frame)
			src, dst := endpoints(s, got.frame)
			if got.verdict != "reject_late_answer" || got.action != actRedirect || !ok || src != late.dst || dst != late.src || p.transport[13]&4 == 0 {
				s.Errorf("verdict %s, action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
			}
		}
		refused := c.in.reply("RA", "")
		s.becomes(fromNet, refused.bytes(), refused.bytes(), "reject_late_answer", actShot)
		s.hostThere(false)
		s.passes(fromNet, c.in.reply("SA", ""), "pass_unknown_reply")
	}, lb.TCP)
}

// A pod is not heard where it speaks for a server of another node, whoever looks at where packets come from.
func TestAPodDoesNotAnswerTheHostForAServerOfAnotherNode(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		pods := s.rig.at(world{v6: w.v6, protocol: w.protocol})
		for _, forged := range []packet{c.out.reply("SA", ""), c.out.reply("RA", ""), c.out.reply("PA", "hello")} {
			got, err := pods.run(fromPod, forged.bytes())
			check(s, err)
			if got.verdict != "pass_not_service" || got.action != actUnspec || !bytes.Equal(got.frame, forged.bytes()) {
				s.Errorf("%s: action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
			}
		}
	}, lb.TCP)
}

// The socket is gone, and another one has its port towards the first server: that begins there.
func TestANewConnectionOfTheHostBeginsWithItsOwnServer(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		s.passes(toNet, c.in, "pass_not_service")
		if flows := len(s.liveFlows()); flows != 0 {
			s.Errorf("%d entries", flows)
		}
		s.passes(fromNet, c.in.reply("SA", ""), "pass_unknown_reply")
		s.passes(toNet, c.in.with("A", ""), "pass_not_service")
	}, lb.TCP)
}

// The second entry was evicted: it is made again, and the server sees the port that it knows.
func TestAConnectionOfTheHostWhoseSecondEntryIsGoneGoesOn(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) != 0 {
				f.Word = uint32(bpf.NearlbFlowPhaseFLOW_FREE)
			}
		})
		s.becomes(toNet, c.in.with("PA", "hello").bytes(), c.out.with("PA", "hello").bytes(), "translate_recover", actRedirect)
		answer := c.out.reply("PA", "hello yourself")
		s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
	}, lb.TCP)
}

// A router tells the host about what it sent, as it sent it: so the path's MTU is that of the way to the server that it has.
func TestErrorsReachTheHostAboutTheConnectionThatItHas(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		for _, f := range failures() {
			for _, n := range quotations() {
				said := f.of(c.out.with("A", "text"), w.addr("172.31.0.", "fd00:31::", 2), n)
				s.becomes(fromNet, said.bytes(), f.of(c.in.with("A", "text"), c.in.dst.Addr(), n).bytes(), "translate_icmp", actUnspec)
			}
		}
	}, lb.TCP)
}
